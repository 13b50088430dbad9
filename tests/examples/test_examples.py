"""The examples run, and their adapted answers are those of a loop written by hand."""

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch
from PIL import Image

from foreign import adapted_by_hand, coloured

FOLDER = Path(__file__).parent.parent.parent / "examples"
CODE_LINES = 15  # of a main


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_network_of_your_own_on_photos_of_your_own(tmp_path):
    images, labels = coloured(40, size=50, classes=2)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = tmp_path / ("red", "green")[label]
        folder.mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.png")
    model, pixels, logits = load("own_convnet").main(str(tmp_path), str(tmp_path / "red" / "0.png"))
    assert model.classes == ["green", "red"]
    assert (pixels.shape, int(logits.argmax())) == ((1, 3, 48, 48), 1)
    torch.testing.assert_close(logits[0], adapted_by_hand(model, pixels[0] / 255), rtol=1e-4, atol=1e-4)
    assert (logits - model(pixels)).abs().max() > 1e-3


def test_a_vision_transformer_of_other_people():
    model, images, logits = load("vit").main()
    assert model.name == "ViTForImageClassification"
    assert logits.argmax(1).tolist() == [0, 1, 2]
    for image, answer in zip(images, logits, strict=True):
        torch.testing.assert_close(answer, adapted_by_hand(model, image), rtol=1e-4, atol=1e-4)
    assert (logits - model(images)).abs().max() > 1e-3


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(path):
    (main,) = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)]
    assert main.end_lineno - main.lineno <= CODE_LINES
