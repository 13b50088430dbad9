"""The inner step and its meta-gradient against hand-written unrolls and finite differences; the Adapter."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mt3
import reference
from mt3.adaptation.adapter import Adapter, clip_gradients, forward, inner_loop, inner_step, machine_memory, stack_size
from mt3.adaptation.averages import averaged_logits, image_generator, view_average
from mt3.config.config import make_config
from mt3.evaluation.predict import predict
from mt3.models.classifier import as_float
from mt3.objectives.selfsup import Views, draw_copies
from mt3.training.losses import Task, meta_loss
from mt3.training.state import State

GROUPS = 2


def small_model(head: str = "mt3", selfsup: str = "byol", dtype: torch.dtype = torch.float64, **more) -> mt3.MT3Model:
    model = mt3.MT3Model(
        3, depth=8, width=4, groups=GROUPS, head=head, selfsup=selfsup, hidden=6, projection=5, **more
    ).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():  # biases and norms away from their special initial values
            p.add_(0.1 * torch.randn(p.shape, generator=generator, dtype=torch.float64).to(dtype))
    return model


def small_task(k: int = 2) -> Task:
    generator = torch.Generator().manual_seed(2)
    images = torch.rand(3 * k, 3, 8, 8, generator=generator, dtype=torch.float64)
    return Task(images[:k], torch.tensor([0, 2] * (k // 2)), Views(images[k:]))


def meta_gradient(model: mt3.MT3Model, task: Task, **fields) -> dict[str, Tensor]:
    """The package's gradient of one task's outer loss."""
    config = make_config("mt3", "digits", "paper", overrides=fields)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.zero_grad()
    meta_loss(State(model, optimizer, None), task, config, log=False).total.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def by_hand(model: mt3.MT3Model, task: Task, **settings) -> dict[str, Tensor]:
    theta = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    assert task.views is not None
    loss = reference.outer_loss(theta, task.images, task.labels, task.views.images, groups=GROUPS, **settings)
    gradients = torch.autograd.grad(loss, list(theta.values()))
    return dict(zip(theta, gradients, strict=True))


def relative_error(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    assert got.keys() == want.keys()
    a, b = (torch.cat([g[n].flatten() for n in want]) for g in (got, want))
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize(
    ("head", "mode", "inner_target", "outer_target"),
    [("mt3", "global", "meta", "meta"), ("official", "tensor", "previous", "adapted")],
)
def test_meta_gradient_equals_hand_written_unroll(steps, clip, head, mode, inner_target, outer_target):
    model, task = small_model(head), small_task()
    got = meta_gradient(
        model,
        task,
        inner_steps=steps,
        inner_lr=0.2,
        inner_clip=clip,
        clip_mode=mode,
        gamma=0.3,
        inner_target=inner_target,
        outer_target=outer_target,
    )
    settings = {"steps": steps, "lr": 0.2, "gamma": 0.3, "norm": clip, "mode": mode}
    want = by_hand(model, task, **settings, inner_target=inner_target, outer_target=outer_target)
    assert relative_error(got, want) < 1e-9
    unclipped = by_hand(
        model, task, **(settings | {"norm": None}), inner_target=inner_target, outer_target=outer_target
    )
    bites = relative_error(unclipped, want) > 1e-3
    assert bites == (clip is not None)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("head", ["mt3", "official"])
def test_meta_gradient_equals_finite_differences(monkeypatch, steps, clip, head):
    """Softplus for ReLU, which has kinks, and targets frozen at the unperturbed parameters."""

    def smooth(x: Tensor, inplace: bool = False) -> Tensor:
        return F.softplus(x)

    monkeypatch.setattr(F, "relu", smooth)
    model, task = small_model(head), small_task()
    assert task.views is not None
    views = task.views.images
    got = meta_gradient(model, task, inner_steps=steps, inner_lr=0.2, inner_clip=clip, gamma=0.3)
    theta = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    frozen = [reference.network(theta, views, GROUPS, F.softplus)[1].detach()] * (steps + 1)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        direction = {n: torch.randn(p.shape, generator=generator, dtype=p.dtype) for n, p in theta.items()}

        def loss_at(h: float, direction=direction) -> float:
            moved = {n: (p.detach() + h * direction[n]).requires_grad_() for n, p in theta.items()}
            return reference.outer_loss(
                moved,
                task.images,
                task.labels,
                views,
                groups=GROUPS,
                steps=steps,
                lr=0.2,
                gamma=0.3,
                norm=clip,
                activation=F.softplus,
                frozen=frozen,
            ).item()

        h = 1e-4  # fourth-order central difference
        slope = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h)
        want = sum(float((got[n] * direction[n]).sum()) for n in theta)
        assert slope == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("steps", [1, 3])
def test_first_order_matches_its_own_unroll_and_differs_from_second(steps):
    model, task = small_model(), small_task()
    settings = {"steps": steps, "lr": 0.2, "gamma": 0.3, "norm": 0.05}
    fields = {"inner_steps": steps, "inner_lr": 0.2, "inner_clip": 0.05, "gamma": 0.3}
    first = meta_gradient(model, task, order="first", **fields)
    assert relative_error(first, by_hand(model, task, first_order=True, **settings)) < 1e-9
    assert relative_error(first, meta_gradient(model, task, **fields)) > 1e-3


@pytest.mark.parametrize("layers", ["all", "last"])
def test_without_gamma_the_views_need_no_second_pass(layers):
    """Equal to the same loss with a weight that is next to nothing, which has that pass."""
    model, task = small_model(adapt_layers=layers), small_task()
    fields = {"inner_lr": 0.5, "inner_clip": 0.05}
    got, near = (meta_gradient(model, task, gamma=gamma, **fields) for gamma in (0.0, 1e-13))
    assert relative_error(got, {name: near[name] for name in got}) < 1e-9
    if layers == "all":
        want = by_hand(model, task, steps=1, lr=0.5, gamma=0.0, norm=0.05)
        assert relative_error(got, {name: want[name] for name in got}) < 1e-9


@pytest.mark.parametrize("order", ["second", "first"])
def test_learned_rates_have_the_gradient_of_the_unroll(order):
    model, task = small_model(learned_rates=2), small_task()
    settings = {"inner_steps": 2, "inner_lr": 0.5, "gamma": 0.1, "inner_clip": 0.05, "order": order}
    got = meta_gradient(model, task, **settings)
    want = by_hand(model, task, steps=2, lr=0.5, gamma=0.1, norm=0.05, first_order=order == "first")
    assert got["rates"].abs().min() > 0
    assert relative_error(got, want) < 1e-9


def test_tensors_without_a_learned_rate_take_the_plain_step(images):
    model = mt3.MT3Model(10, depth=8, width=4, adapt_views=2, adapt_layers="norm", learned_rates=1)
    plain = mt3.MT3Model(10, depth=8, width=4, adapt_views=2, adapt_layers="norm")
    plain.load_state_dict({n: t for n, t in model.state_dict().items() if n != "rates"})
    got, want = (Adapter(m, lr=1.0, adapt_layers="all")(images) for m in (model, plain))
    torch.testing.assert_close(got, want)


def test_an_anchor_adds_the_cross_entropy_before_the_step():
    model, task = small_model(), small_task()
    settings = {"inner_lr": 0.5, "gamma": 0.1, "inner_clip": None}
    got = meta_gradient(model, task, anchor=0.25, **settings)
    want = meta_gradient(model, task, **settings)
    before = F.cross_entropy(model(task.images), task.labels)
    gradients = torch.autograd.grad(before, list(model.parameters()), allow_unused=True)
    for (name, _), g in zip(model.named_parameters(), gradients, strict=True):
        want[name] = want[name] if g is None else want[name] + 0.25 * g
    assert relative_error(got, want) < 1e-9


def test_learned_rates_of_one_step_serve_further_ones():
    model = small_model(learned_rates=1)
    factors = [model.rate_factors(dict(model.named_parameters()), step) for step in (0, 3)]
    assert factors[0] == factors[1]
    assert factors[0].keys() == set(model.adapted_names())
    with torch.no_grad():
        model.rates.zero_()
    assert {f.item() for f in model.rate_factors(dict(model.named_parameters()), 0).values()} == {1.0}


@pytest.mark.parametrize("head", ["mt3", "official"])
def test_only_the_class_layer_gets_no_inner_update(head):
    model, task = small_model(head), small_task()
    assert task.views is not None
    theta = dict(model.named_parameters())
    inner = inner_loop(model, theta, lambda step: task.views, model.adapted_names(), steps=1, lr=0.1)
    unmoved = {n for n in theta if torch.equal(inner.params[n], theta[n])}
    assert unmoved == {"classify.weight", "classify.bias"}


def test_rotation_adapts_trunk_and_rotation_head_only():
    model = small_model("linear", "rotation")
    views = Views(small_task().images, torch.tensor([1, 3]))
    theta = dict(model.named_parameters())
    inner = inner_loop(model, theta, lambda step: views, model.adapted_names(), steps=2, lr=0.1)
    moved = {n.split(".")[0] for n in theta if not torch.equal(inner.params[n], theta[n])}
    assert moved == {"stem", "stage1", "stage2", "rotate_stage", "rotate_norm", "rotate"}
    unmoved = {n.split(".")[0] for n in theta} - moved
    assert unmoved == {"stage3", "norm", "classify"}


def test_targets_carry_no_gradient():
    """A target that moved with theta would change the gradient: compare with targets that are constants."""
    model, task = small_model(), small_task()
    assert task.views is not None
    theta = dict(model.named_parameters())
    z = forward(model, theta, task.views.images).projection
    assert z is not None
    constants = [z.detach().clone()] * 2
    got = meta_gradient(model, task, inner_lr=0.2, inner_clip=None, gamma=0.3)
    want = by_hand(model, task, steps=1, lr=0.2, gamma=0.3, norm=None, frozen=constants)
    assert relative_error(got, want) < 1e-9


def test_fresh_views_meet_targets_of_the_meta_model():
    """Two steps on different views, by hand: the second step's targets come from theta on the second views."""
    model = small_model()
    generator = torch.Generator().manual_seed(5)
    sets = [torch.rand(4, 3, 8, 8, generator=generator, dtype=torch.float64) for _ in range(2)]
    theta = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    got = inner_loop(model, theta, [Views(v) for v in sets].__getitem__, model.adapted_names(), steps=2, lr=0.3).params
    phi = dict(theta)
    for views in sets:
        target = reference.network(theta, views, GROUPS, torch.relu)[1].detach()
        loss = reference.byol(reference.network(phi, views, GROUPS, torch.relu)[2], target)
        names = [n for n in theta if not n.startswith("classify")]
        gradients = torch.autograd.grad(loss, [phi[n] for n in names])
        phi = phi | {n: phi[n] - 0.3 * g for n, g in zip(names, gradients, strict=True)}
    assert relative_error(got, phi) < 1e-12


def test_inner_step_descends_by_lr_times_clipped_gradient():
    w = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    params = {"w": w, "b": b, "other": torch.ones(1)}
    new, norm = inner_step((w**2).sum() / 2 + 12 * b.sum(), params, ["w", "b"], lr=0.5, clip=6.5)
    assert norm.item() == pytest.approx(13.0)  # |(3, 4, 12)|
    np.testing.assert_allclose(new["w"].detach(), [3 - 0.5 * 1.5, 4 - 0.5 * 2.0])
    np.testing.assert_allclose(new["b"].detach(), [1 - 0.5 * 6.0])
    assert new["other"] is params["other"]


def test_clip_modes():
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([12.0]), torch.tensor([0.0])]
    for_all, total = clip_gradients(gradients, 6.5, "global")
    assert total.item() == 13.0
    assert [g.tolist() for g in for_all] == [[1.5, 2.0], [6.0], [0.0]]
    each, _ = clip_gradients(gradients, 6.0, "tensor")
    assert [g.tolist() for g in each] == [[3.0, 4.0], [6.0], [0.0]]
    assert clip_gradients(gradients, None, "global")[0][1] is gradients[1]


@pytest.fixture(scope="module")
def model() -> mt3.MT3Model:
    torch.manual_seed(0)
    return mt3.MT3Model(10, depth=8, width=4, groups=2, hidden=16, projection=8, adapt_views=4).eval()


@pytest.fixture(scope="module")
def images() -> Tensor:
    return torch.randint(0, 256, (5, 3, 32, 32), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def test_adapter_equals_the_algorithm_by_hand(model, images):
    """Algorithm 2 with the reference network, on the views that the adapter drew."""
    adapter = Adapter(model, steps=1, lr=0.3)
    adapted = next(iter(adapter.adapt(images[:1])))
    theta = {n: p.detach().double().requires_grad_() for n, p in model.named_parameters()}
    views = adapted.first_views.images.double()
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
@pytest.mark.parametrize(("head", "selfsup"), [("mt3", "byol"), ("official", "byol"), ("linear", "rotation")])
@pytest.mark.parametrize("clip_mode", ["global", "tensor"])
def test_a_stack_adapts_as_its_images_one_by_one(images, stack, head, selfsup, clip_mode):
    """In float64 to 1e-9, with a clip that bites, fresh views for every step and every quantity."""
    more = {"adapt_views": 4, "adapt_clip": 0.05, "clip_mode": clip_mode, "adapt_steps": 3, "adapt_lr": 0.5}
    model = small_model(head, selfsup, **more).eval()
    one, many = (Adapter(model, stack=size).compare(images) for size in (1, stack))
    for field in ("before", "after", "view_average", "loss_before", "loss_after", "grad_norm"):
        torch.testing.assert_close(getattr(many, field), getattr(one, field), rtol=1e-9, atol=1e-9)
    assert (one.before - one.after).abs().max() > 1e-3
    for a, b in zip(Adapter(model, stack=stack).adapt(images), Adapter(model, stack=1).adapt(images), strict=True):
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


def test_stacks_fill_a_budget_and_every_thread(model, monkeypatch):
    """The model's largest activation has 4 channels of 32 x 32 floats: 16 KB an image."""
    monkeypatch.setattr("mt3.adaptation.adapter.count_threads", lambda model, items: 2)
    assert stack_size(model, items=1000, images=64) == 4
    assert stack_size(model, items=6, images=64) == 3
    assert stack_size(model, items=1000, images=1000) == 1
    assert stack_size(copy.deepcopy(model).to("meta"), items=1000, images=64) == 64  # an accelerator's budget


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
        views = adapted.first_views.images
        assert len(views) == 8
        want = model(views).softmax(1).mean(0)
        torch.testing.assert_close(c.view_average[i], want.detach(), atol=1e-6, rtol=0)
        theta = {n: p.detach().requires_grad_() for n, p in model.named_parameters()}
        _, z, r = reference.network(theta, views, 2, torch.relu)
        loss = reference.byol(r, z.detach())
        assert c.loss_before[i].item() == pytest.approx(loss.item(), rel=1e-4)
        names = model.adapted_names()
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


def test_many_copies_go_through_the_network_in_parts(images):
    """Else 10000 of them would take gigabytes."""
    sizes = []

    def network(batch):
        sizes.append(batch.shape[-4])
        return batch.mean((-2, -1))

    scaled = as_float(images[:2])
    got = averaged_logits(network, images[:2], scaled, 250, 0)
    assert max(sizes) <= 100
    assert sum(sizes) == 2 * 251
    copies = torch.stack([draw_copies(x, 250, image_generator(i, 0)) for i, x in zip(images[:2], scaled, strict=True)])
    torch.testing.assert_close(got, copies.mean((-2, -1)).softmax(-1).mean(1).log())


def test_an_answer_is_averaged_over_copies_of_the_image(model, images):
    adapter = Adapter(model, lr=1.0, average=3)
    for image, adapted, logits in zip(images, adapter.adapt(images), adapter(images), strict=True):
        copies = draw_copies(image, 3, image_generator(image, 0))
        assert torch.equal(copies[0], image)
        assert not torch.equal(copies[1], copies[2])
        expected = Adapter(model).logits(adapted.params, copies).softmax(1).mean(0)
        torch.testing.assert_close(logits.softmax(0), expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(adapter.logits(adapted.params, image[None])[0].exp(), expected, atol=1e-5, rtol=1e-4)
        before = model(copies).softmax(1).mean(0)
        torch.testing.assert_close(adapter.unadapted(image[None])[0].exp(), before, atol=1e-5, rtol=1e-4)


def test_defaults_come_from_the_model(images):
    rotation = mt3.MT3Model(
        10, depth=8, width=4, head="linear", selfsup="rotation", adapt_steps=3, adapt_lr=0.002, adapt_views=5
    )
    adapter = Adapter(rotation)
    assert (adapter.steps, adapter.lr, adapter.views) == (3, 0.002, 5)
    overridden = Adapter(rotation, steps=1, lr=0.5, views=2)
    assert (overridden.steps, overridden.lr, overridden.views) == (1, 0.5, 2)
    adapted = next(iter(adapter.adapt(images[:1])))
    assert adapted.first_views.images.shape == (5, 3, 32, 32)
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
        made = mt3.MT3Model(10, depth=8, width=4, groups=2, hidden=16, projection=8, adapt_views=4)
        made.load_state_dict(model.state_dict())
    torch.testing.assert_close(Adapter(made)(images[:2]), Adapter(model)(images[:2]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near(model, images, dtype):
    half = mt3.MT3Model(10, depth=8, width=4, groups=2, hidden=16, projection=8, adapt_views=4)
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
    double = mt3.MT3Model(10, depth=8, width=4, groups=2, hidden=16, projection=8, adapt_views=4).double()
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
    adapter, params = Adapter(model), dict(model.named_parameters())
    ways = (adapter, adapter.compare, adapter.adapt, adapter.unadapted, lambda x: adapter.logits(params, x))
    for ask in (*ways, lambda x: adapter.answer(x, x)):
        with pytest.raises(mt3.InputError, match=message):
            ask(bad)
    known = isinstance(bad, Tensor) and bad.dim() == 4
    with pytest.raises(mt3.InputError, match=message if known else r"Expected others of shape \(1, n, 3, 32, 32\)"):
        adapter.answer(images[:1], bad[None])


def test_bad_adapters_are_refused(model):
    with pytest.raises(mt3.InputError, match="no self-supervised task"):
        Adapter(mt3.MT3Model(10, depth=8, width=4, selfsup="none"))
    with pytest.raises(mt3.InputError, match="Unknown choice of adapted layers '\\[1 2\\]'"):
        Adapter(model, adapt_layers=np.array([1, 2]))  # type: ignore[arg-type]
    with_batch_norm = mt3.MT3Model(10, depth=8, width=4)
    with_batch_norm.norm = nn.BatchNorm2d(16)  # type: ignore[assignment]
    with pytest.raises(mt3.InputError, match=r"batch normalisation \(norm\).*use GroupNorm"):
        Adapter(with_batch_norm)


@pytest.mark.parametrize(
    ("name", "expected", "values"),
    [
        ("steps", "a whole number from 0 to 10000", [-1, 1.5, 1.0, "1", True, float("nan"), 10**9, [1]]),
        ("views", "a whole number from 1 to 10000", [0, 4.0, "4", True, 999999999]),
        ("average", "a whole number from 0 to 10000", [-1, 0.5, "x", False]),
        ("stack", "a whole number from 1 to 10000", [0, 1.5, "x", True]),
        ("seed", "a whole number from -9", [0.5, "x", True, 2**63]),
        ("lr", "a number from 0.0 to 1e+30", [-0.1, "x", True, float("nan"), float("inf"), 1j, torch.ones(2)]),
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
    adapter = Adapter(model, np.int64(2), np.float32(0.5), np.uint8(3), average=np.int32(1), gate=np.float64(0.9))
    assert torch.equal(adapter(images), Adapter(model, 2, 0.5, 3, average=1, gate=0.9)(images))


@pytest.mark.parametrize(
    "foreign",
    [nn.Sequential(nn.Conv2d(3, 4, 3)), nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), "cifar10-cpu", None],
)
def test_only_this_packages_models_adapt(foreign):
    kind = type(foreign).__name__
    with pytest.raises(mt3.InputError, match=rf"Expected an MT3Model, .* got a {kind}; load one with mt3\.load"):
        Adapter(foreign)


def everything(model: mt3.MT3Model, images: Tensor) -> list[Tensor]:
    """What every way of asking answers."""
    adapter = Adapter(model, average=1, gate=0.9)
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
        view_average(model, images),
        averaged_logits(model, images, images.float() / 255, 2, 0).detach(),
        torch.tensor(told, dtype=torch.float64),
    ]


@pytest.mark.parametrize("selfsup", ["byol", "rotation"])
@pytest.mark.parametrize("around", ["float64", "bfloat16", "autocast"])
def test_what_surrounds_the_caller_changes_no_answer(images, around, selfsup):
    """Neither PyTorch's default type nor an autocast, on one stack, which the caller computes, or on several."""
    model = mt3.MT3Model(10, depth=8, width=4, hidden=16, projection=8, adapt_views=4, selfsup=selfsup)
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
    monkeypatch.setattr("mt3.adaptation.adapter.machine_memory", lambda: 7 * 16 * 1024 * 20)
    Adapter(model, views=10)(images[:1])
    for ask in (Adapter.forward, Adapter.compare, Adapter.adapt):
        with pytest.raises(mt3.InputError, match=r"22 images in a pass takes at least .* lower views or stack"):
            ask(Adapter(model, views=11), images[:1])
    with pytest.raises(mt3.InputError, match="60 images in a pass"):
        Adapter(model, views=10, stack=3)(images)
    Adapter(model, views=10, stack=100)(images[:1])  # of one image
    with pytest.raises(mt3.InputError, match=r"views to be a whole number from 1 to 10000, got 10001"):
        view_average(model, images, views=10_001)


def test_the_machines_memory_is_some_gigabytes():
    assert 2**28 < machine_memory() < 2**50


def test_copies_go_through_the_network_in_passes_of_bounded_size(model, images):
    sizes = []

    def network(x: Tensor) -> Tensor:
        sizes.append(len(x))
        return model(x)

    with torch.no_grad():
        got = averaged_logits(network, images, images.float() / 255, 39, 0)
        one_by_one = [averaged_logits(model, i[None], i[None].float() / 255, 39, 0) for i in images]
    assert sizes == [80, 80, 40]
    torch.testing.assert_close(got, torch.cat(one_by_one), atol=1e-5, rtol=0)
