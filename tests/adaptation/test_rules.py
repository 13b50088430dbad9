"""Each test-time method against values derived by hand, per image, and what each one needs."""

import copy
import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import mt3
from mt3.adaptation.copies import near_copies
from mt3.adaptation.rules import Supports, add_supports, neighbours_of, prototype_logits, smooth
from mt3.adaptation.views import image_generator
from mt3.config.rivals import RIVALS
from mt3.models.plain import Plain
from mt3.objectives.augment import crop_and_flip
from mt3.objectives.augmix import augmix
from rivals import make_images, make_net


def softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def moved(net: nn.Module, loss: Tensor, lr: float) -> nn.Module:
    """A copy of the network after a plain gradient step on a loss of its own."""
    gradients = torch.autograd.grad(loss, list(net.parameters()))
    other = copy.deepcopy(net)
    with torch.no_grad():
        for p, g in zip(other.parameters(), gradients, strict=True):
            p -= lr * g
    return other


@pytest.mark.parametrize("method", ["memo", "memo-augmix"])
def test_memo_lowers_the_entropy_of_the_mean_answer_by_hand_and_discards_the_step(method):
    net, images = make_net("group").double(), make_images(3)
    adapter = mt3.Adapter(net, method, views=5, lr=0.3, seed=2)
    answers = adapter(images)
    for image, answer in zip(images, answers, strict=True):
        generator = image_generator(image, 2)
        copies = crop_and_flip(image.double().expand(5, -1, -1, -1), generator, 4, flip=True)
        copies = augmix(copies, generator) if method == "memo-augmix" else copies
        mean = net(copies).softmax(1).mean(0)
        want = moved(net, -(mean * mean.log()).sum(), 0.3)(image.double()[None])
        torch.testing.assert_close(answer, want[0].detach(), atol=1e-10, rtol=0)
    assert (answers - net(images.double())).abs().max() > 1e-3
    torch.testing.assert_close(adapter(images.flip(0)).flip(0), answers, atol=1e-10, rtol=0)  # nothing is carried along


def test_copies_of_memo_are_the_average_of_the_method_average():
    net, images = make_net("group"), make_images(3)
    adapter = mt3.Adapter(net, "average", views=6, seed=4)
    got = adapter(images)
    for image, answer in zip(images, got, strict=True):
        copies = crop_and_flip(image.expand(6, -1, -1, -1), image_generator(image, 4), 4, flip=True)
        torch.testing.assert_close(answer.softmax(0), net(copies).softmax(1).mean(0).detach(), atol=1e-6, rtol=0)
    torch.testing.assert_close(mt3.Adapter(net, "average", views=6, seed=4, carry="stream")(images), got)
    found = adapter.compare(images)
    torch.testing.assert_close(found.after, got, atol=1e-5, rtol=0)
    others = adapter.answer(images, torch.stack([images, images.roll(1, 0)], 1))
    torch.testing.assert_close(others.logits, torch.stack([got, got.roll(1, 0)], 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(others.view_average, got.softmax(1), atol=1e-6, rtol=0)
    assert adapter(images[:0]).shape == (0, 3)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_tent_of_a_single_image_by_hand(norm):
    """One step on the norms, on the statistics of the image alone, discarded afterwards."""
    net, images = make_net(norm), make_images(3)
    answers = mt3.Adapter(net, "tent", lr=0.5)(images)
    for image, answer in zip(images, answers, strict=True):
        own = copy.deepcopy(net).train()
        weights = [p for name, p in own.named_parameters() if "norm" in name]
        logits = own(image[None])
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum()
        with torch.no_grad():
            for p, g in zip(weights, torch.autograd.grad(entropy, weights), strict=True):
                p -= 0.5 * g
        torch.testing.assert_close(answer, own(image[None])[0].detach(), atol=1e-5, rtol=0)
    others = mt3.Adapter(net, "tent", lr=0.5).answer(images, torch.stack([images, images.roll(1, 0)], 1))
    torch.testing.assert_close(
        others.logits[:, 0], answers, atol=1e-5, rtol=0
    )  # each other image is a batch of its own


class Scale(nn.Module):
    """Logits (a x, 0) of the mean pixel x: everything can be worked out on paper."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, 1)
        self.norm.weight.data.fill_(scale)

    def forward(self, x: Tensor) -> Tensor:
        x = x.mean((1, 2, 3)) * self.norm.weight + self.norm.bias
        return torch.stack([x, torch.zeros_like(x)], 1)


def binary_slope(logit: float) -> float:
    """The derivative of the entropy of (p, 1 - p) by its logit: -z p (1 - p)."""
    p = 1 / (1 + math.exp(-logit))
    return -logit * p * (1 - p)


def constant(*pixels: float) -> Tensor:
    return torch.tensor(pixels).view(-1, 1, 1, 1).expand(-1, 3, 8, 8).contiguous()


def test_sar_climbs_and_steps_on_the_reliable_images_by_hand():
    """Of entropies below 0.4 ln 2 alone; the gradient is that at radius 0.05 up the slope."""
    net = Scale(4.0).double()
    pixels = (1.0, 0.9, 0.1)  # logits 4, 3.6, 0.4: the last is not reliable
    adapter = mt3.Adapter(net, "sar", carry="stream", batch=3, lr=0.5, momentum=0.0, reset="never")
    adapter(constant(*pixels))

    def gradient(weight: float, bias: float) -> tuple[float, float]:
        slopes = [binary_slope(weight * x + bias) for x in pixels[:2]]
        return sum(s * x for s, x in zip(slopes, pixels, strict=False)) / 2, sum(slopes) / 2

    w, b = gradient(4.0, 0.0)
    norm = math.hypot(w, b)
    w, b = gradient(4.0 + 0.05 * w / norm, 0.05 * b / norm)
    params = {name.rsplit(".", 1)[1]: float(p) for name, p in adapter.stream.params.items()}
    assert params == pytest.approx({"weight": 4.0 - 0.5 * w, "bias": -0.5 * b}, rel=1e-6)  # pixels are float32


def test_sar_leaves_unreliable_images_out_and_starts_anew_when_all_is_too_sure():
    net = Scale(4.0)
    adapter = mt3.Adapter(net, "sar", carry="stream", batch=2, lr=0.5)
    adapter(constant(1.0, 0.9))
    moved, entropy = dict(adapter.stream.params), adapter.stream.entropy
    assert entropy is None  # its first average was below 0.2, so that it started anew
    assert moved == {}
    adapter = mt3.Adapter(net, "sar", carry="stream", batch=2, lr=0.5, reset="never")
    adapter(constant(1.0, 0.9))
    before = {name: p.clone() for name, p in adapter.stream.params.items()}
    adapter(constant(0.1, 0.05))  # no reliable image: neither a step nor momentum
    assert all(torch.equal(p, before[name]) for name, p in adapter.stream.params.items())
    slow = mt3.Adapter(Scale(2.6), "sar", carry="stream", batch=1, lr=0.0)
    slow(constant(1.0))  # entropy of 0.251
    p = 1 / (1 + math.exp(-2.6))
    first = -p * math.log(p) - (1 - p) * math.log(1 - p)
    assert slow.stream.entropy is not None
    assert float(slow.stream.entropy) == pytest.approx(first, abs=0.02)  # of the climbed parameters
    assert float(slow.stream.entropy) > first
    single = mt3.Adapter(net, "sar", lr=0.5)  # per image: the unreliable one stays, to the bit
    answers = single(constant(1.0, 0.1))
    assert torch.equal(answers[1], single.unadapted(constant(1.0, 0.1))[1])
    assert not torch.equal(answers[0], single.unadapted(constant(1.0, 0.1))[0])


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
def test_norm_statistics_are_the_batchs_or_a_mixture(share):
    net, images = make_net("batch"), make_images(5)
    got = mt3.Adapter(net, "norm", statistics=share)(images)
    x = images.double().numpy()
    state = {name: t.double().numpy() for name, t in net.state_dict().items()}
    for conv, norm in (("first", "norm1"), ("second", "norm2")):
        layer = getattr(net, conv).double()
        x = layer(torch.from_numpy(x)).detach().numpy()
        mean = share * x.mean((0, 2, 3)) + (1 - share) * state[f"{norm}.running_mean"]
        variance = share * x.var((0, 2, 3)) + (1 - share) * state[f"{norm}.running_var"]
        x = (x - mean[:, None, None]) / np.sqrt(variance + 1e-5)[:, None, None]
        x = np.maximum(x * state[f"{norm}.weight"][:, None, None] + state[f"{norm}.bias"][:, None, None], 0)
    want = x.mean((2, 3)) @ state["classes.weight"].T + state["classes.bias"]
    np.testing.assert_allclose(got.numpy(), want, atol=1e-5)


class Features(nn.Module):
    """The first three pixels as features, and a class layer on two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.classes = nn.Linear(2, 2)
        self.classes.weight.data = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
        self.classes.bias.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classes(x[:, :2, 0, 0])
        return logits


def with_features(*rows: tuple[float, float]) -> Tensor:
    images = torch.zeros(len(rows), 3, 8, 8)
    images[:, :2, 0, 0] = torch.tensor(rows)
    return images


def test_prototypes_of_t3a_by_hand():
    """Entropies: of the class rows 0.5822 and 0.0901, of the images 0.3653 (class 0), 0.0047 (1) and 0.6882 (0)."""
    weights = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    features = torch.tensor([[3.0, 0.5], [0.5, 4.0], [1.0, 0.4]])
    start = Supports(weights, torch.tensor([0, 1]), torch.tensor([0.5822, 0.0901]))
    one = add_supports(start, features, features @ weights.T, 1)
    assert sorted(zip(one.labels.tolist(), one.features.tolist(), strict=True)) == [(0, [3.0, 0.5]), (1, [0.5, 4.0])]
    two = add_supports(start, features, features @ weights.T, 2)
    assert (two.labels == 0).sum() == (two.labels == 1).sum() == 2
    np.testing.assert_allclose(two.entropies.sort().values, [0.004699, 0.0901, 0.365334, 0.5822], atol=1e-6)
    directions = np.array([[1.0, 0.0], [3.0, 0.5] / np.hypot(3, 0.5), [0.0, 1.0], [0.5, 4.0] / np.hypot(0.5, 4)])
    sums = np.stack([directions[:2].sum(0), directions[2:].sum(0)])
    prototypes = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    want = features.numpy() @ prototypes.T
    np.testing.assert_allclose(prototype_logits(two, features, 2), want, atol=1e-6)
    images = with_features(*features.tolist())
    adapter = mt3.Adapter(Features(), "t3a", support=2, batch=3)
    np.testing.assert_allclose(adapter(images), want, atol=1e-6)
    first = mt3.Adapter(Features(), "t3a", support=2, batch=3, answer="first")
    np.testing.assert_allclose(first(images), features.numpy() @ np.eye(2), atol=1e-6)  # by the rows' directions
    np.testing.assert_allclose(first(images), want, atol=1e-6)  # now it has seen them


def test_t3a_works_image_by_image_and_keeps_no_more_than_its_support():
    adapter, images = mt3.Adapter(make_net("group"), "t3a", batch=1, support=2), make_images(20)
    assert adapter(images).shape == (20, 3)
    assert torch.bincount(adapter.stream.supports.labels).max() <= 2


def test_one_update_of_lame_and_its_fixed_point():
    """y_i is proportional to p_i exp(sum over j of w_ij y_j)."""
    logits = np.array([[2.0, 0.0], [0.5, 0.0], [0.0, 1.0]])
    affinity = np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    p = softmax(logits)
    once = softmax(np.log(p) + affinity @ p)
    many = p
    for _ in range(2000):
        many = softmax(np.log(p) + affinity @ many)
    got = smooth(torch.from_numpy(logits), torch.from_numpy(affinity)).numpy()
    np.testing.assert_allclose(got, many, atol=1e-4)
    np.testing.assert_allclose(got, softmax(np.log(p) + affinity @ got), atol=1e-4)
    assert np.abs(got - once).max() > 1e-3
    assert np.abs(got - p).max() > 0.05
    still = smooth(torch.from_numpy(logits), torch.zeros(3, 3, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(still, p, atol=1e-15)  # without neighbours, the softmax


def test_one_update_of_lame_is_its_closed_form(monkeypatch):
    monkeypatch.setattr("mt3.adaptation.rules.MOST_STEPS", 1)
    rng = np.random.default_rng(0)
    logits, affinity = rng.normal(size=(5, 4)), rng.integers(0, 2, (5, 5)).astype(float)
    want = softmax(np.log(softmax(logits)) + affinity @ softmax(logits))
    np.testing.assert_allclose(smooth(torch.from_numpy(logits), torch.from_numpy(affinity)), want, atol=1e-12)


def test_neighbours_of_lame_are_the_nearest_directions():
    features = torch.tensor([[1.0, 0.0], [10.0, 1.0], [0.0, 1.0], [1.0, 5.0]])
    want = [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    assert neighbours_of(features, 1).tolist() == want
    assert (neighbours_of(features, 100).sum(1) == 3).all()  # all others, never itself


def test_lame_on_a_network_by_hand():
    net, images = make_net("group").double(), make_images(9)
    got = mt3.Adapter(net, "lame", batch=9, support=2)(images).softmax(1).numpy()
    headless = copy.deepcopy(net)
    headless.classes = nn.Identity()
    with torch.no_grad():
        features, logits = headless(images.double()).numpy(), net(images.double()).numpy()
    directions = features / np.linalg.norm(features, axis=1, keepdims=True)
    distances = np.linalg.norm(directions[:, None] - directions, axis=-1) + 1e9 * np.eye(9)
    affinity = np.zeros((9, 9))
    np.put_along_axis(affinity, distances.argsort(1)[:, :2], 1.0, 1)
    y = p = softmax(logits)
    for _ in range(100):
        y = softmax(np.log(p) + affinity @ y)
    np.testing.assert_allclose(got, y, atol=1e-3)
    assert np.abs(y - p).max() > 0.02
    wrapped = mt3.Adapter(Plain(net), "lame", batch=9, support=2)
    np.testing.assert_allclose(wrapped(images).softmax(1), got, atol=1e-12)


@pytest.mark.parametrize("method", ["tent", "memo", "memo-augmix", "sar", "average", "t3a"])
def test_a_batch_of_one_is_enough(method):
    net, image = make_net("group"), make_images(1)
    fields = {"views": 3} if method in ("memo", "memo-augmix", "average") else {}
    assert mt3.Adapter(net, method, carry="stream", batch=1, **fields)(image).isfinite().all()
    if not RIVALS[method].stream:
        assert mt3.Adapter(net, method, **fields)(image).isfinite().all()


def test_each_method_says_what_it_needs():
    group, batch, image = make_net("group"), make_net("batch"), make_images(1)
    for name in ("norm", "norm-mixed"):
        with pytest.raises(mt3.InputError, match="has no batch normalisation, whose statistics this method takes"):
            mt3.Adapter(group, name)
        with pytest.raises(mt3.InputError, match=r"are of a batch; give carry='stream' and a batch of at least 2"):
            mt3.Adapter(batch, name, carry="image")
        with pytest.raises(mt3.InputError, match="compares the images of a call: expected at least 2, got 1"):
            mt3.Adapter(batch, name)(image)
    for fields in ({"carry": "image"}, {"batch": 1}):
        with pytest.raises(mt3.InputError, match="LAME compares the images of a batch"):
            mt3.Adapter(group, "lame", **fields)
    with pytest.raises(mt3.InputError, match="expected at least 2, got 1"):
        mt3.Adapter(group, "lame")(image)
    with pytest.raises(mt3.InputError, match="T3A collects the images of a stream"):
        mt3.Adapter(group, "t3a", carry="image")
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for name in ("t3a", "lame"):
        with pytest.raises(mt3.InputError, match=r"last layer is an nn\.Linear"):
            mt3.Adapter(plain, name)
    with pytest.raises(mt3.InputError, match=r"no weights to adapt with layers=norm; choose layers='all'"):
        mt3.Adapter(plain, "tent")
    assert mt3.Adapter(plain, "tent", layers="all")(image).shape == (1, 4)
    with pytest.raises(mt3.InputError, match=r"no heads of byol to adapt with; mt3\.add_objective adds them"):
        mt3.Adapter(plain, mt3.Adaptation())
    with pytest.raises(mt3.InputError, match="stages of this network are not known; adapt all or norm"):
        mt3.Adapter(plain, "memo", layers="last")
    with pytest.raises(mt3.InputError, match="A gate leaves out single images"):
        mt3.Adapter(group, "tent", carry="stream", gate=0.5)
    with pytest.raises(mt3.InputError, match="over views, which this objective does not draw"):
        mt3.Adapter(group, "tent", rule="average")


def test_a_last_image_alone_joins_the_group_before_it():
    net, images = make_net("batch"), make_images(9)
    got = mt3.Adapter(net, "norm", batch=4)(images)
    torch.testing.assert_close(got[4:], mt3.Adapter(net, "norm", batch=5)(images[4:]))


@pytest.mark.parametrize("method", ["tent", "lame", "norm"])
def test_without_views_any_finite_values_are_taken(method):
    """Images that the caller has normalised, or that the adapter normalises by what it is told."""
    net, images = make_net("batch"), make_images(4)
    imagenet = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    mean, deviation = (torch.tensor(v).view(1, 3, 1, 1) for v in imagenet)
    fields = {"carry": "stream", "batch": 4}
    mine = mt3.Adapter(net, method, **fields)((images - mean) / deviation)
    torch.testing.assert_close(mt3.Adapter(net, method, normalisation=imagenet, **fields)(images), mine)
    with pytest.raises(mt3.InputError, match="Expected finite images, got values from"):
        mt3.Adapter(net, method, **fields)(torch.full((4, 3, 12, 12), torch.inf))


def test_where_views_are_drawn_values_are_bounded():
    with pytest.raises(mt3.InputError, match=r"float images in \[0, 1\], got values from"):
        mt3.Adapter(make_net("group"), "memo")(make_images(2) * 3)
    with pytest.raises(mt3.InputError, match="knows its normalisation, size and class layer"):
        mt3.Adapter(mt3.MT3Model("resnet8x4", 3), "tent", size=32)


def test_a_model_of_ours_takes_every_method():
    torch.manual_seed(0)
    model, images = mt3.MT3Model("resnet8x4g2", 3, hidden=6, projection=5).eval(), make_images(4, 16)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    for name in ("own", "mt3", "ttt"):
        assert torch.equal(mt3.Adapter(model, name, views=3)(images), mt3.Adapter(model, views=3)(images))
    fields = {"tent": {"lr": 0.5}, "sar": {"lr": 0.5}, "average": {"views": 3}}
    for name in ("tent", "memo", "memo-augmix", "sar", "average"):
        told = fields.get(name, {"views": 3, "lr": 0.5})
        alone, carried = (mt3.Adapter(model, name, **told, **more) for more in ({}, {"carry": "stream"}))
        assert alone(images).shape == carried(images).shape == (4, 3)
        assert (alone(images) - model(images)).abs().max() > 1e-4 or name == "sar"
    for name in ("t3a", "lame"):
        assert mt3.Adapter(model, name)(images).shape == (4, 3)
    late = mt3.Adapter(model, "tent", layers="last", lr=0.5, carry="stream")
    late(images)
    moved = {name.split(".")[0] for name, p in late.stream.params.items() if not torch.equal(p, p * 0)}
    assert {"classify", "hidden", "backbone"} <= moved
    assert not any(name.startswith("backbone.early") for name in late.stream.params)
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_an_output_object_is_a_classifier_too():
    from transformers import ViTConfig, ViTForImageClassification

    from foreign import VIT

    net, images = ViTForImageClassification(ViTConfig(**VIT, num_labels=3)).eval(), torch.rand(4, 3, 32, 32)
    for name in ("tent", "t3a", "lame"):
        assert mt3.Adapter(net, name, carry="stream", batch=2)(images).shape == (4, 3)
    first = mt3.Adapter(net, "tent", carry="stream", batch=4)(images)
    torch.testing.assert_close(first, net(images).logits.detach(), atol=1e-6, rtol=0)


def test_a_network_in_training_mode_has_to_say_which_statistics():
    net, images = make_net("batch").train(), make_images(4)
    with pytest.raises(mt3.InputError, match=r"would take its statistics from the views of a single image.*\.eval\(\)"):
        mt3.Adapter(net, "memo")
    state = copy.deepcopy(net.state_dict())
    got = mt3.Adapter(net, "tent", carry="stream")(images)
    assert torch.equal(got, mt3.Adapter(make_net("batch"), "tent", carry="stream")(images))
    assert net.training
    assert all(torch.equal(t, state[name]) for name, t in net.state_dict().items())


class Told(nn.Module):
    """Sure of class 0 for bright left halves and of class 1 for bright right ones."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(10.0))

    def forward(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return self.gain * torch.stack([x[..., :half].mean((1, 2, 3)), x[..., half:].mean((1, 2, 3))], 1)


def test_near_copies_are_the_image_its_mirror_image_and_its_shifts_by_a_pixel():
    image = torch.arange(12, dtype=torch.uint8).view(1, 1, 3, 4)
    copies = near_copies(image)
    assert copies.shape == (1, 6, 1, 3, 4)
    assert torch.equal(copies[0, 0], image[0])
    assert copies[0, 1, 0, 0].tolist() == [3, 2, 1, 0]
    assert copies[0, 2, 0].tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [4, 5, 6, 7]]  # from above, its edge repeated
    assert copies[0, 3, 0].tolist() == [[4, 5, 6, 7], [8, 9, 10, 11], [8, 9, 10, 11]]
    assert copies[0, 4, 0, 1].tolist() == [4, 4, 5, 6]
    assert copies[0, 5, 0, 1].tolist() == [5, 6, 7, 7]
    assert torch.equal(near_copies(image, mirror=False), copies[:, [0, 2, 3, 4, 5]])


def test_confidence_is_the_mean_probability_of_the_answer_over_near_copies():
    images = torch.zeros(1, 3, 4, 4)
    images[0, :, :, :2] = 1.0  # left half bright: class 0; mirrored: class 1; shifted sideways: 3/4 of it or all
    found = mt3.Adapter(Told(), "memo", views=2, lr=0.0).confidence(images)
    sure, half = (math.exp(10) / (1 + math.exp(10)), math.exp(5) / (1 + math.exp(5)))
    # mirrored the other class is sure; shifted to the right the halves have 1 and 1/2, to the left 1/2 and 0
    assert float(found) == pytest.approx((3 * sure + (1 - sure) + 2 * half) / 6, abs=1e-6)
    plain = mt3.Adapter(Told(), "memo", views=2, lr=0.0).confidence(images, mirror=False)
    assert float(plain) == pytest.approx((3 * sure + 2 * half) / 5, abs=1e-6)


@pytest.mark.parametrize("objective", ["byol", "rotation"])
def test_confidence_of_a_model_is_after_adapting(objective):
    torch.manual_seed(1)
    model, images = mt3.MT3Model("resnet8x4g2", 3, objective, hidden=6, projection=5), make_images(3, 16)
    adapter = mt3.Adapter(model, views=4, lr=2.0, clip=None)
    found = adapter.confidence(images)
    for i, adapted in enumerate(adapter.adapt(images)):
        copies = near_copies(images[i : i + 1])[0]
        after = adapter.logits(adapted.params, copies).softmax(1)
        answered = after[0].argmax()
        by_hand = after[:, answered].mean()
        assert float(found[i]) == pytest.approx(float(by_hand.detach()), abs=1e-5)


def test_confidence_of_a_method_without_views_and_behind_a_gate():
    net, images = make_net("group"), make_images(3)
    copies = near_copies(images)
    before = net(copies.flatten(0, 1)).softmax(1).view(3, 6, -1)
    kept = mt3.Adapter(net, "tent", lr=5.0, gate=1e-6).confidence(images)  # every answer stays
    expected = before.mean(1).gather(1, before[:, 0].argmax(1, keepdim=True))[:, 0]
    assert torch.allclose(kept, expected, atol=1e-6)
    assert (mt3.Adapter(net, "tent", lr=5.0).confidence(images) - kept).abs().max() > 1e-4
    with pytest.raises(mt3.InputError, match="follows a stream"):
        mt3.Adapter(net, "tent", carry="stream").confidence(images)
