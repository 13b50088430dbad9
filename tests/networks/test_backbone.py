"""Backbones by their names."""

import pytest
import torch

from mt3.networks.backbone import Backbone, make_backbone
from mt3.support.errors import InputError


@pytest.mark.parametrize(("width", "groups"), [(32, 16), (64, 16), (16, 8), (8, 4), (2, 1)])
def test_default_groups(width, groups):
    assert make_backbone(f"resnet8x{width}").late.norm.num_groups == groups


def test_a_name_gives_depth_width_and_groups():
    backbone = make_backbone("resnet14x12g3")
    assert isinstance(backbone, Backbone)
    assert len(backbone.early.stage1) == len(backbone.late.stage) == 2  # blocks of two layers, in three stages
    assert backbone.early.stem.weight.shape == (12, 3, 3, 3)
    assert backbone.late.norm.num_groups == 3
    assert backbone.features == 48
    with torch.no_grad():
        assert backbone(torch.rand(2, 3, 32, 32)).shape == (2, 48)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet2x32", r"6n\+2 layers from 8 to 1202 .* got 2"),
        ("resnet10x32", r"6n\+2 layers from 8 to 1202 .* got 10"),
        ("resnet1208x1", r"6n\+2 layers from 8 to 1202 .* got 1208"),
        ("resnet60002x32", "named as resnet26x32, or resnet26x32g8, got 'resnet60002x32'"),
        ("resnet26.0x32", r"named as resnet26x32, or resnet26x32g8, got 'resnet26\.0x32'"),
        ("resnet26", "named as resnet26x32"),
        ("resnet8x4 ", "named as resnet26x32"),
        ("Resnet8x4", "named as resnet26x32"),
        ("resnet8x٤", "named as resnet26x32"),
        (10, "named as resnet26x32, or resnet26x32g8, got '10'"),
        (None, "named as resnet26x32, or resnet26x32g8, got 'None'"),
        ("resnet8x0", "width that 1 groups divide, got 0"),
        ("resnet8x12g5", "width that 5 groups divide, got 12"),
        ("resnet8x12g0", "width that 0 groups divide, got 12"),
        ("resnet1202x512", "at most 1000000000 weights, got resnet1202x512"),
    ],
)
def test_other_names_are_refused(name, message):
    with pytest.raises(InputError, match=message):
        make_backbone(name)
