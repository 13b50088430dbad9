"""`mt3.train`: a model of one's own, in place, with and without a directory."""

import tempfile

import pytest
import torch
from torch import nn

import mt3
from foreign import ConvNet, adapted_by_hand, coloured
from mt3.models.store import tensors_hash

SMALL = {"epochs": 1, "tasks": 2, "task_size": 2}


def fresh(seed: int = 0) -> mt3.MT3Model:
    torch.manual_seed(seed)
    return mt3.MT3Model(ConvNet(), num_classes=2)


def bits(model: mt3.MT3Model) -> str:
    return tensors_hash(model.state_dict())


def test_the_lines_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    x, y = coloured(45, classes=3)
    model = mt3.MT3Model(ConvNet(), num_classes=3)
    assert mt3.train(model, (x, y), method="supervised", epochs=80, task_size=9, shift_group=None) is model
    assert mt3.train(model, (x, y), method="mt3", epochs=2) is model
    images = torch.from_numpy(x[:3]).permute(0, 3, 1, 2)
    logits = mt3.Adapter(model)(images)
    assert logits.argmax(1).tolist() == [0, 1, 2]
    torch.testing.assert_close(logits[0], adapted_by_hand(model, images[0] / 255), rtol=1e-4, atol=1e-4)
    assert (model.adaptation.lr, model.adaptation.clip, model.adaptation.views) == (1.0, 1.0, 8)  # as it was trained to
    # without `out` nothing is written; PyTorch makes a folder of its own where temporary files go
    assert [path for path in tmp_path.iterdir() if not path.name.startswith("torchinductor")] == []


def test_a_run_goes_on_with_the_same_bits(tmp_path):
    data = coloured(60)
    whole = mt3.train(fresh(), data, out=tmp_path / "whole", **SMALL)
    mt3.train(fresh(), data, out=tmp_path / "run", options=mt3.RunOptions(max_steps=5, checkpoint_every=2), **SMALL)
    resumed = mt3.train(fresh(7), data, out=tmp_path / "run", options=mt3.RunOptions(resume=True), **SMALL)
    assert bits(resumed) == bits(whole) != bits(fresh())
    assert bits(mt3.load(tmp_path / "run", backbone=ConvNet())) == bits(whole)
    other = mt3.MT3Model(nn.Sequential(nn.Conv2d(3, 4, 3)), 2)
    with pytest.raises(mt3.InputError, match="checkpoint is of another network"):
        mt3.train(other, data, out=tmp_path / "run", options=mt3.RunOptions(resume=True), **SMALL)


def test_a_start_comes_first_and_is_taken_over(tmp_path):
    data, fields = coloured(), SMALL | {"start": "supervised:2"}
    whole = mt3.train(fresh(), data, out=tmp_path / "run", **fields)
    assert (tmp_path / "run" / "start" / "model.safetensors").exists()
    one_by_one = mt3.train(fresh(), data, "supervised", epochs=2)
    mt3.train(one_by_one, data, **SMALL)
    assert bits(one_by_one) == bits(whole)


def test_inner_steps_computed_again_train_the_same():
    data = coloured()
    usual, again = (mt3.train(fresh(), data, options=mt3.RunOptions(recompute=r), **SMALL) for r in (False, True))
    for name, p in usual.named_parameters():
        torch.testing.assert_close(again.get_parameter(name), p, rtol=1e-4, atol=1e-6)
    ours = []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = mt3.MT3Model("resnet8x4", 2)
        ours.append(bits(mt3.train(model, data, options=mt3.RunOptions(recompute=recompute), **SMALL)))
    assert ours[0] == ours[1]


def test_frozen_weights_are_not_trained():
    model = fresh()
    model.backbone.early.module.layers[0].requires_grad_(False)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    mt3.train(model, coloured(), **SMALL)
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved
    assert not any("layers.0." in name for name in moved)
    with pytest.raises(mt3.InputError, match="No weight of the model is to be trained"):
        mt3.train(model.requires_grad_(False), coloured(), **SMALL)


def test_what_does_not_fit_is_one_sentence():
    data = coloured()
    for model, method, words in (
        (ConvNet(), "mt3", "Expected an MT3Model, got a ConvNet"),
        (mt3.MT3Model(ConvNet(), 3), "mt3", "The model has 3 classes, the data 2"),
        (mt3.MT3Model(ConvNet(), 2, size=32), "mt3", "for images of 32 pixels, the data has 16"),
        (mt3.MT3Model(ConvNet(), 2, "rotation"), "mt3", "method mt3 trains byol, the model has rotation"),
        (mt3.MT3Model(ConvNet(), 2, None), "jt", "method jt trains byol, the model has no objective"),
        (fresh(), "magic", "Unknown method 'magic'"),
    ):
        with pytest.raises(mt3.InputError, match=words):
            mt3.train(model, data, method)
    with pytest.raises(mt3.InputError, match=r"data set of mt3\.data, a pair of arrays"):
        mt3.train(fresh(), [1, 2])
    with pytest.raises(mt3.InputError, match="Unknown field 'epoch'"):
        mt3.train(fresh(), data, epoch=2)
