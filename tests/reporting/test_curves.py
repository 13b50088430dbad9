"""Training curves: which runs they are of, and their means over epochs."""

import json

import pytest

from evaluations import UNFINISHED, make_evaluation, make_run, write, write_run
from mt3.reporting.collect import collect
from mt3.reporting.curves import authors_curve, epoch_table, read_curves
from mt3.reporting.page import report_sections

LINE = [(1.0, 0.1, 0.2)]


def test_curves_are_of_the_reference_of_the_study(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"small-{seed}", make_run("mt3", seed, epochs=[3.0]), LINE)
        write_run(tmp_path / f"first-{seed}", make_run("mt3", seed, label="first order"), LINE)
        write_run(tmp_path / f"jt-{seed}", make_run("jt", seed), LINE)
    write(tmp_path / "strange" / "run.json", {"config": {}})
    (tmp_path / "strange" / "metrics.jsonl").write_text("")
    found = collect([tmp_path])
    assert [path.parent.name for path in found.curves.paths] == ["small-0", "small-1"]
    write_run(tmp_path / "other", make_run("mt3", 2, overrides={"lr": 0.02}, epochs=[3.0]), LINE)
    write(tmp_path / "e.json", make_evaluation("mt3", 0, {"before": {"fog": 50.0}}))
    found = collect([tmp_path], tmp_path)
    assert found.curves.paths == ()
    told = "No training curve: the trainings of other/metrics.jsonl and small-0/metrics.jsonl differ in lr; give one "
    assert found.notes == [f"{told}of them a --label."]


def test_an_unfinished_run_has_no_part_in_the_curve_of_finished_ones(tmp_path):
    write_run(tmp_path / "a", make_run("mt3", 0), LINE)
    write_run(tmp_path / "b", make_run("mt3", 1, **UNFINISHED), LINE)
    write_run(tmp_path / "c", make_run("mt3", 2, step=0), LINE)  # is trained now, or was killed
    found = collect([tmp_path])
    assert [path.parent.name for path in found.curves.paths] == ["a"]
    assert found.curves.whole
    (note,) = found.notes
    assert note.startswith("Not in the training curve, since the training is not finished: ")
    assert note.endswith(f"{tmp_path / 'b' / 'metrics.jsonl'}, {tmp_path / 'c' / 'metrics.jsonl'}.")
    (tmp_path / "a" / "metrics.jsonl").unlink()
    found = collect([tmp_path])
    assert [path.parent.name for path in found.curves.paths] == ["b", "c"]
    assert not found.curves.whole


def test_curves_are_means_over_each_epoch(tmp_path):
    write_run(tmp_path / "a", make_run(), [(0.5, 0.1, 0.2), (1.0, 0.3, 0.4), (1.5, 0.5, 0.5), (12.0, 0.9, 1.0)])
    write_run(tmp_path / "b", make_run("mt3", 1), [(1.0, 0.4, 0.6)])
    with open(tmp_path / "b" / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "epo')  # cut by a kill
    curve = read_curves(collect([tmp_path]).curves.paths)
    assert curve.epochs.tolist() == [1, 2, 12]
    assert curve.before[0].tolist() == pytest.approx([20, 50, 90])
    assert curve.after[0].tolist() == pytest.approx([30, 50, 100])
    assert json.dumps(curve.before[1].tolist()) == "[40.0, NaN, NaN]"


def test_short_trainings_are_shown_in_twentieths(tmp_path):
    write_run(tmp_path, make_run(), [(i / 20, i / 40, i / 40) for i in range(1, 41)])
    curve = read_curves(collect([tmp_path]).curves.paths)
    assert curve.epochs.tolist() == pytest.approx([0.1 * i for i in range(1, 21)])
    assert curve.after[0, :2].tolist() == pytest.approx([100 * 1.5 / 40, 100 * 3.5 / 40])


def test_whole_epochs_stand_beside_the_authors(tmp_path):
    for seed, losses in enumerate(([2.5, 1.5, 1.0, 9.0], [2.3, 1.7])):  # two steps an epoch; the third is not whole
        lines = [{"step": i + 1, "epoch": (i + 1) / 2, "loss": loss} for i, loss in enumerate(losses[:3])]
        lines[1]["accuracy_after"] = 0.25
        write(tmp_path / f"{seed}" / "run.json", {"about": make_run("mt3", seed)})
        (tmp_path / f"{seed}" / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (table,) = epoch_table(collect([tmp_path]).curves.paths, "1.5 epochs")
    got = {line.label: [cell.value for cell in line.cells] for line in table.lines}
    assert set(got) == {"epoch 1, loss", "epoch 1, accuracy after it, %"}
    low, high = 2.005722, 2.030376  # the authors' three runs
    want = [2.0, low, high, low - (high - low), high + (high - low), 2]
    assert got["epoch 1, loss"] == pytest.approx(want, abs=1e-5)
    assert got["epoch 1, accuracy after it, %"][0] == pytest.approx(25.0)
    write_run(tmp_path / "short", make_run("mt3", 2), [(0.5, 0.1, 0.2)])
    assert epoch_table([tmp_path / "short" / "metrics.jsonl"], "0.5 epochs") == []


def test_the_caption_says_how_long_was_trained(tmp_path):
    def blocks(start: str | None = None, **changes):
        about = make_run(epochs=[6.35, 2.0] if start else [2.0], **changes)
        write_run(tmp_path, about, [(e, 0.2, 0.3) for e in (1, 2)], start)
        (section,) = [s for s in report_sections(collect([tmp_path]), False) if s.title == "Convergence"]
        return section.blocks

    table, figure = blocks()
    assert table.title == "Training of MT3, 2 epochs, beside the authors', 200 epochs"
    assert figure.caption.endswith("trained for 2 epochs, the authors' for 200 epochs: the axes are not alike.")
    assert figure.draw.keywords["told"] == "cifar10, 2 epochs"
    assert figure.draw.keywords["overlay"]
    assert blocks(step=0)[1].draw.keywords["told"] == "cifar10, 2 of 2 epochs"  # goes on
    assert blocks("jt")[1].caption.endswith("Epochs count from the end of the jt that came first, after 6.35 epochs.")
    (figure,) = blocks(data="digits")
    assert not figure.draw.keywords["overlay"]


def test_authors_curve_in_percent():
    curve = authors_curve()
    assert curve.before.shape == curve.after.shape == (3, 200)
    assert (curve.epochs[0], curve.epochs[-1]) == (1, 200)
    assert curve.after[:, 199].mean() == pytest.approx(98.5, abs=0.05)
