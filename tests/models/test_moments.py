"""Moments beside a model's weights: written, read strictly, and used by plus where no images are given."""

import numpy as np
import pytest
import safetensors.torch
import torch

import mt3
from mt3.cli.main import main
from mt3.data import load_dataset
from mt3.models.moments import read_moments, source_moments
from mt3.models.store import MOMENTS_FILE, save_model

NORMS = 7  # of 8 layers


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    save_model(mt3.MT3Model("resnet8x4g2", 10, hidden=6, projection=5), tmp_path / "model")
    return tmp_path / "model"


def test_the_command_writes_what_plus_needs(folder, capsys):
    digits = load_dataset("digits")
    assert mt3.load(folder).moments is None
    assert main(["moments", str(folder), "--data", "digits", "--images", "40"]) == 0
    assert f"behind {NORMS} norms, on 40 images by 10 classes" in capsys.readouterr().out
    rows = np.linspace(0, len(digits.train_images) - 1, 40).astype(int)
    source = torch.from_numpy(digits.train_images[rows]).permute(0, 3, 1, 2)
    model, images = mt3.load(folder), torch.rand(20, 3, 32, 32)
    with torch.no_grad():
        by_hand = source_moments(model, source)
    assert model.moments is not None
    assert len(by_hand.moments) == len(model.moments.moments) == NORMS
    assert by_hand.mix.sum() == pytest.approx(1)
    for name, found in model.moments.tensors().items():
        torch.testing.assert_close(found, by_hand.tensors()[name])
    alone, given = mt3.Adapter(model, "plus")(images), mt3.Adapter(model, "plus", source=source)(images)
    torch.testing.assert_close(alone, given, atol=1e-5, rtol=0)
    assert (alone - model(images)).abs().max() > 1e-4


def test_moments_go_with_the_weights_that_they_are_of(folder):
    assert main(["moments", str(folder), "--data", "digits", "--images", "10"]) == 0
    save_model(mt3.load(folder), folder)
    assert mt3.load(folder).moments is None


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"/mix": torch.ones(1)},
        {"norm": torch.zeros(1, 2, 4)},
        {"norm": torch.zeros(2, 4), "/mix": torch.ones(1)},
        {"norm": torch.zeros(1, 3, 4), "/mix": torch.ones(1)},
        {"norm": torch.zeros(1, 2, 4), "/mix": torch.ones(2)},
        {"norm": torch.zeros(1, 2, 4), "/mix": torch.ones(())},
        {"norm": torch.zeros(1, 2, 4), "/mix": torch.ones(1, 3)},
        {"norm": torch.zeros(1, 2, 4), "/mix": torch.zeros(1)},
        {"norm": torch.zeros(2, 2, 4), "/mix": torch.tensor([2.0, -1.0])},
        {"norm": torch.zeros(1, 2, 4).to(torch.float8_e4m3fn), "/mix": torch.ones(1)},
        {"norm": torch.zeros(1, 2, 4, dtype=torch.int32), "/mix": torch.ones(1)},
        {"norm": torch.full((1, 2, 4), float("nan")), "/mix": torch.ones(1)},
        {"norm": torch.zeros(2, 2, 2**19 + 1), "/mix": torch.ones(2)},
    ],
)
def test_a_file_that_holds_no_moments_is_refused(folder, tensors):
    safetensors.torch.save_file(tensors, folder / MOMENTS_FILE)
    with pytest.raises(mt3.InputError, match="does not hold moments of channels; delete it"):
        mt3.load(folder)
    (folder / MOMENTS_FILE).write_bytes(b"nothing")
    with pytest.raises(mt3.InputError, match="is damaged"):
        read_moments(folder / MOMENTS_FILE)


def test_moments_of_another_network_are_refused(folder):
    assert main(["moments", str(folder), "--data", "digits", "--images", "10"]) == 0
    own = safetensors.torch.load_file(folder / MOMENTS_FILE)
    fewer = {name: t[:9].clone() for name, t in own.items()}  # of nine classes
    fewer["/mix"] /= fewer["/mix"].sum()
    narrow = {name: t if name == "/mix" else t[..., :1].clone() for name, t in own.items()}
    for wrong in ({"elsewhere": torch.zeros(1, 2, 4), "/mix": torch.ones(1)}, fewer, narrow):
        safetensors.torch.save_file(wrong, folder / MOMENTS_FILE)
        with pytest.raises(mt3.InputError, match="moments of other norms or classes"):
            mt3.Adapter(mt3.load(folder), "plus")


def test_data_without_training_images_is_refused(folder, capsys):
    assert main(["moments", str(folder), "--data", "photos"]) == 2
    assert "photos has no training images" in capsys.readouterr().err
    assert not (folder / MOMENTS_FILE).exists()


@pytest.mark.parametrize("name", ["cifar10-jt", "cifar10-mt3", "cifar10-supervised"])
def test_the_shipped_models_know_theirs(name):
    model = mt3.load(name)
    assert model.moments is not None
    images = torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)
    assert mt3.Adapter(model, "plus")(images).shape == (4, 10)
