"""The network against a hand-written one, its size, and its refusals."""

import json
from typing import get_type_hints

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import mt3
import reference
from mt3.config.config import make_config
from mt3.data import load_digits
from mt3.models.classifier import BOUNDS, count_parameters, refuse_batch_norm
from mt3.training.state import build_model


def parameters_by_formula(depth: int, width: int, classes: int, head: str, selfsup: str) -> int:
    """Count convolutions, norms and heads from the architecture's description."""
    n = (depth - 2) // 6

    def stage(inputs: int, outputs: int) -> int:
        total = 0
        for i in range(n):
            first = inputs if i == 0 else outputs
            total += 2 * first + (9 * first + 1) * outputs + 2 * outputs + (9 * outputs + 1) * outputs
        return total

    f = 4 * width
    total = 27 * width + stage(width, width) + stage(width, 2 * width) + stage(2 * width, f) + 2 * f
    total += {"mt3": (f + 1) * 256, "official": f * 256, "linear": 0}[head]
    total += (f + 1) * classes if head == "linear" else 257 * classes
    total -= classes if (head, selfsup) == ("official", "none") else 0
    if selfsup == "byol":
        total += 257 * 128 if head == "mt3" else 257 * 256 + 257 * 128
        total += 129 * 256 + 257 * 128
    if selfsup == "rotation":
        total += stage(2 * width, f) + 2 * f + (f + 1) * 4
    return total


@pytest.mark.parametrize(
    ("depth", "width", "head", "selfsup"),
    [
        (26, 32, "mt3", "byol"),
        (26, 32, "official", "byol"),
        (26, 32, "mt3", "none"),
        (26, 32, "official", "none"),
        (26, 16, "linear", "rotation"),
        (26, 16, "linear", "none"),
        (8, 8, "mt3", "byol"),
        (14, 12, "official", "rotation"),
    ],
)
def test_parameter_count(depth, width, head, selfsup):
    model = mt3.MT3Model(10, depth=depth, width=width, head=head, selfsup=selfsup)
    assert count_parameters(model) == parameters_by_formula(depth, width, 10, head, selfsup)
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("head", ["mt3", "official"])
def test_outputs_equal_the_hand_written_network(head):
    model = mt3.MT3Model(5, depth=8, width=4, head=head, hidden=7, projection=6).double()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
        images = torch.rand(3, 3, 32, 32, dtype=torch.float64)
        got = model(images, full=True)
        want = reference.network(dict(model.named_parameters()), images, 2, torch.relu)
    for a, b in zip((got.logits, got.projection, got.prediction), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(model(images), got.logits)


@pytest.mark.parametrize(("width", "groups"), [(32, 16), (64, 16), (16, 8), (8, 4), (2, 1)])
def test_default_groups(width, groups):
    assert mt3.MT3Model(10, depth=8, width=width).norm.num_groups == groups


def test_initial_weights_are_glorot_uniform_and_seeded():
    model = mt3.MT3Model(10)
    model.reset_parameters(torch.Generator().manual_seed(3))
    weight = model.stage3[1].conv1.weight
    bound = (6 / (9 * 128 + 9 * 128)) ** 0.5
    assert weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.01)
    assert model.stage3[1].conv1.bias.abs().max() == 0
    again = mt3.MT3Model(10)
    again.reset_parameters(torch.Generator().manual_seed(3))
    assert torch.equal(again.stage3[1].conv1.weight, weight)


def test_uint8_and_float_images_are_the_same():
    model = mt3.MT3Model(10, depth=8, width=4)
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(model(images), model(images.float() / 255))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 10}, r"6n\+2 layers .* got 10"),
        ({"depth": 2}, "depth to be a whole number from 8 to 1202, got 2"),
        ({"depth": 60002}, "depth to be a whole number from 8 to 1202, got 60002"),
        ({"depth": 26.0}, r"depth .* got 26\.0"),
        ({"depth": 1202, "width": 512}, "at most 1000000000 weights, got about 198"),
        ({"hidden": 65536, "projection": 65536}, "at most 1000000000 weights"),
        ({"head": "cnn"}, "Unknown head 'cnn': expected one of mt3, official, linear"),
        ({"selfsup": "simclr"}, "Unknown self-supervised task 'simclr'"),
        ({"head": "linear"}, "shares the hidden layer"),
        ({"width": 12, "groups": 5}, "width that 5 groups divide, got 12"),
        ({"num_classes": 1}, "num_classes to be a whole number from 2 to 100000, got 1"),
        ({"groups": 0}, "groups to be a whole number from 1 to 4096, got 0"),
        ({"clip_mode": "soft"}, "Unknown clip_mode 'soft': expected one of global, tensor"),
        ({"adapt_lr": float("inf")}, r"adapt_lr to be a number from 0\.0 to 1e\+30, got inf"),
        ({"adapt_clip": 0.0}, r"adapt_clip to be a number from 1e-30 to 1e\+30, got 0\.0"),
        ({"adapt_views": True}, "adapt_views .* got True"),
        ({"num_classes": np.int64(10)}, "num_classes to be Python's own number"),
        ({"classes": ["a"]}, "10 names of classes, got 1"),
        ({"classes": [*"abcdefghi", 9]}, "10 names of classes, got 10"),
    ],
)
def test_bad_models_are_refused(arguments, message):
    with pytest.raises(mt3.InputError, match=message):
        mt3.MT3Model(**({"num_classes": 10} | arguments))


def test_batch_norm_is_refused_with_a_reason():
    with pytest.raises(mt3.InputError, match=r"\(1\).*statistics are that image's"):
        refuse_batch_norm(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    refuse_batch_norm(mt3.MT3Model(10, depth=8, width=4))


@pytest.mark.parametrize(
    "change",
    [
        {"depth": "8"},
        {"width": None},
        {"adapt_steps": 1.5},
        {"fresh_views": 1},
        {"classes": "ab"},
        {"colour": 1},
        {"adapt_views": 0},
        {"classes": ["a"]},
        {"classes": ["a", "b", "c", 4]},
    ],
)
def test_damaged_config_is_refused(tmp_path, change):
    mt3.MT3Model(4, depth=8, width=4).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(mt3.InputError, match=r"config\.json"):
        mt3.load(tmp_path)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    mt3.MT3Model(4, depth=8, width=4).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["stem.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(mt3.InputError, match=r"stem\.weight should be \(4, 3, 3, 3\) and is absent"):
        mt3.load(tmp_path)
    with pytest.raises(mt3.InputError, match=r"stem\.weight should be"):
        mt3.MT3Model.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "low", "high"),
    [
        ("num_classes", 10**8, 2, 100_000),
        ("depth", 60002, 8, 1202),
        ("width", 1 << 20, 1, 4096),
        ("groups", -1, 1, 4096),
        ("hidden", 10**9, 1, 65536),
        ("projection", 0, 1, 65536),
        ("adapt_steps", 10**9, 0, 10_000),
        ("adapt_lr", float("nan"), 0.0, 1e30),
        ("adapt_views", 999999999, 1, 10_000),
        ("adapt_clip", -1.0, 1e-30, 1e30),
        ("crop_max", 33, 20, 32),
        ("adapt_average", 10**7, 0, 10_000),
        ("adapt_gate", 1.5, 0.0, 1.0),
        ("learned_rates", 10**9, 0, 10_000),
    ],
)
def test_every_number_of_a_config_is_bounded(tmp_path, field, value, low, high):
    mt3.MT3Model(4, depth=8, width=4).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: value}))
    for read in (mt3.load, mt3.MT3Model.from_pretrained):
        with pytest.raises(mt3.InputError) as error:
            read(tmp_path)
        assert f"Expected {field} to be a " in str(error.value)
        assert str(error.value).endswith(f"number from {low} to {high}, got {value}.")
    numbers = {name for name, hint in get_type_hints(mt3.MT3Model.__init__).items() if "int" in str(hint)}
    numbers |= {name for name, hint in get_type_hints(mt3.MT3Model.__init__).items() if "float" in str(hint)}
    assert numbers == BOUNDS.keys()


def test_a_config_of_endless_lists_is_no_json(tmp_path):
    mt3.MT3Model(4, depth=8, width=4).save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(mt3.InputError, match="is not valid JSON"):
        mt3.load(tmp_path)


def test_shapes_are_compared_before_anything_is_allocated(tmp_path, monkeypatch):
    mt3.MT3Model(4, depth=8, width=4).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"depth": 26, "width": 768}))  # 3 GB
    made = []
    monkeypatch.setattr(mt3.MT3Model, "reset_parameters", lambda self: made.append(self.stem.weight.device.type))
    with pytest.raises(mt3.InputError, match=r"hidden\.weight should be \(256, 3072\) and is \(256, 16\)"):
        mt3.load(tmp_path)
    assert made == ["meta"]


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        (torch.bool, True, "expected weights of type F64, F32, F16, BF16, but norm.bias is BOOL"),
        (torch.int64, 1, "but norm.bias is I64"),
        (torch.complex64, 1j, "but norm.bias is C64"),
        (torch.float8_e4m3fn, 1.0, "but norm.bias is F8_E4M3"),
        (torch.float32, float("nan"), "norm.bias has weights that are not finite"),
        (torch.float16, float("inf"), "norm.bias has weights that are not finite"),
        (torch.float64, 1e300, "norm.bias has weights that are not finite"),
    ],
)
def test_weights_are_finite_and_of_a_floating_type(tmp_path, dtype, value, message):
    mt3.MT3Model(4, depth=8, width=4).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["norm.bias"] = torch.full((16,), value, dtype=torch.complex128 if dtype.is_complex else torch.float64).to(
        dtype
    )
    save_file(weights, tmp_path / "model.safetensors")
    for read in (mt3.load, mt3.MT3Model.from_pretrained):
        with pytest.raises(mt3.InputError, match=message):
            read(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_other_floating_types_become_float32(tmp_path, dtype):
    model = mt3.MT3Model(4, depth=8, width=4).to(dtype)
    model.save_pretrained(tmp_path)
    for loaded in (mt3.load(tmp_path), mt3.MT3Model.from_pretrained(tmp_path)):
        for name, p in loaded.named_parameters():
            assert p.requires_grad
            assert p.dtype == torch.float32
            assert torch.equal(p, model.state_dict()[name].float())


def test_a_loaded_model_does_not_change_with_its_file(tmp_path):
    mt3.MT3Model(4, depth=8, width=4).save_pretrained(tmp_path)
    loaded = mt3.load(tmp_path)
    before = loaded.stem.weight.detach().clone()
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:  # in place
        file.write(bytes(path.stat().st_size))
    assert torch.equal(loaded.stem.weight, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_default_type_changes_neither_a_new_nor_a_loaded_model(tmp_path, dtype):
    model = mt3.MT3Model(4, depth=8, width=4, learned_rates=1)
    model.save_pretrained(tmp_path)
    model.reset_parameters(torch.Generator().manual_seed(3))
    torch.set_default_dtype(dtype)
    try:
        loaded = [mt3.load(tmp_path), mt3.MT3Model.from_pretrained(tmp_path)]
        new = mt3.MT3Model(4, depth=8, width=4, learned_rates=1)
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
    mt3.MT3Model(4, depth=8, width=4).save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mt3.InputError, match=f"Expected the path of a run or model, .* got {path!r}"):
        mt3.load(path)
    assert mt3.load(".").num_classes == 4


def test_a_name_that_no_path_can_have_is_said():
    with pytest.raises(mt3.InputError, match=r"^Cannot look into x.*x: File name too long; give the path of a run"):
        mt3.load("x" * 5000)


def test_pickled_weights_are_refused(tmp_path):
    with pytest.raises(mt3.InputError, match=r"got pytorch_model\.bin, which is not unpickled"):
        mt3.MT3Model._load_as_pickle(mt3.MT3Model(4, depth=8, width=4), "x/pytorch_model.bin", "cpu", True)


def test_the_authors_baseline_has_no_bias_before_its_classes():
    """In their code, unlike the class layer beside a projector; with the preset's own method and head."""
    found = {}
    for method in ("baseline", "mt3", "jt"):
        config = make_config(method, "digits", "official", overrides={"depth": 8, "width": 4})
        model = build_model(config, load_digits())
        found[method] = (model.hidden.bias is not None, model.classify.bias is not None)
    assert found == {"baseline": (False, False), "mt3": (False, True), "jt": (False, True)}


def test_saved_model_comes_back_offline(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = mt3.MT3Model(4, depth=8, width=4, hidden=8, adapt_lr=0.05, classes=["a", "b", "c", "d"])
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["num_classes"], config["adapt_lr"], config["classes"]) == (4, 0.05, ["a", "b", "c", "d"])
    images = torch.rand(2, 3, 32, 32)
    for loaded in (mt3.MT3Model.from_pretrained(tmp_path), mt3.load(tmp_path)):
        np.testing.assert_array_equal(loaded(images).detach(), model(images).detach())
        assert (loaded.adapt_lr, loaded.classes) == (0.05, ["a", "b", "c", "d"])
