"""Batch normalisation: refused, frozen, replaced."""

import pytest
import torch
from torch import nn

import mt3
from foreign import ConvNet, coloured, resnet


def test_a_network_that_would_update_its_statistics_is_refused_with_both_ways_out():
    net = ConvNet(nn.BatchNorm2d)
    with pytest.raises(mt3.InputError, match=r"\(layers\.1\).*\.eval\(\).*mt3\.convert_batchnorm\(module\)"):
        mt3.MT3Model(net, 3)
    model = mt3.MT3Model(net.eval(), 3)
    with pytest.raises(mt3.InputError, match="batch normalisation"):
        mt3.Adapter(model.train())
    with pytest.raises(mt3.InputError, match="batch normalisation"):  # always the batch's own statistics
        mt3.MT3Model(ConvNet(lambda c: nn.BatchNorm2d(c, track_running_stats=False)).eval(), 3)


def test_frozen_statistics_stay_in_adapting_and_meta_training():
    model = mt3.MT3Model(resnet(), 2)
    before = {n: b.clone() for n, b in model.named_buffers()}
    weights = {n: p.detach().clone() for n, p in model.named_parameters()}
    assert any("running_mean" in name for name in before)
    images, labels = coloured(20)
    mt3.train(model, (images, labels), epochs=1, tasks=2, task_size=2)  # with an average of the weights, too
    mt3.Adapter(model, views=2)(torch.rand(2, 3, 16, 16))
    assert all(torch.equal(b, before[n]) for n, b in model.named_buffers())
    assert any(not torch.equal(p, weights[n]) for n, p in model.named_parameters())


def test_frozen_statistics_are_a_fixed_affine_map():
    net = nn.Sequential(nn.BatchNorm2d(3)).eval()
    net[0].running_mean.copy_(torch.tensor([0.1, 0.2, 0.3]))
    net[0].running_var.copy_(torch.tensor([1.0, 4.0, 0.25]))
    net[0].weight.data = torch.tensor([1.0, 2.0, 3.0])
    model, x = mt3.MT3Model(net, 2), torch.rand(2, 3, 16, 16)
    by_hand = torch.stack([(x[:, 0] - 0.1) / 1, 2 * (x[:, 1] - 0.2) / 2, 3 * (x[:, 2] - 0.3) / 0.5], 1).mean((2, 3))
    torch.testing.assert_close(model.backbone(x), by_hand, rtol=1e-4, atol=1e-4)  # epsilon is 1e-5


def test_group_norms_take_over_scale_and_shift():
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Sequential(nn.BatchNorm2d(5, affine=False)))
    net[1].weight.data, net[1].bias.data = torch.arange(6.0), -torch.arange(6.0)
    twin = mt3.convert_batchnorm(net, groups=4)
    assert isinstance(net[1], nn.BatchNorm2d)  # a copy was made
    assert [type(m) for m in (twin[1], twin[2][0])] == [nn.GroupNorm] * 2
    assert (twin[1].num_groups, twin[2][0].num_groups, twin[2][0].affine) == (3, 1, False)  # two channels at least
    x = torch.rand(2, 6, 4, 4)
    apart = x.view(2, 3, 2, 4, 4)
    mean, std = apart.mean((2, 3, 4), keepdim=True), apart.var((2, 3, 4), keepdim=True, unbiased=False).add(1e-5).sqrt()
    scale = torch.arange(6.0).view(1, 6, 1, 1)
    torch.testing.assert_close(twin[1](x), ((apart - mean) / std).view_as(x) * scale - scale)
    assert isinstance(mt3.convert_batchnorm(nn.BatchNorm2d(8)), nn.GroupNorm)
    trained = mt3.MT3Model(mt3.convert_batchnorm(ConvNet(nn.BatchNorm2d)), 3)
    assert mt3.Adapter(trained, views=1)(torch.rand(1, 3, 16, 16)).shape == (1, 3)


def test_ours_has_none():
    assert not any(isinstance(m, nn.BatchNorm2d) for m in mt3.MT3Model("resnet8x4").train().modules())
