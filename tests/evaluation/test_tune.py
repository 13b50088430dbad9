"""Tuning: on which images and corruptions, which setting is chosen, and what of it a protocol keeps."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mt3
from evaluating import make_model
from evaluations import accuracies, keep_answers, make_evaluation
from mt3.cli.method_commands import tuning_summary
from mt3.config.rivals import adaptation_named
from mt3.corruptions import HELD_OUT, PAPER
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.evaluation.settle import read_tuned, settle, with_choice
from mt3.evaluation.tune import Grid, choose, default_grid, held_out, tune
from mt3.results.facts import Evaluation, parse_evaluation
from mt3.support.errors import InputError
from mt3.support.files import read_json, write_json

GRID = Grid(lr=(0.01, 0.3), steps=(1, 2))


def asked(stream: str | None = "continual", **given: Any) -> Protocol:
    adaptation = settle(make_model(), "tent", stream, {"batch": 2} if stream else {})
    usual = {"limit": 4, "adaptation": adaptation, "method": "tent", "stream": stream}
    return Protocol(given.pop("corruptions", HELD_OUT), **usual | given)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, images) -> Path:
    out = tmp_path_factory.mktemp("tune") / "tent.json"
    tune(make_model(), held_out(images), asked(), GRID, out)
    return out


def test_only_held_out_images_under_held_out_corruptions_are_touched(tmp_path, images, monkeypatch):
    seen: set[tuple[str, int]] = set()
    original = TestImages.take

    def take(self, source, start, stop):
        seen.update((source[0], self.first + i) for i in range(start, stop))
        return original(self, source, start, stop)

    monkeypatch.setattr(TestImages, "take", take)
    tune(make_model(), held_out(images), asked(None, limit=None), Grid(lr=(0.1,)), tmp_path / "t.json")
    assert {name for name, _ in seen} <= {*HELD_OUT, "clean"}
    count = len(images.labels)
    assert {i for _, i in seen} == set(range(count - count // 10, count))


def test_held_out_images_are_the_last_tenth(images):
    assert held_out(images).first == 450  # of 500
    few = replace(images, first=495)
    assert held_out(few).first == 499  # of 5 the last


@pytest.mark.parametrize("names", [("fog",), ("saturate", "fog"), ()])
def test_reported_corruptions_are_refused(tmp_path, images, names):
    told = "fog, which is reported" if names else "none"
    with pytest.raises(InputError, match=f"kept for tuning, speckle_noise, .*saturate, got {told}"):
        tune(make_model(), held_out(images), asked(corruptions=names), GRID, tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == []
    assert not set(HELD_OUT) & set(PAPER)


def test_the_file_has_the_grid_its_accuracies_and_the_choice(tuned):
    found = read_json(tuned)["tuned"]
    assert [(point["lr"], point["steps"]) for point in found["points"]] == [(0.01, 1), (0.01, 2), (0.3, 1), (0.3, 2)]
    for point in found["points"]:
        evaluation = mt3.results.read_evaluation(tuned.with_suffix("") / point["file"])
        assert point["accuracy"] == evaluation.accuracy()
        assert point["gain"] == list(evaluation.gain())
        a = evaluation.protocol["adaptation"]
        assert (a["lr"], a["steps"], a["batch"]) == (point["lr"], point["steps"], 2)
        assert evaluation.protocol["sweep"] is True
    assert (found["method"], found["stream"]) == ("tent", "continual")
    assert found["choice"] in [{"lr": p["lr"], "steps": p["steps"]} for p in found["points"]]
    assert found["images"]["first"] == 450
    assert found["images"]["corruptions"] == list(HELD_OUT)
    assert found["rule"].startswith("the highest accuracy; of equal ones the smallest learning rate times steps")


def test_a_tuning_goes_on_where_it_stopped(tmp_path, images, monkeypatch):
    out, done = tmp_path / "t.json", []
    import mt3.evaluation.tune as module

    original = module.evaluate

    def counted(model, images, protocol, file):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(file.name)
        return original(model, images, protocol, file)

    with monkeypatch.context() as patch:
        patch.setattr(module, "evaluate", counted)
        with pytest.raises(KeyboardInterrupt):
            tune(make_model(), held_out(images), asked(), GRID, out)
    assert not out.exists()
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "t").glob("*.json")}
    assert sorted(path.name for path in times) == ["lr0.01-steps1.json", "lr0.01-steps2.json"]
    tune(make_model(), held_out(images), asked(), GRID, out)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert len(read_json(out)["tuned"]["points"]) == 4


def test_a_setting_that_fails_is_told_and_not_chosen(tmp_path, images):
    own = make_model().adaptation
    protocol = Protocol(HELD_OUT[:1], limit=2, adaptation=own)
    found = tune(make_model(), held_out(images), protocol, Grid(lr=(1e30, 0.1), views=(1,)), tmp_path / "t.json")
    assert found["choice"] == {"lr": 0.1, "views": 1}
    assert found["points"][-1] == {"lr": 1e30, "views": 1, "accuracy": None, "gain": None, "file": None}
    assert "not finite" in tuning_summary(found)
    with pytest.raises(InputError, match="No setting of the grid gives answers that are finite; lower --lr"):
        tune(make_model(), held_out(images), protocol, Grid(lr=(1e30,), views=(1,)), tmp_path / "u.json")


def made(right: list[int]) -> Evaluation:
    """Of 100 images, of which these are answered right."""
    rows = {"before": accuracies(50, 50, 50), "after": accuracies(50, 50, 50)}
    value = make_evaluation("mt3", 0, rows, images=100)
    answers = np.isin(np.arange(100), right)
    return parse_evaluation(keep_answers(value, {"after": np.tile(answers, (3, 1))}), Path("e.json"))


def test_the_best_is_chosen_and_of_equal_ones_the_smallest_step():
    points = [{"lr": 0.1, "steps": 1}, {"lr": 0.3, "steps": 1}, {"lr": 0.1, "steps": 2}, {"lr": 1.0, "steps": 1}]
    half = list(range(60))
    found = [made(half[:-1]), made([*half, 61]), made([*half, 62]), made([*half, 63])]
    assert choose(list(zip(points, found, strict=True))) == points[2]  # 0.1 x 2 is smaller than 0.3 x 1
    found[3] = made([*half, 61, 62])
    assert choose(list(zip(points, found, strict=True))) == points[3]
    views = [{"lr": 0.1, "steps": 1, "views": count} for count in (32, 8)]
    assert choose([(point, made(half)) for point in views]) == views[1]


def test_grids_are_those_of_the_method():
    tent, memo, average, lame = (adaptation_named(name) for name in ("tent", "memo", "average", "lame"))
    grid = default_grid(tent, Grid())
    assert grid == Grid(tuple(f * 0.00025 for f in (0.1, 1.0, 10.0, 100.0)), (1, 3), ())
    assert len(grid.points()) == 8
    assert default_grid(memo, Grid(lr=(0.1,), views=(4, 8))) == Grid((0.1,), (1, 3), (4, 8))
    assert default_grid(average, Grid()) == Grid((), (), (8, 32))
    with pytest.raises(InputError, match="no learning rate, steps, views or support to choose"):
        default_grid(lame, Grid())
    with pytest.raises(InputError, match="This method has no views to choose; drop --views"):
        default_grid(tent, Grid(views=(2,)))


def test_the_choice_and_its_evidence_go_into_the_protocol(tuned, digits):
    found = mt3.evaluate(make_model(), digits, ["fog"], stream="continual", batch=2, tuned=tuned, limit=4)
    assert found.rival == "tent"
    told, chosen = found.protocol["tuned"], read_json(tuned)["tuned"]
    assert {name: found.protocol["adaptation"][name] for name in chosen["choice"]} == chosen["choice"]
    assert told["points"] == chosen["points"]
    assert (told["choice"], told["rule"], told["images"]) == (chosen["choice"], chosen["rule"], chosen["images"])
    assert (told["file"], len(told["hash"])) == ("tent.json", 32)


def test_the_hash_tells_another_tuning(tuned, tmp_path):
    value = read_json(tuned)
    assert read_tuned(tuned)["hash"] == read_tuned(tuned)["hash"]
    value["tuned"]["points"][0]["accuracy"] += 1
    write_json(tmp_path / "other.json", value)
    assert read_tuned(tmp_path / "other.json")["hash"] != read_tuned(tuned)["hash"]


def test_what_was_tuned_on_is_not_reported(tuned, digits):
    with pytest.raises(InputError, match=r"tent\.json was tuned on saturate; report other corruptions"):
        mt3.evaluate(make_model(), digits, ["fog", "saturate"], "tent", stream="shift", tuned=tuned, limit=4)
    with pytest.raises(InputError, match="was tuned on the images 450 to 453; leave these out by --limit or --first"):
        mt3.evaluate(make_model(), digits, ["fog"], "tent", stream="shift", tuned=tuned)


def test_a_tuning_of_another_method_and_a_second_word_are_refused(tuned, tmp_path):
    with pytest.raises(InputError, match=r"tent\.json is a tuning of tent, not of memo"):
        with_choice(read_tuned(tuned), "memo", {})
    with pytest.raises(InputError, match=r"tent\.json has chosen lr; drop --lr, or --tuned"):
        with_choice(read_tuned(tuned), "tent", {"lr": 0.5})
    for value in ({}, {"tuned": {"choice": {}}}, {"tuned": 3}):
        write_json(tmp_path / "bad.json", value)
        with pytest.raises(InputError, match=r"bad\.json is not a tuning; give a file that `mt3 tune` wrote"):
            read_tuned(tmp_path / "bad.json")
