"""What adapting brings: differences and their intervals worked out by hand."""

import math

import numpy as np
import pytest

from evaluations import JT, MARK, MT3, UNFINISHED, accuracies, keep_answers, make_evaluation, tables_of, words, write
from mt3.reporting.collect import collect
from mt3.reporting.gains import before_table, gain_table, paired_table, run_table, split_table
from mt3.reporting.rows import rows_of


def test_gain_is_paired_over_seeds(folder):
    got = words(tables_of(folder)["gain"])["MT, MT3"]
    reach = 4.3027 * np.std([8, 7, 9], ddof=1) / math.sqrt(3)
    assert got["gain"] == f"+8.0 [+{8 - reach:.1f}, +{8 + reach:.1f}]"
    fixed = (100 + 40 + 100) + (80 + 30 + 100) + (100 + 40 + 130)  # of 1,000 images, corruption by corruption
    assert (got["fixed"], got["broken"]) == (str(fixed), "0")
    assert got["after - JT (ours)"].startswith("+3.0 [")  # of seed 0, the only one that both have
    single = words(tables_of(folder)["gain"])["JT (ours), TTT (ours)"]
    reach = 1.959964 * np.std([0] * 970 + [-100 / 3] * 30, ddof=1) / math.sqrt(1000)  # each under one of 3 corruptions
    assert single["gain"] == f"-1.0 [-{1 + reach:.1f}, -{1 - reach:.1f}]"
    assert (single["fixed"], single["broken"]) == ("0", "30")
    assert single["after - JT (ours)"] == "-"


def test_the_gain_of_one_run_is_of_the_severity_shown(tmp_path):
    write(tmp_path / "a.json", make_evaluation("jt", 0, JT[0], severities=(3, 5)))
    whole = words(tables_of(tmp_path)["gain"])
    write(tmp_path / "a.json", make_evaluation("jt", 0, JT[0]))
    assert whole == words(tables_of(tmp_path)["gain"])


def test_an_unfinished_rival_is_no_fair_one(folder):
    assert "JT (ours) is the fair rival of MT3." in tables_of(folder)["gain"].note
    write(folder / "jt-0.json", make_evaluation("jt", 0, JT[0], run=UNFINISHED))
    got = tables_of(folder)
    for name in ("gain", "runs"):
        assert f"after - JT (ours){MARK}" in got[name].columns
    assert "fair rival" not in got["gain"].note
    assert f"of JT (ours){MARK} and MT3 it is NO FAIR comparison" in got["gain"].note


@pytest.mark.parametrize(
    ("jt", "mt3", "fair"),
    [({}, {}, True), ({"width": 32}, {"width": 32}, True), ({"width": 32}, {}, False), ({}, {"start": "jt"}, False)],
)
def test_lengths_by_hand_are_fair_if_they_took_as_long(folder, jt, mt3, fair):
    for method, seeds in (("jt", JT), ("mt3", MT3)):
        for seed, rows in enumerate(seeds):
            length = 8.0 if method == "jt" else 2.0
            run = {"epochs": [34.0, length], "overrides": {"epochs": length} | (jt if method == "jt" else mt3)}
            write(folder / f"{method}-{seed}.json", make_evaluation(method, seed, rows, run=run))
    note = tables_of(folder)["gain"].note
    assert ("fair if both took as long" in note, "NO FAIR" in note) == (fair, not fair)
    assert ("set by hand (JT (ours) is of preset paper with epochs=8.0" in note) == fair


def test_unlike_presets_and_lengths_are_no_fair_comparison(folder):
    write(folder / "jt-0.json", make_evaluation("jt", 0, JT[0], run={"preset": "cpu"}))
    note = tables_of(folder)["gain"].note
    assert "it is NO FAIR comparison: JT (ours) is of preset cpu, MT3 of preset paper." in note
    short = {"epochs": [1.0], "overrides": {"epochs": 1.0, "width": 8}}
    write(folder / "jt-0.json", make_evaluation("jt", 0, JT[0], run=short))
    note = tables_of(folder)["gain"].note
    assert "NO FAIR comparison: JT (ours) is of preset paper with epochs=1.0, width=8, MT3 of preset paper." in note
    short["overrides"] = {"epochs": 1.0, "lr": 0.05}
    write(folder / "jt-0.json", make_evaluation("jt", 0, JT[0], run=short))
    note = tables_of(folder)["gain"].note
    assert "set by hand (JT (ours) is of preset paper with epochs=1.0, MT3 of preset paper)" in note


CONTROLS = {"clean_other": accuracies(55, 45, 59), "same_corruption": accuracies(57, 46, 60)}


def test_gains_without_controls_are_said(tmp_path):
    write(tmp_path / "jt.json", make_evaluation("jt", 0, JT[0] | CONTROLS))
    write(tmp_path / "mt3.json", make_evaluation("mt3", 0, MT3[0]))
    assert "Of MT3 no controls were evaluated" in tables_of(tmp_path)["gain"].note
    write(tmp_path / "mt3.json", make_evaluation("mt3", 0, MT3[0] | CONTROLS))
    assert "no controls" not in tables_of(tmp_path)["gain"].note


def test_missing_rival_is_said(tmp_path):
    write(tmp_path / "a.json", make_evaluation("mt3", 0, MT3[0]))
    rows = rows_of(collect([tmp_path]).main)
    assert "JT (ours) was not evaluated" in gain_table(rows, 5)[0].note
    assert split_table(rows, 5) == before_table(rows, 5) == []


def test_split_of_the_gain(tmp_path):
    for seed, rows in enumerate(MT3):
        controls = {"clean_other": accuracies(55, 45, 59 + seed), "same_corruption": accuracies(57, 46, 60 + seed)}
        write(tmp_path / f"{seed}.json", make_evaluation("mt3", seed, rows | controls))
    (split,) = split_table(rows_of(collect([tmp_path]).main), 5)
    cells = dict(zip(split.columns, split.lines[0].cells, strict=True))
    offsets = [53 - 50, 53 + 1 / 3 - 53, 53 + 2 / 3 - 56]
    assert cells["offset"].value == pytest.approx(np.mean(offsets))
    assert cells["distribution"].value == pytest.approx(4 / 3)
    parts = sum(cells[name].value for name in ("offset", "distribution", "instance"))
    assert parts == pytest.approx(cells["gain"].value) == pytest.approx(8.0)
    assert cells["unrelated image"].value == pytest.approx(53 + 1 / 3)
    assert cells["same corruption"].value == pytest.approx(54 + 2 / 3)
    assert cells["adaptation"].value == pytest.approx(4 / 3 + cells["instance"].value)


def test_differences_paired_over_images(tmp_path):
    rng = np.random.default_rng(0)
    mt3 = [{row: rng.random((3, 100)) < 0.5 for row in ("before", "after", "clean_other")} for _ in range(2)]
    jt = {row: rng.random((3, 100)) < 0.5 for row in ("before", "after")}
    for seed, answers in enumerate(mt3):
        value = make_evaluation("mt3", seed, MT3[seed] | CONTROLS, images=100)
        write(tmp_path / f"{seed}.json", keep_answers(value, answers))
    write(tmp_path / "jt.json", keep_answers(make_evaluation("jt", 1, JT[0], images=100), jt))
    rows = rows_of(collect([tmp_path]).main)
    (table,) = paired_table(rows, 5)
    got = {line.label: dict(zip(table.columns, line.cells, strict=True)) for line in table.lines}["MT, MT3"]
    by_image = np.mean([100.0 * (a["after"].mean(0) - a["clean_other"].mean(0)) for a in mt3], axis=0)
    reach = 1.959964 * by_image.std(ddof=1) / 10
    assert got["adaptation"].value == pytest.approx(by_image.mean())
    assert got["adaptation"].interval == pytest.approx((by_image.mean() - reach, by_image.mean() + reach))
    against = 100.0 * (mt3[1]["after"].mean() - jt["before"].mean())  # seed 1, the only one that both have
    assert got["after - JT (ours)"].value == pytest.approx(against)
    (as_it_is,) = before_table(rows, 5)
    (line,) = as_it_is.lines
    by_image = 100.0 * (mt3[1]["before"].mean(0) - jt["before"].mean(0))
    reach = 1.959964 * by_image.std(ddof=1) / 10
    difference = dict(zip(as_it_is.columns, line.cells, strict=True))["before - JT (ours)"]
    assert (line.label, difference.value) == ("MT", pytest.approx(by_image.mean()))
    assert difference.interval == pytest.approx((by_image.mean() - reach, by_image.mean() + reach))
    by_run = words(run_table(rows, 5)[0])
    own = 100.0 * (mt3[0]["after"].mean() - mt3[0]["clean_other"].mean())
    assert by_run["MT, MT3, seed 0"]["adaptation"].startswith(f"{own:+.1f} [")
    assert by_run["MT, MT3, seed 0"]["after - JT (ours)"] == "-"  # JT has no such seed
    assert by_run["MT, MT3, seed 1"]["after - JT (ours)"].startswith(f"{against:+.1f} [")


def test_runs_one_by_one(folder, tmp_path):
    got = words(tables_of(folder)["runs"])
    assert list(got) == ["JT (ours), TTT (ours), seed 0", *(f"MT, MT3, seed {seed}" for seed in (0, 1, 2))]
    first = got["MT, MT3, seed 0"]
    assert (first["before"], first["after"]) == ("50.0", "58.0")
    assert (first["unrelated image"], first["adaptation"]) == ("-", "-")  # not evaluated
    alone = write(tmp_path / "alone.json", make_evaluation("mt3", 0, MT3[0]))
    assert run_table(rows_of(collect([alone]).main), 5) == []
