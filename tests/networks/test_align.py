"""Channels behind norms that keep the moments of training: by hand, and what the rule promises."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import mt3
from mt3.networks.align import EPSILON, moments
from rivals import make_images, make_net


def test_moments_are_the_mean_and_the_mean_square_of_each_channel():
    values = torch.rand(5, 4, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    by_hand = np.stack([values.numpy().mean((0, 2, 3)), (values.numpy() ** 2).mean((0, 2, 3))])
    np.testing.assert_allclose(moments(values, 1).numpy(), by_hand, atol=1e-12)
    np.testing.assert_allclose(moments(values.movedim(1, -1), -1).numpy(), by_hand, atol=1e-12)


class Scaled(nn.Module):
    """A frozen batch norm, which is an affine map of each channel, and the means of what it gives as logits."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.norm.weight.data, self.norm.bias.data = torch.tensor([1.0, 2.0, -1.0]), torch.tensor([0.5, 0.0, 1.0])

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).mean((2, 3))


def test_an_aligned_channel_has_the_mean_and_deviation_of_the_source_by_hand():
    net, source, images = Scaled().eval(), make_images(20), 0.3 * make_images(8, seed=2) + 0.2
    found = mt3.Adapter(net, "plus", source=source, batch=4, support=16)(images).numpy()
    before, values = (net.norm(x).detach().numpy().astype(float) for x in (source, images))
    axes = (0, 2, 3)
    wanted, wanted_square = before.mean(axes), (before**2).mean(axes)
    mean, square = wanted, wanted_square
    for start in (0, 4):  # 4 of 16 images count a quarter
        group = values[start : start + 4]
        mean, square = 0.75 * mean + 0.25 * group.mean(axes), 0.75 * square + 0.25 * (group**2).mean(axes)
        scale = np.sqrt((wanted_square - wanted**2 + EPSILON) / (square - mean**2 + EPSILON))
        by_hand = (group.mean((2, 3)) - mean) * scale + wanted
        np.testing.assert_allclose(found[start : start + 4], by_hand, atol=1e-4)


@pytest.mark.parametrize("norm", ["batch", "group", "layer"])
def test_images_like_the_source_are_answered_as_before(norm):
    net, source = make_net(norm), make_images(40)
    same = mt3.Adapter(net, "plus", source=source, batch=40, support=40)(source)
    torch.testing.assert_close(same, net(source), atol=1e-4, rtol=0)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_every_norm_gets_its_moments_back(norm):
    net, source, images = make_net(norm), make_images(40), 0.2 * make_images(40, seed=3) + 0.6
    adapter = mt3.Adapter(net, "plus", source=source, batch=40, support=40)
    assert adapter.stream is not None
    assert adapter.stream.source is not None
    logits = adapter(images)
    # the norm's affine map has changed, and nothing else: by hand on a copy, norm after norm
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for name in ("norm1", "norm2"):
            part = getattr(twin, name)
            (m, q), (now_m, now_q) = (
                adapter.stream.source[f"backbone.early.module.{name}"],
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
    net, source, images = make_net("group"), make_images(30), 0.4 * make_images(12, seed=3)
    first = mt3.Adapter(net, "plus", source=source, batch=4, support=8, answer="first")
    after = mt3.Adapter(net, "plus", source=source, batch=4, support=8)
    found, later = first(images), after(images)
    torch.testing.assert_close(found[:4], net(images[:4]), atol=1e-5, rtol=0)
    assert (found[4:] - later[4:]).abs().max() > 1e-3
    assert first.state_dict().keys() == after.state_dict().keys()
    for name, t in first.state_dict().items():
        if name.startswith("moments/"):
            assert torch.equal(t, after.state_dict()[name])


def test_a_stopped_stream_goes_on_bit_for_bit_and_a_reset_begins_anew():
    net, source, images = make_net("group"), make_images(30), 0.4 * make_images(24, seed=3)
    adapter = mt3.Adapter(net, "plus", source=source, batch=4)
    whole = adapter(images)
    adapter.reset()
    head = adapter(images[:8])
    state = adapter.state_dict()
    other = mt3.Adapter(net, "plus", source=source, batch=4)
    other.load_state_dict(state)
    assert torch.equal(torch.cat([head, other(images[8:])]), whole)
    wrong = {name: t[:, :2] if name.startswith("moments/") else t for name, t in state.items()}
    with pytest.raises(mt3.InputError, match="got moments of other norms"):
        other.load_state_dict(wrong)


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
    a = mt3.Adapter(model, "plus", source=source)(images)
    b = mt3.Adapter(model, "plus", source=source.float() / 255)(images.float() / 255)
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
    adapter = mt3.Adapter(net, "plus", source=source, batch=40, support=40)
    torch.testing.assert_close(adapter(source), net(source), atol=1e-5, rtol=0)
    assert sum(name.startswith("moments/") for name in adapter.state_dict()) == 3


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
        found = mt3.Adapter(net, "plus", source=source, batch=8, support=4)(images)  # these images alone count
        with torch.no_grad():
            before, values = (net.norm(v if first else v.movedim(1, -1)) for v in (net.conv(source), net.conv(images)))
        (m, q), (now_m, now_q) = (moments(v, 1 if first else -1) for v in (before, values))
        scale = ((q - m**2 + EPSILON) / (now_q - now_m**2 + EPSILON)).sqrt()
        by_hand = (values.mean((2, 3) if first else (1, 2)) - now_m) * scale + m
        torch.testing.assert_close(found, by_hand, atol=1e-4, rtol=0)


def test_an_adapter_of_another_type_and_values_that_are_not_finite():
    net, source, images = make_net("group"), make_images(30), make_images(8, seed=3)
    adapter = mt3.Adapter(net, "plus", source=source)
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
