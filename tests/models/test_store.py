"""Models on disk: what is saved comes back, and what does not fit is refused."""

import json
from typing import get_type_hints

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import mt3
from mt3.config.adaptation import BOUNDS


@pytest.mark.parametrize(
    "change",
    [
        {"backbone": 8},
        {"backbone": "resnet9x4"},
        {"hidden": None},
        {"adaptation": {"steps": 1.5}},
        {"adaptation": 1},
        {"adaptation": {"colour": 1}},
        {"classes": "ab"},
        {"colour": 1},
        {"adaptation": {"views": 0}},
        {"classes": ["a"]},
        {"classes": ["a", "b", "c", 4]},
    ],
)
def test_damaged_config_is_refused(tmp_path, change):
    mt3.MT3Model("resnet8x4", 4).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(mt3.InputError, match=r"config\.json"):
        mt3.load(tmp_path)
    if "adaptation" in change or "backbone" in change:
        with pytest.raises(mt3.InputError):
            mt3.MT3Model.from_pretrained(tmp_path)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    mt3.MT3Model("resnet8x4", 4).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["backbone.early.stem.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(mt3.InputError, match=r"backbone\.early\.stem\.weight should be \(4, 3, 3, 3\) and is absent"):
        mt3.load(tmp_path)
    with pytest.raises(mt3.InputError, match=r"backbone\.early\.stem\.weight should be"):
        mt3.MT3Model.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "low", "high"),
    [
        ("num_classes", 10**8, 2, 100_000),
        ("hidden", 10**9, 0, 65536),
        ("projection", 0, 1, 65536),
        ("size", 1 << 20, 16, 512),
        ("adaptation.steps", 10**9, 0, 10_000),
        ("adaptation.lr", 1e40, 0.0, 1e30),
        ("adaptation.views", 999999999, 1, 10_000),
        ("adaptation.clip", -1.0, 1e-30, 1e30),
        ("adaptation.gate", 1.5, 0.0, 1.0),
    ],
)
def test_every_number_of_a_config_is_bounded(tmp_path, field, value, low, high):
    mt3.MT3Model("resnet8x4", 4, adaptation=mt3.Adaptation()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    where, _, name = field.rpartition(".")
    (config[where] if where else config)[name] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    for read in (mt3.load, mt3.MT3Model.from_pretrained):
        with pytest.raises(mt3.InputError) as error:
            read(tmp_path)
        assert f"Expected {name} to be a " in str(error.value)
        assert str(error.value).endswith(f"number from {low} to {high}, got {value}.")
    for bounded, bounds in ((mt3.MT3Model.__init__, mt3.MT3Model.LIMITS), (mt3.Adaptation, BOUNDS)):
        hints = get_type_hints(bounded)
        assert {name for name, hint in hints.items() if hint in (int, int | None, float, float | None)} == bounds.keys()


def test_a_config_of_endless_lists_is_no_json(tmp_path):
    mt3.MT3Model("resnet8x4", 4).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(mt3.InputError, match="is not valid JSON"):
        mt3.load(tmp_path)


def test_shapes_are_compared_before_anything_is_allocated(tmp_path, monkeypatch):
    mt3.MT3Model("resnet8x4", 4).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"backbone": "resnet26x768"}))  # 3 GB
    made = []
    monkeypatch.setattr(mt3.MT3Model, "reset_parameters", lambda self: made.append(self.device.type))
    with pytest.raises(mt3.InputError, match=r"conv1\.bias should be \(768,\) and is \(4,\)"):
        mt3.load(tmp_path)
    assert made == ["meta"]


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        (torch.bool, True, "expected weights of type F64, F32, F16, BF16, but backbone.late.norm.bias is BOOL"),
        (torch.int64, 1, "but backbone.late.norm.bias is I64"),
        (torch.complex64, 1j, "but backbone.late.norm.bias is C64"),
        (torch.float8_e4m3fn, 1.0, "but backbone.late.norm.bias is F8_E4M3"),
        (torch.float32, float("nan"), "backbone.late.norm.bias has weights that are not finite"),
        (torch.float16, float("inf"), "backbone.late.norm.bias has weights that are not finite"),
        (torch.float64, 1e300, "backbone.late.norm.bias has weights that are not finite"),
    ],
)
def test_weights_are_finite_and_of_a_floating_type(tmp_path, dtype, value, message):
    mt3.MT3Model("resnet8x4", 4).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["backbone.late.norm.bias"] = torch.full(
        (16,), value, dtype=torch.complex128 if dtype.is_complex else torch.float64
    ).to(dtype)
    save_file(weights, tmp_path / "model.safetensors")
    for read in (mt3.load, mt3.MT3Model.from_pretrained):
        with pytest.raises(mt3.InputError, match=message):
            read(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_floating_types_become_float32(tmp_path, dtype):
    model = mt3.MT3Model("resnet8x4", 4).to(dtype)
    model.save_pretrained(tmp_path)
    for loaded in (mt3.load(tmp_path), mt3.MT3Model.from_pretrained(tmp_path)):
        for name, p in loaded.named_parameters():
            assert p.requires_grad
            assert p.dtype == torch.float32
            assert torch.equal(p, model.state_dict()[name].float())


def test_a_loaded_model_does_not_change_with_its_file(tmp_path):
    mt3.MT3Model("resnet8x4", 4).save_pretrained(tmp_path)
    loaded = mt3.load(tmp_path)
    before = loaded.backbone.early.stem.weight.detach().clone()
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:  # in place
        file.write(bytes(path.stat().st_size))
    assert torch.equal(loaded.backbone.early.stem.weight, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_default_type_changes_neither_a_new_nor_a_loaded_model(tmp_path, dtype):
    model = mt3.MT3Model("resnet8x4", 4)
    model.save_pretrained(tmp_path)
    model.reset_parameters(torch.Generator().manual_seed(3))
    torch.set_default_dtype(dtype)
    try:
        loaded = [mt3.load(tmp_path), mt3.MT3Model.from_pretrained(tmp_path)]
        new = mt3.MT3Model("resnet8x4", 4)
        new.reset_parameters(torch.Generator().manual_seed(3))
    finally:
        torch.set_default_dtype(torch.float32)
    weights = load_file(tmp_path / "model.safetensors")
    for found, wanted in ((loaded[0], weights), (loaded[1], weights), (new, model.state_dict())):
        for name, value in found.state_dict().items():
            assert value.dtype == torch.float32
            assert torch.equal(value, wanted[name])


@pytest.mark.parametrize("path", ["", None, 3])
def test_no_path_is_no_model(tmp_path, monkeypatch, path):
    mt3.MT3Model("resnet8x4", 4).save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mt3.InputError, match=f"Expected the path of a run or model, .* got {path!r}"):
        mt3.load(path)
    assert mt3.load(".").num_classes == 4


def test_a_name_that_no_path_can_have_is_said():
    with pytest.raises(mt3.InputError, match=r"^Cannot look into x.*x: File name too long; give the path of a run"):
        mt3.load("x" * 5000)


def test_pickled_weights_are_refused(tmp_path):
    with pytest.raises(mt3.InputError, match=r"got pytorch_model\.bin, which is not unpickled"):
        mt3.MT3Model._load_as_pickle(mt3.MT3Model("resnet8x4", 4), "x/pytorch_model.bin", "cpu", True)


def test_saved_model_comes_back_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    adaptation = mt3.Adaptation(lr=0.05)
    model = mt3.MT3Model("resnet8x4", 4, hidden=8, adaptation=adaptation, classes=["a", "b", "c", "d"])
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["num_classes"], config["adaptation"]["lr"], config["classes"]) == (4, 0.05, ["a", "b", "c", "d"])
    images = torch.rand(2, 3, 32, 32)
    for loaded in (mt3.MT3Model.from_pretrained(tmp_path), mt3.load(tmp_path)):
        np.testing.assert_array_equal(loaded(images).detach(), model(images).detach())
        assert (loaded.adaptation.lr, loaded.classes) == (0.05, ["a", "b", "c", "d"])


def test_how_a_model_adapts_is_saved_with_it(tmp_path):
    numbers = {
        "steps": np.int64(3),
        "lr": np.float32(0.5),
        "clip": None,
        "views": np.uint8(7),
        "gate": np.float64(0.25),
    }
    adaptation = mt3.Adaptation("byol", **numbers, layers="norm", variant="official")
    mt3.MT3Model("resnet8x4", 4, adaptation=adaptation).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())["adaptation"]
    wanted = {"objective": "byol", "steps": 3, "lr": 0.5, "clip": None, "views": 7, "layers": "norm", "gate": 0.25}
    assert saved == mt3.Adaptation().to_dict() | wanted | {"variant": "official"}
    for loaded in (mt3.load(tmp_path), mt3.MT3Model.from_pretrained(tmp_path)):
        assert loaded.adaptation == adaptation
        assert loaded.classify.bias is not None
        assert loaded.hidden.bias is None  # the authors' network


@pytest.mark.parametrize("objective", ["rotation", None])
def test_a_model_without_an_adaptation_of_its_own_has_the_papers(tmp_path, objective):
    mt3.MT3Model("resnet8x4", 4, objective).save_pretrained(tmp_path)
    for loaded in (mt3.load(tmp_path), mt3.MT3Model.from_pretrained(tmp_path)):
        assert loaded.adaptation == mt3.Adaptation(objective)


def test_a_loaded_model_keeps_its_size_and_precision(tmp_path):
    mt3.MT3Model("resnet8x4g2", 4, size=48, precision="bfloat16").save_pretrained(tmp_path)
    for loaded in (mt3.load(tmp_path), mt3.MT3Model.from_pretrained(tmp_path)):
        assert (loaded.size, loaded.precision, loaded.backbone.late.norm.num_groups) == (48, "bfloat16", 2)
