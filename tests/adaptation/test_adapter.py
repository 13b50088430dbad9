"""The Adapter: Algorithm 2 by hand, stacks, gates, precisions and refusals."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mt3
import reference
from mt3.adaptation.adapter import Adapter
from mt3.adaptation.memory import stack_size
from mt3.adaptation.views import image_generator
from mt3.evaluation.predict import predict
from mt3.models.call import call
from mt3.objectives.augment import apply_views, draw_views
from mt3.objectives.byol import byol_loss
from small import small_model


def tiny_model(**more) -> mt3.MT3Model:
    """Of single precision; it adapts with four pairs of views."""
    fields = {"hidden": 16, "projection": 8, "adaptation": mt3.Adaptation(views=4)} | more
    return mt3.MT3Model("resnet8x4g2", 10, **fields)


@pytest.fixture(scope="module")
def model() -> mt3.MT3Model:
    torch.manual_seed(0)
    return tiny_model().eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randint(0, 256, (5, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.parametrize("size", [32, 48])
def test_adapter_equals_the_algorithm_by_hand(size):
    """Algorithm 2 with the reference network, on the views that the adapter drew."""
    model = tiny_model(size=size)
    images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    adapter = Adapter(model, steps=1, lr=0.3)
    adapted = next(iter(adapter.adapt(images[:1])))
    theta = {n: p.detach().double().requires_grad_() for n, p in model.named_parameters()}
    views = adapted.views.images.double()
    assert views.shape == (8, 3, size, size)
    _, z, r = reference.network(theta, views, 2, torch.relu)
    names = [n for n in theta if not n.startswith("classify")]
    gradients = torch.autograd.grad(reference.byol(r, z.detach()), [theta[n] for n in names])
    clipped = reference.clip(list(gradients), 10.0, "global")
    phi = theta | {n: theta[n] - 0.3 * g for n, g in zip(names, clipped, strict=True)}
    want = reference.network(phi, images[:1].double() / 255, 2, torch.relu)[0]
    np.testing.assert_allclose(adapter(images[:1]).numpy(), want.detach().numpy(), atol=1e-4)
    assert not torch.allclose(adapter(images[:1]), model(images[:1]), atol=1e-3)


def test_weights_are_bit_identical_after_adapting_in_every_mode(model, images):
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    plain = Adapter(model)(images)
    with torch.no_grad():
        assert torch.equal(Adapter(model)(images), plain)
    with torch.inference_mode():
        assert torch.equal(Adapter(model)(images), plain)
        made_inside = images.float() / 255
        assert torch.equal(Adapter(model)(made_inside), plain)
    for name, p in model.named_parameters():
        assert torch.equal(p, before[name])
        assert p.grad is None


def test_answer_does_not_depend_on_batch_order_or_dtype(model, images):
    adapter = Adapter(model)
    together = adapter(images)
    one_by_one = torch.cat([adapter(images[i : i + 1]) for i in range(len(images))])  # each with all cores
    torch.testing.assert_close(together, one_by_one, atol=1e-4, rtol=0)
    assert torch.equal(together, adapter(images))
    order = [3, 1, 4, 0, 2]
    torch.testing.assert_close(adapter(images[order]), together[order], atol=1e-4, rtol=0)
    singly = Adapter(model, stack=1)  # whatever the batch and the order, the same chunks
    assert torch.equal(singly(images[order]), singly(images)[order])
    assert torch.equal(adapter(images.float() / 255), together)
    torch.testing.assert_close(adapter(images.double() / 255), together, atol=1e-4, rtol=0)
    assert not torch.allclose(Adapter(model, seed=1)(images), together, atol=1e-5)


@pytest.mark.parametrize("stack", [2, 3, 5])
@pytest.mark.parametrize(
    ("network", "objective", "hidden"), [("paper", "byol", 6), ("official", "byol", 6), ("paper", "rotation", 0)]
)
@pytest.mark.parametrize("variant", ["paper", "official"])
def test_a_stack_adapts_as_its_images_one_by_one(images, stack, network, objective, hidden, variant):
    """In float64 to 1e-9, with a clip that bites, the paper's fresh views for every step and every quantity."""
    model = small_model(network, objective, hidden).eval()
    adaptation = mt3.Adaptation(objective, steps=3, lr=0.5, clip=0.05, views=4, variant=variant)
    one, many = (Adapter(model, adaptation, stack=size).compare(images) for size in (1, stack))
    for field in ("before", "after", "view_average", "loss_before", "loss_after", "grad_norm"):
        torch.testing.assert_close(getattr(many, field), getattr(one, field), rtol=1e-9, atol=1e-9)
    assert (one.before - one.after).abs().max() > 1e-3
    walks = (Adapter(model, adaptation, stack=size).adapt(images) for size in (stack, 1))
    for a, b in zip(*walks, strict=True):
        for name, p in a.params.items():
            torch.testing.assert_close(p, b.params[name], rtol=1e-9, atol=1e-9)


def test_an_adapted_model_answers_about_other_images(model, images):
    others = torch.stack([images.roll(1, 0), images.roll(2, 0)], dim=1)
    answers = Adapter(model).answer(images, others)
    adapter = Adapter(model, stack=1)
    for i, adapted in enumerate(adapter.adapt(images)):
        torch.testing.assert_close(answers.logits[i], adapter.logits(adapted.params, others[i]), atol=1e-4, rtol=0)
        torch.testing.assert_close(answers.view_average[i], adapted.view_average, atol=1e-4, rtol=0)
    with pytest.raises(mt3.InputError, match=r"Expected others of shape \(5, n, 3, 32, 32\)"):
        adapter.answer(images, images)


@pytest.mark.parametrize("objective", ["byol", "rotation"])
def test_a_model_of_larger_images_adapts_in_every_way(objective):
    model = tiny_model(objective=objective, size=48, adaptation=mt3.Adaptation(objective, views=4)).double()
    images = torch.randint(0, 256, (3, 3, 48, 48), dtype=torch.uint8)
    adapter = Adapter(model, stack=2)
    found = adapter.compare(images)
    torch.testing.assert_close(found.before, model(images).detach(), atol=1e-9, rtol=0)
    torch.testing.assert_close(found.after, Adapter(model, stack=1)(images), atol=1e-9, rtol=0)
    torch.testing.assert_close(found.after, adapter.answer(images, images[:, None]).logits[:, 0], atol=1e-9, rtol=0)
    assert (found.after - found.before).abs().max() > 1e-3
    for ask in (adapter, adapter.compare, adapter.adapt, adapter.unadapted):
        with pytest.raises(mt3.InputError, match=r"shape \(N, 3, 48, 48\), got \(3, 3, 32, 32\)"):
            ask(images[:, :, :32, :32])


def test_an_adapter_of_the_authors_variant_does_as_their_code():
    """Views are drawn once, crops are smaller than the image, and each tensor is clipped by its own norm."""
    model = tiny_model()
    image = torch.rand(1, 3, 32, 32)
    (official,), (paper,) = (
        Adapter(model, variant=variant, views=200).adapt(image) for variant in ("official", "paper")
    )
    draws = draw_views(400, image_generator(image[0], 0))
    for adapted, whole in ((official, False), (paper, True)):
        assert torch.equal(adapted.views.images, apply_views(image.expand(400, -1, -1, -1), draws, whole))
    walks = [Adapter(model, variant="official", steps=steps, clip=0.01, lr=1.0).adapt(image) for steps in (1, 2)]
    (once,), (twice,) = walks
    theta = dict(model.named_parameters())
    for name in model.adapted_names("all"):
        assert (once.params[name] - theta[name]).norm() <= 0.01 * (1 + 1e-4)
    target = once.inner.outputs.heads["z"].detach()
    phi = {n: p.clone().requires_grad_() for n, p in once.params.items()}
    loss = byol_loss(call(model, phi, twice.views.images).heads["r"], target)
    names = model.adapted_names("all")
    for name, g in zip(names, torch.autograd.grad(loss, [phi[n] for n in names]), strict=True):
        want = phi[name].detach() - g * (0.01 / g.norm().clamp(min=0.01))
        torch.testing.assert_close(twice.params[name], want, atol=1e-5, rtol=0)


def test_stacks_fill_a_budget_and_every_thread(model, monkeypatch):
    """The model's largest activation has 4 channels of 32 x 32 floats: 16 KB an image."""
    monkeypatch.setattr("mt3.adaptation.memory.count_threads", lambda model, items: 2)
    assert stack_size(model, items=1000, images=64, size=32) == 4
    assert stack_size(model, items=6, images=64, size=32) == 3
    assert stack_size(model, items=1000, images=1000, size=32) == 1
    assert stack_size(copy.deepcopy(model).to("meta"), items=1000, images=64, size=32) == 64  # an accelerator's budget


def test_zero_steps_or_zero_rate_change_nothing(model, images):
    want = model(images).detach()
    torch.testing.assert_close(Adapter(model, steps=0)(images), want, atol=1e-5, rtol=0)
    torch.testing.assert_close(Adapter(model, lr=0.0)(images), want, atol=1e-5, rtol=0)


def test_compare_agrees_with_its_parts(model, images):
    adapter = Adapter(model, lr=0.05)
    c = adapter.compare(images)
    torch.testing.assert_close(c.before, model(images).detach(), atol=1e-5, rtol=0)
    assert torch.equal(c.after, adapter(images))
    assert (c.loss_after < c.loss_before).all()
    torch.testing.assert_close(c.view_average.sum(1), torch.ones(5))
    for i, adapted in enumerate(adapter.adapt(images)):
        views = adapted.views.images
        assert len(views) == 8
        want = model(views).softmax(1).mean(0)
        torch.testing.assert_close(c.view_average[i], want.detach(), atol=1e-6, rtol=0)
        theta = {n: p.detach().requires_grad_() for n, p in model.named_parameters()}
        _, z, r = reference.network(theta, views, 2, torch.relu)
        loss = reference.byol(r, z.detach())
        assert c.loss_before[i].item() == pytest.approx(loss.item(), rel=1e-4)
        names = model.adapted_names("all")
        gradients = torch.autograd.grad(loss, [theta[n] for n in names])
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        assert c.grad_norm[i].item() == pytest.approx(norm.item(), rel=1e-3)


def test_a_gate_keeps_the_answers_the_model_is_sure_of(model, images):
    before, after = model(images).detach(), Adapter(model, lr=1.0)(images)
    confidence = before.softmax(1).amax(1)
    gate = confidence.sort().values[1:3].mean().item()  # between two, so that rounding does not matter
    sure = confidence >= gate
    assert 0 < sure.sum() < len(images)
    gated = Adapter(model, lr=1.0, gate=gate)
    expected = torch.where(sure[:, None], before, after)
    torch.testing.assert_close(gated(images), expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gated.answer(images, images[:, None]).logits[:, 0], expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(gated.compare(images).after, expected, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(Adapter(model, lr=1.0, gate=0.0)(images), before, atol=1e-5, rtol=1e-4)
    assert gated(images[:0]).shape == (0, model.num_classes)


def test_defaults_come_from_the_model(images):
    own = mt3.Adaptation("rotation", steps=3, lr=0.002, views=5)
    rotation = mt3.MT3Model("resnet8x4", 10, "rotation", hidden=0, adaptation=own)
    adapter = Adapter(rotation)
    assert (adapter.adaptation.steps, adapter.adaptation.lr, adapter.adaptation.views) == (3, 0.002, 5)
    overridden = Adapter(rotation, steps=1, lr=0.5, views=2).adaptation
    assert (overridden.steps, overridden.lr, overridden.views) == (1, 0.5, 2)
    assert Adapter(rotation, own, views=2).adaptation == mt3.Adaptation("rotation", steps=3, lr=0.002, views=2)
    adapted = next(iter(adapter.adapt(images[:1])))
    assert adapted.views.images.shape == (5, 3, 32, 32)
    assert adapter(images[:0]).shape == (0, 10)


def test_the_callers_modes_are_left_alone(model, images):
    adapter = Adapter(model)
    walk = adapter.adapt(images[:2])
    with torch.no_grad():
        next(walk)
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    next(walk)
    walk.close()
    assert torch.is_grad_enabled()


def test_model_made_under_inference_mode_adapts(model, images):
    with torch.inference_mode():
        made = tiny_model()
        made.load_state_dict(model.state_dict())
    torch.testing.assert_close(Adapter(made)(images[:2]), Adapter(model)(images[:2]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near(model, images, dtype):
    half = tiny_model()
    half.load_state_dict(model.state_dict())
    got = Adapter(half.to(dtype))(images[:2]).float()
    torch.testing.assert_close(got, Adapter(model)(images[:2]), atol=0.1, rtol=0)


def test_bfloat16_passes_stay_near(model, images):
    exact = mt3.Adapter(model)(images)
    model.precision = "bfloat16"
    try:
        rounded = mt3.Adapter(model)(images)
    finally:
        model.precision = "float32"
    assert rounded.dtype == torch.float32
    assert 0 < (rounded - exact).abs().max() < 0.05
    assert torch.equal(mt3.Adapter(model)(images), exact)


def test_float64_adapter_agrees_with_float32(model, images):
    double = tiny_model().double()
    double.load_state_dict(model.state_dict())
    torch.testing.assert_close(Adapter(double)(images).float(), Adapter(model)(images), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.zeros(3, 32, 32), r"\(N, 3, 32, 32\), got \(3, 32, 32\)"),
        (torch.zeros(1, 3, 28, 28), "got .1, 3, 28, 28."),
        (torch.full((1, 3, 32, 32), 255.0), "in .0, 1., got values from 255"),
        (torch.full((1, 3, 32, 32), float("nan")), "got values from nan"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.int64), "got torch.int64"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.complex64), "got torch.complex64"),
        (torch.zeros(1, 3, 32, 32).to(torch.float8_e4m3fn), "got torch.float8"),
        (np.zeros((1, 3, 32, 32)), "as a torch tensor, got ndarray"),
    ],
)
def test_bad_images_are_refused(model, images, bad, message):
    model = copy.deepcopy(model)
    model.size = 32
    adapter, params = Adapter(model), dict(model.named_parameters())
    ways = (adapter, adapter.compare, adapter.adapt, adapter.unadapted, lambda x: adapter.logits(params, x))
    for ask in (*ways, lambda x: adapter.answer(x, x)):
        with pytest.raises(mt3.InputError, match=message):
            ask(bad)
    known = isinstance(bad, Tensor) and bad.dim() == 4
    with pytest.raises(mt3.InputError, match=message if known else r"Expected others of shape \(1, n, 3, 32, 32\)"):
        adapter.answer(images[:1], bad[None])


def test_bad_adapters_are_refused(model):
    with pytest.raises(mt3.InputError, match="no objective to adapt with"):
        Adapter(mt3.MT3Model("resnet8x4", 10, None))
    with pytest.raises(mt3.InputError, match="Unknown layers '\\[1 2\\]'"):
        Adapter(model, layers=np.array([1, 2]))
    with pytest.raises(mt3.InputError, match="the heads of byol to adapt with, not those of rotation"):
        Adapter(model, mt3.Adaptation("rotation"))
    with pytest.raises(mt3.InputError, match=r"field of an adaptation 'step' \(did you mean 'steps'\?\)"):
        Adapter(model, step=2)
    with_batch_norm = mt3.MT3Model("resnet8x4", 10)
    with_batch_norm.backbone.late.norm = nn.BatchNorm2d(16)
    with pytest.raises(mt3.InputError, match=r"batch normalisation \(backbone\.late\.norm\).*convert_batchnorm"):
        Adapter(with_batch_norm)


@pytest.mark.parametrize(
    ("name", "expected", "values"),
    [
        ("steps", "a whole number from 0 to 10000", [-1, 1.5, 1.0, "1", True, float("nan"), 10**9, [1]]),
        ("views", "a whole number from 1 to 10000", [0, 4.0, "4", True, 999999999]),
        ("stack", "a whole number from 1 to 10000", [0, 1.5, "x", True]),
        ("seed", "a whole number from -9", [0.5, "x", True, 2**63]),
        ("lr", "a number from 0.0 to 1e+30", [-0.1, "x", True, float("nan"), float("inf"), 1j, torch.ones(2)]),
        ("clip", "a number from 1e-30 to 1e+30", [-1.0, 0.0, "x", True, float("nan"), float("inf")]),
        ("gate", "a number from 0.0 to 1.0", [-0.1, 1.5, "x", True, float("nan")]),
    ],
)
def test_arguments_that_are_no_such_numbers_are_refused(model, name, expected, values):
    for value in values:
        with pytest.raises(mt3.InputError) as error:
            Adapter(model, **{name: value})
        assert str(error.value).startswith(f"Expected {name} to be {expected}")
        assert str(error.value).endswith(f"got {repr(value)[:40]}.")


def test_numpy_numbers_are_numbers(model, images):
    numbers = {"steps": np.int64(2), "lr": np.float32(0.5), "views": np.uint8(3), "gate": np.float64(0.9)}
    adapter = Adapter(model, **numbers, seed=np.int32(1), stack=np.int64(2))
    assert torch.equal(adapter(images), Adapter(model, steps=2, lr=0.5, views=3, gate=0.9, seed=1, stack=2)(images))


@pytest.mark.parametrize("given", [{"lr": 0.1}, 0.1, ["tent"]])
def test_a_method_is_a_name_or_an_adaptation(model, given):
    with pytest.raises(mt3.InputError, match=r"Expected a method's name, an mt3\.Adaptation or fields of one, .* got "):
        mt3.Adapter(model, given)
    with pytest.raises(mt3.InputError, match=r"Unknown method 'tnet' \(did you mean 'tent'\?\): expected one of own"):
        mt3.Adapter(model, "tnet")


def test_a_network_without_a_way_of_its_own_needs_a_method():
    for method in (None, "own", "mt3", "ttt"):
        with pytest.raises(
            mt3.InputError, match=r"a Conv2d, such as mt3\.Adapter\(network, 'tent'\); the names are own, "
        ):
            Adapter(nn.Conv2d(3, 4, 3), method)
    for thing in ("cifar10-mt3", None):
        with pytest.raises(
            mt3.InputError, match=rf"Expected a classifier as a torch module, got a {type(thing).__name__}"
        ):
            Adapter(thing, "tent")


def everything(model: mt3.MT3Model, images: Tensor) -> list[Tensor]:
    """What every way of asking answers."""
    adapter = Adapter(model, gate=0.9)
    phi = next(adapter.adapt(images)).params
    pixels = list(images.permute(0, 2, 3, 1).numpy())
    told = [answer[when]["probability"] for answer in predict(model, pixels) for when in ("before", "after")]
    return [
        adapter(images),
        *adapter.answer(images, images[:, None]),
        *vars(adapter.compare(images)).values(),
        *phi.values(),
        adapter.logits(phi, images),
        adapter.unadapted(images),
        torch.tensor(told, dtype=torch.float64),
    ]


@pytest.mark.parametrize("objective", ["byol", "rotation"])
@pytest.mark.parametrize("around", ["float64", "bfloat16", "autocast"])
def test_what_surrounds_the_caller_changes_no_answer(images, around, objective):
    """Neither PyTorch's default type nor an autocast, on one stack, which the caller computes, or on several."""
    model = tiny_model(objective=objective, adaptation=mt3.Adaptation(objective, views=4))
    for batch in (images[:1], images):
        wanted = everything(model, batch)
        if around == "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                got = everything(model, batch)
        else:
            torch.set_default_dtype(getattr(torch, around))
            try:
                got = everything(model, batch)
            finally:
                torch.set_default_dtype(torch.float32)
        for a, b in zip(got, wanted, strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b)


def test_an_autocast_around_a_walk_is_left_alone(model, images):
    walk = Adapter(model).adapt(images[:2])
    with torch.autocast("cpu", torch.bfloat16):
        next(walk)
        assert torch.is_autocast_enabled("cpu")
    next(walk)
    assert not torch.is_autocast_enabled("cpu")


def test_what_a_machine_cannot_hold_is_refused_before_it_is_tried(model, images, monkeypatch):
    """The model has one block a stage, 4 channels and floats: 7 x 16 KB an image at the least."""
    monkeypatch.setattr("mt3.adaptation.memory.free_memory", lambda: 7 * 16 * 1024 * 20)
    Adapter(model, views=10)(images[:1])
    for ask in (Adapter.forward, Adapter.compare, Adapter.adapt):
        with pytest.raises(mt3.InputError, match=r"22 images in a pass takes at least .* lower views or stack"):
            ask(Adapter(model, views=11), images[:1])
    with pytest.raises(mt3.InputError, match="60 images in a pass"):
        Adapter(model, views=10, stack=3)(images)
    Adapter(model, views=10, stack=100)(images[:1])  # of one image
