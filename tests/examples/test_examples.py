"""The examples run, and their adapted answers are those of a loop written by hand."""

import runpy
import sys
import tokenize
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import mt3
from foreign import adapted_by_hand, coloured

FOLDER = Path(__file__).parent.parent.parent / "examples"
CODE_LINES = 15  # of a script, without its docstring and comments


def run(name: str) -> dict[str, Any]:
    """What a script leaves behind."""
    torch.manual_seed(0)
    return runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


def test_a_network_of_your_own_on_photos_of_your_own(tmp_path, monkeypatch, capsys):
    images, labels = coloured(40, size=50, classes=2)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = tmp_path / ("red", "green")[label]
        folder.mkdir(exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.png")
    monkeypatch.setattr(sys, "argv", ["own_convnet.py", str(tmp_path), str(tmp_path / "red" / "0.png")])
    found = run("own_convnet")
    assert capsys.readouterr().out == "red\n"
    model, pixels, logits = (found[name] for name in ("model", "images", "logits"))
    assert model.classes == ["green", "red"]
    assert (pixels.shape, int(logits.argmax())) == ((1, 3, 48, 48), 1)
    torch.testing.assert_close(logits[0], adapted_by_hand(model, pixels[0] / 255), rtol=1e-4, atol=1e-4)
    assert (logits - model(pixels)).abs().max() > 1e-3


def test_a_vision_transformer_of_other_people(capsys):
    found = run("vit")
    model, images = found["model"], found["images"][:3]
    assert model.name == "ViTForImageClassification"
    logits = mt3.Adapter(model)(images)
    assert f"{logits.softmax(1)}\n" == capsys.readouterr().out
    assert logits.argmax(1).tolist() == [0, 1, 2]
    for image, answer in zip(images, logits, strict=True):
        torch.testing.assert_close(answer, adapted_by_hand(model, image), rtol=1e-4, atol=1e-4)
    assert (logits - model(images)).abs().max() > 1e-3


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(path):
    with path.open("rb") as file:
        tokens = list(tokenize.tokenize(file.readline))
    lines = {token.start[0] for token in tokens if token.type in (tokenize.NAME, tokenize.OP, tokenize.NUMBER)}
    assert len(lines) <= CODE_LINES
