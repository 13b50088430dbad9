"""Channels behind norms that keep the moments of training: by hand, and what the rule promises."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mt3
from mt3.models.moments import source_moments
from mt3.networks.align import EPSILON, MIX, moments
from rivals import make_images, make_net


def test_moments_are_the_mean_and_the_mean_square_of_each_channel():
    values = torch.rand(5, 4, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    by_hand = np.stack([values.numpy().mean((0, 2, 3)), (values.numpy() ** 2).mean((0, 2, 3))])
    np.testing.assert_allclose(moments(values, 1).numpy(), by_hand, atol=1e-12)
    np.testing.assert_allclose(moments(values.movedim(1, -1), -1).numpy(), by_hand, atol=1e-12)


def mixed_net(norm: str, source: Tensor) -> nn.Module:
    """A network that answers the source with more than one class."""
    net = make_net(norm)
    with torch.no_grad():
        net.classes.bias -= net(source).mean(0)
    assert len(net(source).argmax(1).unique()) > 1
    return net


class Scaled(nn.Module):
    """A frozen batch norm, which is an affine map of each channel, and the means of what it gives as logits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.norm.weight.data, self.norm.bias.data = torch.tensor([1.0, 2.0, -1.0]), torch.tensor([0.5, 0.0, 1.0])

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).mean((2, 3))


@pytest.mark.parametrize("answer", ["first", "after"])
def test_an_aligned_channel_has_the_mean_and_deviation_of_the_source_by_hand(answer):
    net, source, images = Scaled().eval(), make_images(20), 0.3 * make_images(8, seed=2) + 0.2
    with torch.no_grad():
        net.norm.bias -= net(source).mean(0)  # else all images have one answer
    found = mt3.Adapter(net, "plus", source=source, batch=4, support=16, answer=answer)(images).numpy()
    before, values = (net.norm(x).detach().numpy().astype(float) for x in (source, images))
    axes, whole = (0, 2, 3), before.mean((2, 3)).argmax(1)
    assert set(whole) == {0, 1, 2}
    of_class = [before[whole == label] for label in range(3)]
    classes = np.stack([[own.mean(axes), (own**2).mean(axes)] for own in of_class])
    mix = np.bincount(whole, minlength=3) / len(whole)
    mean, square = before.mean(axes), (before**2).mean(axes)
    for start in (0, 4):  # 4 of 16 images count a quarter
        group = values[start : start + 4]
        wanted, wanted_square = np.einsum("k,kmc->mc", mix, classes)
        new_mean, new_square = 0.75 * mean + 0.25 * group.mean(axes), 0.75 * square + 0.25 * (group**2).mean(axes)
        if answer == "after":
            mean, square = new_mean, new_square
        scale = np.sqrt((wanted_square - wanted**2 + EPSILON) / (square - mean**2 + EPSILON))
        by_hand = (group.mean((2, 3)) - mean) * scale + wanted
        np.testing.assert_allclose(found[start : start + 4], by_hand, atol=1e-4)
        mean, square = new_mean, new_square
        mix = 0.75 * mix + 0.25 * np.bincount(by_hand.argmax(1), minlength=3) / 4


@pytest.mark.parametrize("norm", ["batch", "group", "layer"])
def test_images_like_the_source_are_answered_as_before(norm):
    net, source = make_net(norm), make_images(40)
    same = mt3.Adapter(net, "plus", source=source, batch=40, support=40, answer="after")(source)
    torch.testing.assert_close(same, net(source), atol=1e-4, rtol=0)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_every_norm_gets_its_moments_back(norm):
    net, source, images = make_net(norm), make_images(40), 0.2 * make_images(40, seed=3) + 0.6
    adapter = mt3.Adapter(net, "plus", source=source, batch=40, support=40, answer="after")
    assert adapter.stream is not None
    assert adapter.stream.source is not None
    wanted = adapter.stream.source.wanted(adapter.stream.source.mix)
    logits = adapter(images)
    # the norm's affine map has changed, and nothing else: by hand on a copy, norm after norm
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for name in ("norm1", "norm2"):
            part = getattr(twin, name)
            (m, q), (now_m, now_q) = (
                wanted[f"backbone.early.module.{name}"],
                torch.zeros(2, len(part.weight)),
            )
            seen = torch.relu(twin.norm1(twin.first(images)))
            values = twin.norm1(twin.first(images)) if name == "norm1" else twin.norm2(twin.second(seen))
            now_m, now_q = moments(values, 1)
            scale = ((q - m**2 + EPSILON) / (now_q - now_m**2 + EPSILON)).sqrt()
            part.weight.mul_(scale)
            part.bias.copy_((part.bias - now_m) * scale + m)
        torch.testing.assert_close(logits, twin(images), atol=1e-4, rtol=0)
    assert (logits - net(images)).abs().max() > 0.05


def test_a_first_answer_does_not_know_its_own_group():
    source, images = make_images(30), 0.4 * make_images(12, seed=3)
    net = mixed_net("group", source)
    first, after = (mt3.Adapter(net, "plus", source=source, batch=4, support=8, answer=a) for a in ("first", "after"))
    found, later = first(images), after(images)
    torch.testing.assert_close(found[:4], net(images[:4]), atol=1e-5, rtol=0)
    assert (later[:4] - net(images[:4])).abs().max() > 1e-3
    assert (found[4:] - net(images[4:])).abs().max() > 1e-3
    first.reset()
    changed = torch.cat([images[:8], 1 - images[8:]])  # what comes later changes no answer
    assert torch.equal(first(changed)[:8], found[:8])


def by_brightness() -> nn.Module:
    """Answers whether an image is dark or bright, by one channel behind a norm."""
    net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.GroupNorm(1, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0] * 3, [-1.0] * 3]).view(2, 3, 1, 1) / 3)
        net[0].bias.copy_(torch.tensor([-0.5, 0.5]))
        net[4].weight.copy_(torch.eye(2).flip(0))
        net[4].bias.zero_()
    return net.eval()


def test_a_stream_of_one_class_is_not_taken_for_a_shift(monkeypatch):
    net, source = by_brightness(), make_images(60)
    source[:30], source[30:] = source[:30] * 0.4, source[30:] * 0.4 + 0.6
    dark = make_images(200, seed=4) * 0.4
    wanted = net(dark).argmax(1)
    assert wanted.unique().tolist() == [0]
    alike = mt3.Adapter(net, "plus", source=source, batch=4, support=16)(dark)
    torch.testing.assert_close(alike, net(dark), atol=0.1, rtol=0)
    assert torch.equal(alike.argmax(1), wanted)
    monkeypatch.setattr("mt3.models.moments.MOST", 3)  # two classes of two channels are too many then
    pooled = mt3.Adapter(net, "plus", source=source, batch=4, support=16)
    assert (pooled(dark).argmax(1) != wanted)[100:].float().mean() > 0.3
    assert pooled.state_dict()["moments/" + MIX].tolist() == [1.0]


def test_a_shift_is_taken_back_whatever_the_classes():
    net, source = by_brightness(), make_images(60)
    source[:30], source[30:] = source[:30] * 0.4, source[30:] * 0.4 + 0.6
    images = make_images(200, seed=4) * 0.4
    images[100:] += 0.6  # first one class, then the other
    labels = net(images).argmax(1)
    shifted = images * 0.5 + 0.1
    alone = (net(shifted).argmax(1) == labels).float().mean()
    aligned = (mt3.Adapter(net, "plus", source=source, batch=4, support=16)(shifted).argmax(1) == labels).float().mean()
    assert alone < 0.8
    assert aligned > alone + 0.1


def test_a_stopped_stream_goes_on_bit_for_bit_and_a_reset_begins_anew():
    source, images = make_images(30), 0.4 * make_images(23, seed=3)  # the last group is smaller
    net = mixed_net("group", source)
    adapter = mt3.Adapter(net, "plus", source=source, batch=4, support=8)
    whole = adapter(images)
    adapter.reset()
    head = adapter(images[:8])
    state = adapter.state_dict()
    assert adapter.stream is not None
    assert adapter.stream.source is not None
    assert state["moments/" + MIX].sum() == pytest.approx(1)
    assert (state["moments/" + MIX] - adapter.stream.source.mix).abs().max() > 0.1
    other = mt3.Adapter(net, "plus", source=source, batch=4, support=8)
    other.load_state_dict(state)
    assert torch.equal(torch.cat([head, other(images[8:])]), whole)
    mix = "moments/" + MIX
    for wrong in (
        {name: t[..., :2] if name.startswith("moments/") else t for name, t in state.items()},
        {name: t for name, t in state.items() if name != mix},
        state | {mix: state[mix].long()},
        state | {mix: state[mix] * float("nan")},
    ):
        with pytest.raises(mt3.InputError, match="got moments of other norms"):
            other.load_state_dict(wrong)


def test_the_last_and_smaller_group_counts_less():
    source, images = make_images(30), 0.4 * make_images(6, seed=3)
    net = mixed_net("group", source)
    adapter = mt3.Adapter(net, "plus", source=source, batch=4, support=8)
    assert adapter.stream is not None
    assert adapter.stream.source is not None
    parts = adapter(images[:4]), adapter(images[4:])
    mix = adapter.stream.source.mix
    for part in parts:
        mix = torch.lerp(mix, torch.bincount(part.argmax(1), minlength=3) / len(part), len(part) / 8)
    torch.testing.assert_close(adapter.stream.mix, mix)


@pytest.mark.parametrize("answer", ["first", "after"])
def test_a_group_that_is_not_finite_moves_nothing(answer):
    source, images = make_images(30), 0.4 * make_images(12, seed=3)
    net = mixed_net("batch", source)  # a group norm makes even such an image finite
    plain, hurt = (mt3.Adapter(net, "plus", source=source, batch=4, support=8, answer=answer) for _ in range(2))
    plain(images[:4])
    hurt(images[:4])
    bad = images[4:8].clone()
    bad[1] *= 1e30
    hurt(bad)
    for name, t in plain.state_dict().items():
        if name != "seen":
            assert torch.equal(t, hurt.state_dict()[name]), name
    assert torch.equal(hurt(images[8:]), plain(images[8:]))


def test_a_class_that_the_source_never_shows_has_the_moments_of_all():
    source = make_images(30)
    net = mixed_net("group", source)
    with torch.no_grad():
        net.classes.bias[0] -= 100
        found = source_moments(mt3.Adapter(net, "plus", source=source).model, source)
    assert found.mix[0] == 0
    assert (found.mix[1:] > 0).all()
    for t in found.moments.values():
        torch.testing.assert_close(t[0], torch.einsum("k,kmc->mc", found.mix, t))


def test_the_model_stays_as_it_is_and_an_image_alone_is_enough():
    net, source = make_net("group"), make_images(30)
    before = net(make_images(3))
    adapter = mt3.Adapter(net, "plus", source=source, batch=1)
    adapter(make_images(5))
    assert torch.equal(net(make_images(3)), before)
    assert not any(module._forward_hooks for module in net.modules())


def test_our_own_network_and_images_as_bytes():
    torch.manual_seed(0)
    model = mt3.MT3Model("resnet8x4g2", 3, hidden=6, projection=5)
    source = torch.randint(256, (20, 3, 16, 16), dtype=torch.uint8)
    images = (source[:8] // 3).to(torch.uint8)
    a = mt3.Adapter(model, "plus", source=source, batch=4, support=8)(images)
    b = mt3.Adapter(model, "plus", source=source.float() / 255, batch=4, support=8)(images.float() / 255)
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    assert (a - model(images)).abs().max() > 1e-3


def test_what_cannot_be_aligned_is_refused():
    net, source = make_net("group"), make_images(10)
    with pytest.raises(mt3.InputError, match="compared with those of training images; give source=images"):
        mt3.Adapter(net, "plus")
    with pytest.raises(mt3.InputError, match="for the method plus alone; leave out source"):
        mt3.Adapter(net, "tent", source=source)
    with pytest.raises(mt3.InputError, match="Expected some hundred training images as the source, got 1"):
        mt3.Adapter(net, "plus", source=source[:1])
    with pytest.raises(mt3.InputError, match="give carry='stream'"):
        mt3.Adapter(net, "plus", carry="image", source=source)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(3 * 144, 2))
    with pytest.raises(mt3.InputError, match="has no norm with weights"):
        mt3.Adapter(plain, "plus", source=source, size=12)


class Twice(nn.Module):
    """One norm in two places, under two names, and one that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 3)
        self.norm, self.last = nn.GroupNorm(2, 6), nn.Linear(6, 3)
        self.same = self.norm

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.second(torch.relu(self.norm(self.first(x)))))
        return self.last(torch.relu(self.same(2 * x + 1)).mean((2, 3)))


def test_a_norm_that_is_used_again_has_moments_for_each_call():
    torch.manual_seed(0)
    net, source = Twice().eval(), make_images(40)
    adapter = mt3.Adapter(net, "plus", source=source, batch=40, support=40, answer="after")
    torch.testing.assert_close(adapter(source), net(source), atol=1e-5, rtol=0)
    assert sum(name.startswith("moments/") for name in adapter.state_dict()) == 4  # with the mix of answers


class Channels(nn.LayerNorm):
    """A layer norm of images, whose channels come first."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


def test_layer_norms_along_their_channels_by_hand():
    torch.manual_seed(0)
    source, images = make_images(130), 0.3 * make_images(8, seed=2)  # more than go through the network at once

    class Rows(nn.Module):
        def __init__(self, norm: nn.Module, first: bool) -> None:
            super().__init__()
            self.conv, self.norm, self.first = nn.Conv2d(3, 12, 1), norm, first  # as many channels as columns

        def forward(self, x: Tensor) -> Tensor:
            x = self.conv(x)
            return self.norm(x).mean((2, 3)) if self.first else self.norm(x.movedim(1, -1)).mean((1, 2))

    for norm, first in ((nn.LayerNorm(12), False), (Channels(12), True)):
        net = Rows(norm, first).eval()
        found = mt3.Adapter(net, "plus", source=source, batch=8, support=4, answer="after")(
            images
        )  # these images alone count
        with torch.no_grad():
            before, values = (net.norm(v if first else v.movedim(1, -1)) for v in (net.conv(source), net.conv(images)))
        (m, q), (now_m, now_q) = (moments(v, 1 if first else -1) for v in (before, values))
        scale = ((q - m**2 + EPSILON) / (now_q - now_m**2 + EPSILON)).sqrt()
        by_hand = (values.mean((2, 3) if first else (1, 2)) - now_m) * scale + m
        torch.testing.assert_close(found, by_hand, atol=1e-4, rtol=0)


def test_an_adapter_of_another_type_and_values_that_are_not_finite():
    net, source, images = make_net("group"), make_images(30), make_images(8, seed=3)
    adapter = mt3.Adapter(net, "plus", source=source, batch=4)
    exact = adapter(images)
    adapter.reset()
    wide = adapter.double()(images.double())
    assert wide.dtype == torch.float64
    torch.testing.assert_close(wide.float(), exact, atol=1e-4, rtol=0)
    with pytest.raises(mt3.InputError, match="not finite for these training images"):
        mt3.Adapter(make_net("batch"), "plus", source=source * 1e25)
    with pytest.raises(mt3.InputError, match="follows a stream"):
        adapter.compare(images)


def test_a_state_of_another_source_or_not_whole_is_refused():
    net, source, images = make_net("group"), make_images(30), make_images(8, seed=3)
    adapter = mt3.Adapter(net, "plus", source=source)
    adapter(images)
    state = adapter.state_dict()
    with pytest.raises(mt3.InputError, match="the same adaptation and seed"):
        mt3.Adapter(net, "plus", source=source[:20]).load_state_dict(state)
    part = dict(state)
    del part[next(name for name in part if name.startswith("moments/"))]
    for wrong in (part, {n: 3 if n.startswith("moments/") else t for n, t in state.items()}):
        with pytest.raises(mt3.InputError, match="got moments of other norms"):
            mt3.Adapter(net, "plus", source=source).load_state_dict(wrong)
