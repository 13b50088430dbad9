"""The models that come with the package load by name and answer, and their cards say what results/ says."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mt3
from mt3.cli.main import main
from mt3.data.cifar import CIFAR10_CLASSES
from mt3.evaluation.evaluate import evaluate
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.models.store import shipped_models, tensors_hash
from mt3.results import Evaluation, read_evaluation

ROOT = Path(__file__).parents[2]
FILES = ("config.json", "model.safetensors", "moments.safetensors")
NAME = "cifar10-mt3"
SHIPPED = ["cifar10-jt", "cifar10-mt3", "cifar10-supervised"]


def evaluation() -> Evaluation:
    """The evaluation in results/ of the meta-trained weights that ship."""
    own = tensors_hash(mt3.load(NAME).state_dict())
    folder = ROOT / "results" / "cifar10-workstation-step" / "mt3"
    found = [read_evaluation(path) for path in folder.rglob("evaluation.json")]
    (result,) = [e for e in found if e.protocol["model_hash"] == own]
    return result


@pytest.mark.parametrize("name", SHIPPED)
def test_it_is_small_and_complete(name):
    assert sorted(shipped_models()) == SHIPPED
    folder = shipped_models()[name]
    assert {path.name for path in folder.iterdir()} == {*FILES, "run.json", "README.md"}
    assert (folder / "model.safetensors").stat().st_size < 2e6
    assert sum(path.stat().st_size for path in folder.iterdir()) < 2.1e6
    assert tuple(mt3.load(name).classes) == CIFAR10_CLASSES


def test_predict_by_name(tmp_path, capsys):
    photo = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.png")
    assert main(["predict", NAME, str(tmp_path / "photo.png"), "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    model = mt3.load(NAME)
    logits = mt3.Adapter(model)(torch.from_numpy(photo).permute(2, 0, 1)[None])
    assert answer["after"]["class"] == model.classes[int(logits.argmax())]
    assert answer["after"]["probability"] == pytest.approx(logits.softmax(1).max().item(), abs=1e-5)


def test_the_card_states_the_accuracies():
    card, result = (shipped_models()[NAME] / "README.md").read_text(), evaluation()
    rows = {
        cells[0].strip(): [c.strip() for c in cells[1:]] for cells in re.findall(r"\| (.+?) \| (.+?) \| (.+?) \|", card)
    }
    for label, severity in (("clean", 0), ("15 corruptions, severity 5", 5)):
        assert rows[label] == [f"{result.accuracy(row, severity=severity):.1f}" for row in ("before", "after")]


def test_real_images_give_the_answers_in_results(tmp_path, cifar10):
    """The first clean test images, before and after adapting."""
    model = mt3.load(NAME)
    protocol = Protocol((), limit=50, adaptation=model.adaptation)
    got = evaluate(model, TestImages(cifar10), protocol, tmp_path / "r.json")
    for row in ("before", "after"):
        expected = evaluation().correct(row, severity=0)[0, :50]
        same = got.correct(row, severity=0)[0] == expected
        assert same.sum() >= 49  # another machine rounds otherwise


def test_the_supervised_start_is_that_of_results():
    """Its card says what results/ has of these very weights, and joint training can begin from it."""
    name = "cifar10-supervised"
    card, model = (shipped_models()[name] / "README.md").read_text(), mt3.load(name)
    rows = dict(re.findall(r"\| ([^|]+) \| ([\d.]+) \|", card))
    found = {
        folder: read_evaluation(ROOT / "results" / folder / "supervised" / "seed-0" / "evaluation.json")
        for folder in ("cifar10-workstation", "cifar10-workstation-held-out")
    }
    assert {e.protocol["model_hash"] for e in found.values()} == {tensors_hash(model.state_dict())}
    fifteen, held_out = found.values()
    assert rows["clean"] == f"{fifteen.accuracy('before', severity=0):.1f}"
    assert rows["15 corruptions, severity 5"] == f"{fifteen.accuracy('before', severity=5):.1f}"
    assert rows["4 held-out corruptions, severity 5, test images from 9,000 on"] == f"{held_out.accuracy('before'):.1f}"
