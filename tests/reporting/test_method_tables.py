"""Methods beside each other: which column an evaluation is in, gains along a stream, cost, confidence and figures."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evaluations import MT3, accuracies, make_evaluation, words, write
from evaluations import tables_of as tables
from mt3.config.streams import STREAMS
from mt3.reporting.collect import collect
from mt3.reporting.method_tables import method_blocks, running_mean
from mt3.reporting.page import write_report
from mt3.results.facts import parse_evaluation
from mt3.results.statistics import block_interval, pack_positions
from mt3.support.errors import InputError

ROWS = {"before": accuracies(50, 40, 60), "after": accuracies(60, 44, 70)}
NAMES = ("gaussian_noise", "fog", "contrast")


def evaluation(method: str | None = None, stream: str | None = None, rows: Any = ROWS, **given: Any) -> dict[str, Any]:
    """Of 100 images, in a stream that shows the last image first."""
    told: dict[str, Any] = {"images": 100} | ({} if method is None else {"method": method})
    adaptation = {"batch": 1, "answer": "after", "reset": "never", "momentum": 0.0, "carry": "image"}
    if stream is not None:
        units = [{"name": stream, "severity": 0, "images": 300}]
        told["stream"] = {"kind": stream, "seed": 0, "order": STREAMS[stream], "units": units}
        adaptation["carry"] = "stream"
    adaptation |= given.pop("adaptation", {})
    value = make_evaluation("mt3", given.pop("seed", 0), rows, adaptation=adaptation, **told, **given)
    if stream is not None:
        places = {f"{name}-5": 100 * n + np.arange(100)[::-1] for n, name in enumerate(NAMES)}
        value["positions"] = {name: pack_positions(p) for name, p in places.items()}
    return value


@pytest.fixture
def results(tmp_path) -> Path:
    write(tmp_path / "own.json", evaluation())
    tent = {"before": ROWS["before"], "after": accuracies(52, 40, 64)}
    write(tmp_path / "tent.json", evaluation("tent", rows=tent, passes=4.0))
    write(tmp_path / "tent-continual.json", evaluation("tent", "continual", passes=3.0))
    write(tmp_path / "own-mixed.json", evaluation(None, "mixed", passes=193.0))
    return tmp_path


def test_a_column_is_one_way_to_meet_the_images(results):
    table = tables(results)["methods-mt3"]
    assert table.columns == ("per image", "continual", "mixed")
    assert words(table) == {
        "as it is": {"per image": "50.0", "continual": "50.0", "mixed": "50.0"},
        "MT3": {"per image": "*58.0", "continual": "-", "mixed": "*58.0"},
        "TENT": {"per image": "52.0", "continual": "*58.0", "mixed": "-"},
    }


def test_gains_along_a_stream_are_by_blocks(results):
    table = tables(results)["methods-gain-mt3"]
    found = words(table)
    assert found["MT3"]["per image"].startswith("+8.0 [")
    # the first 60, 44 and 70 of 100 images are right, instead of 50, 40 and 60; the last image comes first
    right = [100.0 * ((np.arange(100) < a) * 1 - (np.arange(100) < b)) for a, b in ((60, 50), (44, 40), (70, 60))]
    want = block_interval(np.mean(right, axis=0)[::-1], 10)
    assert found["TENT"]["continual"] == f"{want.mean:+.1f} [{want.low:+.1f}, {want.high:+.1f}]"
    per_image, along = (parse_evaluation(evaluation(None, s), Path("e.json")).gain() for s in (None, "continual"))
    assert along.high - along.low > per_image.high - per_image.low
    assert "here up to 10" in table.note


def test_results_of_methods_and_streams_stay_out_of_the_papers_tables(results):
    found = tables(results)
    assert words(found["accuracy"])["average"]["MT3"] == "*58.0"
    assert found["accuracy"].columns == ("MT", "MT3")
    assert "settings" not in found


def test_costs_are_counted_and_measured(results):
    cost = tables(results)["methods-cost-mt3"]
    found = words(cost)
    assert (found["TENT"]["passes, per image"], found["TENT"]["passes, online"]) == ("4", "3")
    assert (found["MT3"]["passes, per image"], found["MT3"]["passes, online"]) == ("-", "193")
    assert "ms, online" not in found["TENT"]
    spread = {"median": 0.00316, "min": 0.003, "max": 0.004}
    candidate = {
        "name": "tent, online",
        "passes": 7.0,
        "seconds": spread,
        "ratio": {"median": 3.2, "min": 3.0, "max": 3.5},
    }
    write(results / "bench.json", {"benchmark": "methods", "model_hash": "0", "candidates": [candidate]})
    found = words(tables(results)["methods-cost-mt3"])
    assert (found["TENT"]["ms, online"], found["TENT"]["times a pass, online"]) == ("3.16", "3.2")
    assert (found["TENT"]["passes, online"], found["TENT"]["passes timed, online"]) == ("3", "7")  # here, by default
    write(results / "bench.json", {"benchmark": "methods", "model_hash": "1", "candidates": [candidate]})
    assert "ms, online" not in words(tables(results)["methods-cost-mt3"])["TENT"]  # of another model
    del candidate["passes"]
    damaged = write(results / "bench.json", {"benchmark": "methods", "model_hash": "0", "candidates": [candidate]})
    assert "ms, online" not in words(tables(results)["methods-cost-mt3"])["TENT"]
    assert any("bench.json is left out: it is not a whole benchmark" in note for note in collect([results]).notes)
    with pytest.raises(InputError, match=r"not a whole benchmark of methods \('passes' is missing\)"):
        collect([damaged])


def test_settings_say_how_each_method_adapted(results):
    tuned = {"file": "t.json", "hash": "0123456789", "rule": "the best", "choice": {"lr": 0.01}, "images": {}}
    tuned["points"] = [{"lr": 0.01}]
    given = {"adaptation": {"batch": 8, "answer": "first", "reset": "every 100", "lr": 0.01}}
    write(results / "tent-shift.json", evaluation("tent", "shift", passes=3.0, tuned=tuned, **given))
    found = words(tables(results)["methods-settings-mt3"])
    line = found["TENT, shift"]
    assert [line[name] for name in ("lr", "batch", "answer", "reset", "chosen")] == [
        "0.01",
        "8",
        "first",
        "every 100",
        "tuned, 01234567",
    ]
    assert found["TENT, per image"]["chosen"] == "default"
    assert tables(results)["methods-settings-mt3"].note.startswith("Shift: one corruption after the other, each from")
    lame = {"adaptation": {"rule": "lame", "batch": 64, "objective": None}}
    write(results / "lame.json", evaluation("lame", "shift", **lame))
    line = words(tables(results)["methods-settings-mt3"])["LAME, shift"]
    assert [line[name] for name in ("objective", "steps", "lr", "views", "batch")] == ["lame", "-", "-", "-", "64"]


def test_two_evaluations_for_one_cell_are_refused_unless_they_have_labels(results):
    write(results / "again.json", evaluation("tent", "continual", adaptation={"batch": 8}))
    with pytest.raises(
        InputError, match=r"again.json and .*tent-continual.json are both of TENT, continual, and differ"
    ):
        tables(results)
    write(results / "again.json", evaluation("tent", "continual", adaptation={"batch": 8}, label="batch 8"))
    assert words(tables(results)["methods-mt3"])["TENT, batch 8"]["continual"] == "*58.0"
    write(results / "again.json", evaluation("tent", "continual"))
    with pytest.raises(InputError, match="differ in nothing but their answers"):
        tables(results)


def test_points_of_a_tuning_are_left_out(results):
    before = tables(results)["methods-mt3"]
    write(results / "tuned" / "lr1.json", evaluation("tent", "continual", sweep=True, label="tuning", first=900))
    write(results / "tuned" / "lr2.json", evaluation(sweep=True, label="tuning", first=900))
    assert tables(results)["methods-mt3"] == before


def test_a_tuned_own_way_is_a_method(results):
    tuned = {"file": "t.json", "hash": "01", "rule": "the best", "choice": {"lr": 0.2}, "images": {}, "points": []}
    given = {"adaptation": {"lr": 0.2}, "own_adaptation": False, "passes": 193.0}
    write(results / "own.json", evaluation(tuned=tuned, **given))
    found = tables(results)
    assert words(found["methods-mt3"])["MT3"]["per image"] == "*58.0"
    assert "accuracy" not in found


def test_methods_of_unlike_protocols_are_refused(results):
    write(results / "other.json", evaluation("memo", severities=(3,)))
    with pytest.raises(InputError, match="unlike protocols do not go into one table: severities is 3"):
        tables(results)


def test_trainings_with_other_seeds_are_averaged(tmp_path):
    for seed in range(3):
        write(tmp_path / f"{seed}.json", evaluation("tent", "shift", MT3[seed], seed=seed))
    found = tables(tmp_path)
    assert words(found["methods-mt3"])["TENT"]["shift"] == "*61.0 ± 3.61"
    gains = np.array([8.0, 7.0, 9.0])
    reach = 4.3027 * gains.std(ddof=1) / np.sqrt(3)
    assert words(found["methods-gain-mt3"])["TENT"]["shift"] == f"+8.0 [{8 - reach:+.1f}, {8 + reach:+.1f}]"


def test_a_model_of_no_training_is_known_by_its_weights(tmp_path):
    value = evaluation("tent", "shift", model_hash="abcdef0123456789")
    value["protocol"]["run"] = None
    write(tmp_path / "own.json", value)
    assert words(tables(tmp_path)["methods-abcdef01"])["TENT"] == {"shift": "*58.0"}
    (table,) = [
        block for block in method_blocks(collect([tmp_path])) if getattr(block, "name", "") == "methods-abcdef01"
    ]
    assert table.title.startswith(
        "the model abcdef01: average accuracy in % over 3 corruptions, severity 5, 100 images"
    )


def test_confidence_by_softmax_and_by_copies(tmp_path):
    value = evaluation()
    for number, entry in enumerate(value["corruptions"]):
        for row in ("before", "after"):
            quality = {"softmax": {"calibration_error": 10.0 + number, "auroc": 70.0 if number else None}}
            quality["copies"] = {"calibration_error": 4.0, "auroc": 80.0 + 5 * (row == "after")}
            entry["rows"][row]["confidence"] = quality
    write(tmp_path / "e.json", value)
    found = words(tables(tmp_path)["confidence"])
    assert found["MT (resnet26x32), MT3: before adapting"] == {
        "AUROC, softmax": "70.0",
        "AUROC, copies": "80.0",
        "calibration error, softmax": "11.0",
        "calibration error, copies": "4.0",
        "AUROC higher by copies": "2 of 2",
    }
    assert found["MT (resnet26x32), MT3: after adapting"]["AUROC, copies"] == "85.0"


def test_a_running_mean_is_of_the_last_answers():
    values = np.array([1.0, 0.0, 0.0, 1.0, 1.0])
    assert running_mean(values, 2).tolist() == [1.0, 0.5, 0.0, 0.5, 1.0]
    assert running_mean(values, 5)[-1] == pytest.approx(0.6)


def test_figures_show_the_accuracy_along_the_stream_and_against_cost(results, monkeypatch):
    drawn: dict[str, Any] = {}
    monkeypatch.setattr("mt3.reporting.method_tables.draw_along", lambda paths, streams: drawn.update(along=streams))
    monkeypatch.setattr("mt3.reporting.method_tables.draw_costs", lambda paths, **given: drawn.update(given))
    for block in method_blocks(collect([results])):
        if hasattr(block, "draw"):
            block.draw([])
    assert list(drawn["along"]) == ["continual", "mixed"]
    plain, tent = drawn["along"]["continual"]
    assert (plain.title, tent.title, plain.starts) == ("as it is", "TENT", [100, 200])
    # the images come from the last on, so that the first 50 are wrong and the next 50 right; a window is of 15
    assert (plain.accuracy[49], plain.accuracy[64], plain.accuracy[99]) == (0.0, 100.0, 100.0)
    assert tent.accuracy[49] == pytest.approx(100 * 10 / 15)
    assert drawn["before"] == pytest.approx(50.0)
    points = {(p.title, p.way): (p.passes, p.accuracy) for p in drawn["points"]}
    assert points == {
        ("TENT", "per image"): (4.0, pytest.approx(52.0)),
        ("TENT", "continual"): (3.0, pytest.approx(58.0)),
        ("MT3", "mixed"): (193.0, pytest.approx(58.0)),
    }


def test_the_report_has_the_section_and_its_figures(results):
    _, files, _ = write_report([results], results / "report")
    page = (results / "report" / "report.md").read_text()
    assert "## Methods and streams" in page
    assert {"along-mt3.png", "cost-mt3.pdf"} <= {file.name for file in files}
    assert "![along-mt3](along-mt3.png)" in page
    first = (results / "report" / "along-mt3.png").read_bytes()
    write_report([results], results / "report")
    assert (results / "report" / "along-mt3.png").read_bytes() == first


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"kind": "river"}, "a stream river"),
        ({"units": [{"name": "fog"}]}, "is missing"),
    ],
)
def test_a_stream_that_is_none_is_refused(change, match):
    value = evaluation("tent", "shift")
    value["protocol"]["stream"] |= change
    with pytest.raises(InputError, match=match):
        parse_evaluation(value, Path("e.json"))


def test_positions_that_are_no_streams_are_refused():
    value = evaluation("tent", "shift")
    value["positions"]["fog-5"] = value["positions"]["contrast-5"]
    with pytest.raises(InputError, match="positions that are no stream's"):
        parse_evaluation(value, Path("e.json"))
    del value["positions"]["fog-5"]
    with pytest.raises(InputError, match="'fog-5' is missing"):
        parse_evaluation(value, Path("e.json"))
