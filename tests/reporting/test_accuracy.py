"""Tables of accuracy: averages and deviations worked out by hand, and the paper's numbers beside them."""

import csv
import math

import numpy as np
import pytest

from evaluations import BASELINE, JT, MARK, MT3, UNFINISHED, make_evaluation, tables_of, words, write
from mt3.config.methods import ROWS
from mt3.reporting.accuracy import clean_table, component_table, corruption_errors
from mt3.reporting.collect import collect
from mt3.reporting.page import write_report
from mt3.reporting.rows import rows_of


def test_main_table_by_hand(folder):
    table = tables_of(folder)["accuracy"]
    assert table.columns == ("Baseline (ours)", "JT (ours)", "TTT (ours)", "MT", "MT3")
    assert [line.label for line in table.lines if line.marked] == ["gaussian_noise"]
    got = words(table)
    assert list(got) == [  # the order of the paper's tables
        "contrast",
        "fog",
        "gaussian_noise",
        "average",
        "average without †",
        "best on, of 3",
        "runs",
        "epochs",
        "layers x width",
    ]
    assert got["contrast"]["MT3"] == f"*74.0 ± {math.sqrt((16 + 1 + 25) / 2):.2f}"
    assert got["gaussian_noise"]["MT"] == "53.0 ± 3.00"
    assert got["average"]["MT3"] == f"*61.0 ± {math.sqrt((9 + 1 + 16) / 2):.2f}"
    assert got["average"]["JT (ours)"] == "55.0"  # a single run has no deviation
    assert got["average"]["Baseline (ours)"] == f"41.3 ± {np.std([40, 128 / 3], ddof=1):.2f}"
    # over fog and contrast: 57, 59.5, 64.5
    assert got["average without †"]["MT3"] == f"*60.3 ± {np.std([57, 59.5, 64.5], ddof=1):.2f}"
    assert got["runs"] == dict(zip(table.columns, "21133", strict=True))


def test_ties_as_printed_are_all_bold_and_count_as_wins(folder):
    """Fog: 44.0 and 45.0 and 45.0 and 43.0 and 46.67; then MT3 loses it."""
    for seed, value in enumerate((44.0, 45.0, 46.1)):  # mean 45.03, printed 45.0
        rows = {"before": MT3[seed]["before"], "after": MT3[seed]["after"] | {"fog": value}}
        write(folder / f"mt3-{seed}.json", make_evaluation("mt3", seed, rows))
    got = words(tables_of(folder)["accuracy"])
    assert [c for c, text in got["fog"].items() if text.startswith("*")] == ["JT (ours)", "TTT (ours)", "MT3"]
    assert got["best on, of 3"] == {"Baseline (ours)": "0", "JT (ours)": "1", "TTT (ours)": "1", "MT": "0", "MT3": "3"}


def test_the_papers_number_stands_beside(folder):
    table = tables_of(folder, published=True)["accuracy"]
    cells = dict(zip(table.columns, table.lines[1].cells, strict=True))  # fog
    assert cells["MT3"].published.words() == "75.9 ± 1.26"
    average = dict(zip(table.columns, table.lines[3].cells, strict=True))["MT3"].published
    assert average.value == pytest.approx((77.6 + 75.9 + 69.9) / 3)  # over the same three corruptions
    assert average.std is None
    assert "printed means over these 3 corruptions" in table.note


def test_corruptions_that_the_paper_lacks_come_last_and_have_no_number(tmp_path):
    write(tmp_path / "a.json", make_evaluation("baseline", 0, {"before": {"saturate": 50.0, "fog": 60.0}}))
    table = tables_of(tmp_path, published=True)["accuracy"]
    found = {line.label: line.cells[0].published for line in table.lines}
    assert list(found) == ["fog", "saturate", "average", "runs", "epochs", "layers x width"]
    assert [cell and cell.value for cell in found.values()] == [70.7, None, None, None, 200, None]
    assert "no average over these corruptions" in table.note


def test_no_paper_numbers_for_other_data_or_severities(tmp_path):
    for name, change, reason in (
        ("digits", {"data": "digits"}, "no numbers for digits"),
        ("low", {"severities": (3,)}, "for severity 5"),
    ):
        write(tmp_path / name / "a.json", make_evaluation("mt3", 0, MT3[0], **change))
        table = tables_of(tmp_path / name, published=True)["accuracy"]
        assert reason in table.note
        assert all(cell.published is None for line in table.lines for cell in line.cells)


def test_the_dagger_names_the_rows_that_were_trained_with_b(tmp_path):
    write(tmp_path / "a.json", make_evaluation("mt3", 0, MT3[0]))
    plain = "† overlaps with the batch augmentation B of JT, TTT (ours), MT and MT3."
    assert plain in tables_of(tmp_path, published=True)["accuracy"].note
    write(tmp_path / "b.json", make_evaluation("supervised", 0, BASELINE[0], run=UNFINISHED))
    got = tables_of(tmp_path, published=True)
    named = "† overlaps with the batch augmentation B of Supervised with B, JT, TTT (ours), MT and MT3."
    assert named in got["accuracy"].note
    assert plain in got["published-cifar10"].note
    assert f"Supervised with B{MARK}" in got["accuracy"].columns


def test_b_unlike_the_papers_is_said(tmp_path):
    write(tmp_path / "a.json", make_evaluation("baseline", 0, BASELINE[0], run={"overrides": {"batch_aug": True}}))
    write(tmp_path / "b.json", make_evaluation("mt3", 0, MT3[0], run={"overrides": {"batch_aug": False}}))
    told = (
        "Unlike the paper's, trained with B here: Baseline (ours). Unlike the paper's, trained without B here: MT, MT3."
    )
    got = tables_of(tmp_path)
    assert told in got["accuracy"].note
    assert got["components"].note == told
    demo = {"preset": "demo", "data": "digits"}  # whose baseline has B
    write(tmp_path / "c" / "a.json", make_evaluation("baseline", 0, BASELINE[0], run=demo))
    assert tables_of(tmp_path / "c")["components"].note == "Unlike the paper's, trained with B here: Baseline (ours)."


def test_how_long_and_with_what_stands_beside_the_papers(tmp_path):
    small = {"network": "resnet14x8"}
    write(tmp_path / "jt.json", make_evaluation("jt", 0, JT[0], run=small | {"epochs": [5.0, 2.7]}))
    write(tmp_path / "mt3.json", make_evaluation("mt3", 0, MT3[0], run=small | {"epochs": [2.0], **UNFINISHED}))
    write(tmp_path / "baseline.json", make_evaluation("baseline", 0, BASELINE[0], run={"network": "vit"}))
    lines = {line.label: line for line in tables_of(tmp_path, published=True)["accuracy"].lines}
    told = [(cell.words(), cell.published.words()) for cell in lines["epochs"].cells]
    assert told == [("200", "200"), *[("5 + 2.7", "200")] * 2, *[("part of 2", "200")] * 2]
    sizes = [(cell.words(), cell.published.words()) for cell in lines["layers x width"].cells]
    assert sizes == [("vit", "26 x 32"), *[("14 x 8", "26 x 32")] * 4]
    alone = {line.label: line for line in tables_of(tmp_path)["accuracy"].lines}
    assert [cell.published for cell in alone["epochs"].cells] == [None] * 5


def test_the_papers_tables_say_how_long(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_report([], tmp_path / "out", published=True)
    records = {(r["table"], r["line"], r["column"]): r for r in csv.DictReader((tmp_path / "out" / "table.csv").open())}
    assert records["published-cifar10", "epochs", "MT3"]["value"] == "200.0"
    assert records["published-cifar10", "epochs", "JT (Sun et al.)"]["value"] == "150.0"


def test_clean_accuracy_and_its_cost(folder):
    (table,) = clean_table(rows_of(collect([folder]).main))
    got = words(table)
    assert got["MT3"]["clean accuracy"] == "93.0 ± 1.00"
    assert got["MT3"]["minus before adapting"] == "+2.0 [+2.0, +2.0]"
    assert got["MT3"]["minus Baseline (ours)"] == "+2.0 [+2.0, +2.0]"
    assert got["Baseline (ours)"]["minus Baseline (ours)"] == "-"


def test_mce_by_hand(tmp_path):
    # errors of the baseline at severity 5: 50, 80; at 4 one point less: sums 99, 159
    write(tmp_path / "b.json", make_evaluation("baseline", 0, {"before": {"fog": 50, "snow": 20}}, severities=(4, 5)))
    rows = {"before": {"fog": 60, "snow": 30}, "after": {"fog": 70, "snow": 40}}
    write(tmp_path / "m.json", make_evaluation("mt3", 0, rows, severities=(4, 5)))
    cells, note = corruption_errors(rows_of(collect([tmp_path]).main))
    want = [100, 100 * (79 / 99 + 139 / 159) / 2, 100 * (59 / 99 + 119 / 159) / 2]
    assert [cell.value for cell in cells] == pytest.approx(want)
    assert "over severity 4, 5 only" in note
    got = tables_of(tmp_path)
    assert words(got["severities"])["fog"]["MT3"] == "*70.5"
    assert words(got["mce"])["severity 4"]["MT"] == "46.0"
    assert words(got["mce"])["mCE"]["MT3"].startswith("*")
    assert words(got["accuracy"])["fog"]["MT3"] == "*70.0"  # the highest severity
    (tmp_path / "b.json").unlink()
    cells, note = corruption_errors(rows_of(collect([tmp_path]).main))
    assert cells == []
    assert "relative to a baseline, and none was evaluated" in note


def test_calibration_before_and_after(folder):
    got = words(tables_of(folder)["calibration"])
    assert got["MT"]["NLL in nats"] == "1.470 ± 0.0300"
    assert got["MT3"]["calibration error in %"] == f"6.1 ± {np.std([5.8, 6.0, 6.5], ddof=1):.2f}"


def test_component_table_is_the_papers():
    (table,) = component_table()
    got = {line.label: [c.text for c in line.cells[:4]] for line in table.lines}
    assert tuple(got) == ROWS
    assert got["TTT (Sun et al.)"] == ["rotation", "-", "joint", "yes"]
    assert got["Baseline (ours)"] == ["-", "-", "CE", "-"]
    assert got["MT"] == ["BYOL", "yes", "meta", "-"]
