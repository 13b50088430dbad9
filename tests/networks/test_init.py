"""First weights."""

import pytest
import torch
from torch import nn

import mt3
from mt3.config.config import CHOICES
from mt3.networks.init import INITS, centre_filters, keep, zero_last_convolutions
from mt3.networks.resnet import Block


def test_every_choice_of_a_config_is_there():
    assert tuple(INITS) == CHOICES["first_weights"]


def test_blocks_that_start_at_zero_are_the_identity():
    block = Block(4, 4, 1, 2, activated_shortcut=False)
    zero_last_convolutions(block)
    x = torch.rand(2, 4, 8, 8)
    with torch.no_grad():
        block.conv2.bias.zero_()
        assert torch.equal(block(x), x)


def test_centred_filters_sum_to_zero_and_are_wider():
    model = mt3.MT3Model("resnet8x4", 10)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    keep(model)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    centre_filters(model)
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}
    assert torch.equal(layers["backbone.early.stem"].weight, before["backbone.early.stem.weight"])
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed == {f"{name}.weight" for name in layers} - {"backbone.early.stem.weight"}
    for name in changed:
        weight, old = dict(model.named_parameters())[name].detach().flatten(1), before[name].flatten(1)
        torch.testing.assert_close(weight.mean(1), torch.zeros(len(weight)), atol=1e-6, rtol=0)
        assert weight.std().item() == pytest.approx(2**0.5 * old.std().item(), rel=1e-4)
