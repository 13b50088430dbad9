"""Weights of a ResNet for one of twice the width."""

import torch

from mt3.networks.resnet import ResNet
from mt3.networks.widen import channel_maps, widen_inputs, widen_weights


def test_every_channel_is_there_twice_and_groups_stay_whole():
    for channels, chosen in channel_maps(16).items():
        assert torch.bincount(chosen, minlength=channels).tolist() == [2] * channels
        size = channels // 8  # of a group, in both networks
        blocks = chosen.view(-1, size)
        assert (blocks[:, :1] % size == 0).all()
        assert torch.equal(blocks, blocks[:, :1] + torch.arange(size))


def test_inner_channels_stay_inside_the_padding():
    maps = channel_maps(4)
    assert maps[4].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert maps[8].tolist() == [0, 1, 6, 7, *(2 + c for c in maps[4].tolist()), 0, 1, 6, 7]


def test_a_pair_of_copies_has_the_old_weight_in_sum():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 16, 3, 3, generator=generator, dtype=torch.double)
    wide = widen_inputs(weight, 16, generator)
    assert wide.shape == (64, 32, 3, 3)
    assert (wide[:, :16] + wide[:, 16:] - weight).abs().max() < 1e-12
    apart = (wide[:, :16] - wide[:, 16:]) / 2
    assert abs(apart.std() / weight.std() - 0.5) < 0.02
    assert abs(wide.flatten(1).norm(dim=1).mean() / weight.flatten(1).norm(dim=1).mean() - 1) < 0.02


def test_copies_are_told_apart_by_their_gradients():
    generator = torch.Generator().manual_seed(0)
    narrow, wide = ResNet(8, 16, 8), ResNet(8, 32, 16)
    wide.load_state_dict(widen_weights(narrow.state_dict(), 16, generator))
    images = torch.rand(4, 3, 16, 16, generator=generator)
    assert (wide(images) - narrow(images)[:, channel_maps(16)[64]]).abs().max() < 1e-5
    wide(images).square().sum().backward()
    first, second = wide.early.stem.weight.grad.chunk(2)
    assert (first - second).norm() > 0.1 * first.norm()
