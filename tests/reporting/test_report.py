"""Reports: averages and deviations worked out by hand, the files, and the figures."""

import copy
import csv
import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from evaluations import Rows, make_evaluation, write, write_run
from mt3.cli.main import main
from mt3.config.config import config_to_dict, make_config
from mt3.config.methods import ROWS
from mt3.reporting.compare import (
    clean_table,
    component_table,
    corruption_errors,
    gain_tables,
    paired_table,
    rows_of,
    run_table,
)
from mt3.reporting.curves import authors_curve
from mt3.reporting.figures import COLOURS, draw_bars, draw_corruptions, draw_examples
from mt3.reporting.report import evaluation_summary, interval, report_sections, result_table, write_report
from mt3.reporting.table import Cell, Table
from mt3.results.collect import collect
from mt3.results.statistics import fixed_and_broken, gains, pack_correct
from mt3.support.errors import InputError


def entry(name: str, before: float, after: float, severity: int = 5) -> dict:
    return {"name": name, "severity": severity, "before": {"accuracy": before}, "after": {"accuracy": after}}


RESULT = {
    "average": {"before": 45.0, "after": 55.5, "view_average": None},
    "corruptions": [entry("fog", 40.0, 50.04), entry("snow", 50.0, 60.96)],
    "clean": {"before": {"accuracy": 90.0}, "after": {"accuracy": 89.0}},
    "gain": {"mean": 10.5, "low": 8.25, "high": 12.75},
    "fixed": 12,
    "broken": 3,
}


def test_result_table_gives_corruptions_average_and_clean():
    lines = result_table({"MT": (RESULT, "before"), "MT3": (RESULT, "after")}).splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["corruption", "MT", "MT3"]
    assert cells[2:] == [
        ["fog", "40.0", "50.0"],
        ["snow", "50.0", "61.0"],
        ["average", "45.0", "55.5"],
        ["clean", "90.0", "89.0"],
    ]


def test_several_severities_are_told_apart():
    result = RESULT | {"corruptions": [entry("fog", 1, 2, 1), entry("fog", 3, 4, 5)], "clean": None}
    lines = result_table({"MT": (result, "before")}).splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["fog 1", "fog 5", "average"]


def test_summary_words_the_gain():
    text = evaluation_summary(RESULT)
    assert "gain by adapting +10.5 [+8.2, +12.8] points (paired 95 % interval); 12 answers fixed, 3 broken" in text
    assert (
        interval({"mean": -1.0, "low": -2.0, "high": 0.04}) == "-1.0 [-2.0, +0.04]"
    )  # the end that decides keeps its digit


def test_clean_images_are_printed_with_controls_too():
    controls = {"clean_other": {"accuracy": 45.0}, "same_corruption": {"accuracy": 46.0}}
    average = RESULT["average"] | {"clean_other": 45.0, "same_corruption": 46.0}
    result = RESULT | {"corruptions": [c | controls for c in RESULT["corruptions"]], "average": average}
    line = next(line for line in evaluation_summary(result).splitlines() if line.startswith("| clean"))
    assert [cell.strip() for cell in line.strip("|").split("|")] == ["clean", "90.0", "-", "-", "89.0"]
    told = "clean other: adapted on an unrelated clean image; same corruption: adapted on another image under the same "
    assert f"{told}corruption" in evaluation_summary(result).splitlines()


def test_a_gain_without_controls_is_not_credited_to_the_image():
    caution = "A step may help whatever the image: --controls tells how much of this gain is due to that."
    assert caution in evaluation_summary(RESULT).splitlines()
    lost = RESULT | {"gain": {"mean": -1.0, "low": -2.0, "high": 0.5}}
    assert "--controls" not in evaluation_summary(lost)
    parts = {
        name: {"mean": mean, "low": mean - 1, "high": mean + 1}
        for name, mean in (("offset", 9.0), ("distribution", -0.5), ("instance", 2.0), ("adaptation", 1.5))
    }
    text = evaluation_summary(RESULT | parts)
    assert "--controls" not in text
    split = (
        "of which offset +9.0 [+8.0, +10.0] (by a step on an unrelated clean image), distribution -0.5 [-1.5, +0.5] "
    )
    split += "(more by one on another image with the same corruption), instance +2.0 [+1.0, +3.0] (more by one on the "
    assert f"{split}image itself)" in text.splitlines()
    assert text.endswith("having seen the image brings +1.5 [+0.5, +2.5]: distribution and instance")


def test_the_summary_says_that_the_training_is_not_finished():
    for steps, told in ((150, True), (3000, False)):
        protocol = {"images": 1200, "trained_steps": steps, "total_steps": 3000}
        text = evaluation_summary(RESULT | {"protocol": protocol})
        assert "1,200 images under each corruption" in text.splitlines()
        assert ("The training is NOT FINISHED: these are numbers after 150 of 3,000 steps." in text) == told


def test_figure_shows_the_pictures(tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    rng = np.random.default_rng(0)
    clean = rng.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    corrupted = np.full_like(clean, 0)
    corrupted[..., 1] = 200  # a green that nothing else in the figure has
    texts = [("1 50 %", False, "2 90 %", True)] * 3
    draw_examples(tmp_path / "f.png", clean, corrupted, ["fog", "snow", "zoom_blur"], texts, ["2", "2", "2"])
    picture = np.asarray(Image.open(tmp_path / "f.png").convert("RGB")).astype(int)
    green = (np.abs(picture - [0, 200, 0]).sum(-1) < 10).mean()
    assert 0.15 < green < 0.6
    columns = (np.abs(picture - [0, 200, 0]).sum(-1) < 10).any(0)
    assert (np.diff(columns.astype(int)) == 1).sum() + columns[0] == 3  # three separate panels


def test_corruptions_are_drawn_in_two_blocks_without_overlap(tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    names = [f"corruption_{i}" for i in range(19)]
    green = np.zeros((5, 32, 32, 3), np.uint8) + np.array([0, 200, 0], np.uint8)
    draw_corruptions(tmp_path / "f.png", green[0] + 55, dict.fromkeys(names, green), [1, 2, 3, 4, 5])
    picture = np.asarray(Image.open(tmp_path / "f.png").convert("RGB")).astype(int)
    is_green = (picture == [0, 200, 0]).all(-1)
    assert is_green.sum() == 19 * 5 * 128 * 128  # every pixel four times in both directions, none blurred or covered
    assert ((picture == [55, 255, 55]).all(-1)).sum() == 19 * 128 * 128
    assert (np.diff(is_green.any(0).astype(int)) == 1).sum() == 2 * 5
    assert (np.diff(is_green.any(1).astype(int)) == 1).sum() == 10
    assert (picture[:, :2] == 255).all()  # the longest name has room
    assert picture.shape[1] / picture.shape[0] == pytest.approx(1.5, abs=0.3)
    with pytest.raises(InputError, match=r"ending in \.png or \.pdf"):
        draw_corruptions(tmp_path / "f.jpg", green[0], {"fog": green}, [1, 2, 3, 4, 5])


def accuracies(*values: float) -> dict[str, float]:
    return dict(zip(("gaussian_noise", "fog", "contrast"), values, strict=True))


# three seeds; averages of the before row 50, 53, 56 and of the after row 58, 60, 65
MT3: list[Rows] = [
    {"before": accuracies(50, 40, 60), "after": accuracies(60, 44, 70)},
    {"before": accuracies(53, 43, 63), "after": accuracies(61, 46, 73)},
    {"before": accuracies(56, 46, 66), "after": accuracies(66, 50, 79)},
]
JT = [{"before": accuracies(58, 45, 62), "after": accuracies(57, 45, 60)}]
BASELINE = [{"before": accuracies(40, 44, 36)}, {"before": accuracies(44, 44.04, 40)}]


@pytest.fixture
def folder(tmp_path) -> Path:
    for method, runs in (("mt3", MT3), ("jt", JT), ("baseline", BASELINE)):
        for seed, rows in enumerate(runs):
            clean = {row: 90.0 + seed + (2 if row == "after" else 0) for row in rows}
            write(tmp_path / "results" / f"{method}-{seed}.json", make_evaluation(method, seed, rows, clean))
    return tmp_path / "results"


def tables_of(folder: Path, published: bool = False) -> dict[str, Table]:
    sections = report_sections(collect([folder]), published)
    return {b.name: b for section in sections for b in section.blocks if isinstance(b, Table)}


def words(table: Table) -> dict[str, dict[str, str]]:
    """Line -> column -> what is printed, with a star if it is bold."""
    return {
        line.label: {c: ("*" if x.best else "") + x.words() for c, x in zip(table.columns, line.cells, strict=True)}
        for line in table.lines
    }


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
    ]
    assert got["contrast"]["MT3"] == f"*74.0 ± {math.sqrt((16 + 1 + 25) / 2):.2f}"
    assert got["gaussian_noise"]["MT"] == "53.0 ± 3.00"
    assert got["average"]["MT3"] == f"*61.0 ± {math.sqrt((9 + 1 + 16) / 2):.2f}"
    assert got["average"]["JT (ours)"] == "55.0"  # a single run has no deviation
    assert got["average"]["Baseline (ours)"] == f"41.3 ± {np.std([40, 42.68], ddof=1):.2f}"
    # over fog and contrast: 57, 59.5, 64.5
    assert got["average without †"]["MT3"] == f"*60.3 ± {np.std([57, 59.5, 64.5], ddof=1):.2f}"
    assert got["runs"] == dict(zip(table.columns, "21133", strict=True))


def test_ties_as_printed_are_all_bold_and_count_as_wins(folder):
    """Fog: 44.02 and 45.0 and 45.0 and 43.0 and 46.67; then MT3 loses it."""
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
        severities = change.pop("severities", (5,))
        write(tmp_path / name / "a.json", make_evaluation("mt3", 0, MT3[0], severities=severities, **change))
        table = tables_of(tmp_path / name, published=True)["accuracy"]
        assert reason in table.note
        assert all(cell.published is None for line in table.lines for cell in line.cells)


def test_gain_is_paired_over_seeds(folder):
    got = words(tables_of(folder)["gain"])["MT, MT3"]
    reach = 4.3027 * np.std([8, 7, 9], ddof=1) / math.sqrt(3)
    assert got["gain"] == f"+8.0 [+{8 - reach:.1f}, +{8 + reach:.1f}]"
    assert (got["fixed"], got["broken"]) == ("27", "9")  # 3 and 1 under each of 3 corruptions in 3 runs
    assert got["after - JT (ours)"] == "+3.0"  # of seed 0, the only one that both have
    single = words(tables_of(folder)["gain"])["JT (ours), TTT (ours)"]
    assert single["gain"] == "-1.0 [-3.0, +1.0]"  # its evaluation's own interval
    assert single["after - JT (ours)"] == "-"


UNFINISHED = {"trained_steps": 150, "total_steps": 3000}
MARK = " (150 of 3,000 steps)"


def test_an_unfinished_training_is_marked_wherever_it_stands(folder, capsys):
    for seed, rows in enumerate(MT3):
        clean = {"before": 90.0, "after": 91.0}
        write(folder / f"mt3-{seed}.json", make_evaluation("mt3", seed, rows, clean, **UNFINISHED))
    for steps in (3, 10):
        value = make_evaluation("mt3", 0, MT3[0], steps=steps, default_adaptation=False, **UNFINISHED)
        write(folder / f"steps-{steps}.json", value)
    write(folder / "first.json", make_evaluation("mt3", 0, MT3[0], ablation="first order"))
    assert main(["report", str(folder), "--published"]) == 0
    sentence = (
        "Not finished when evaluated: mt3 (150 of 3,000 steps). Nothing here that rests on this is a fair comparison."
    )
    printed = capsys.readouterr()
    assert sentence in printed.err.splitlines()
    assert f" MT3{MARK} |" in printed.out
    assert (folder / "report" / "report.md").read_text().startswith(f"# Report\n\n**{sentence}**\n\n## Accuracy")
    got = tables_of(folder, published=True)
    assert got["accuracy"].columns[2:] == ("TTT (ours)", f"MT{MARK}", f"MT3{MARK}")
    fog = dict(zip(got["accuracy"].columns, got["accuracy"].lines[1].cells, strict=True))
    assert fog[f"MT3{MARK}"].published.value == 75.9
    for name in ("gain", "runs", "calibration", "clean", "protocol", "ablations"):
        mine = [label for label in words(got[name]) if "MT" in label.replace("mt3", "MT3")]
        assert mine
        assert all("150 of 3,000 steps" in label for label in mine if "first order" not in label), name
    assert got["mce"].columns[-1] == f"MT3{MARK}"
    assert got["sweep-steps"].columns == (f"MT3{MARK} (32 views, lr 0.1)",)
    assert "fair rival" not in got["gain"].note
    why = f"of JT (ours) and MT3{MARK} it is NO FAIR comparison: not both trainings are finished."
    assert why in got["gain"].note
    assert (
        f"Differences from a training that is not finished are not fair: MT3: default{MARK}." in got["ablations"].note
    )
    records = list(csv.DictReader((folder / "report" / "table.csv").open()))
    assert not [r for r in records if "MT3" in (r["line"], r["column"]) and not r["table"].startswith(("p", "comp"))]
    (folder / "words.md").write_text("# Mine\n\nIn plain words.\n")
    assert main(["report", str(folder), "--words", str(folder / "words.md")]) == 0
    assert (folder / "report" / "report.md").read_text().startswith(f"# Mine\n\n**{sentence}**\n\nIn plain words.\n")


def test_an_unfinished_rival_is_no_fair_one(folder):
    assert "JT (ours) is the fair rival of MT3." in tables_of(folder)["gain"].note
    write(folder / "jt-0.json", make_evaluation("jt", 0, JT[0], **UNFINISHED))
    got = tables_of(folder)
    for name in ("gain", "runs"):
        assert f"after - JT (ours){MARK}" in got[name].columns
    assert "fair rival" not in got["gain"].note
    assert f"of JT (ours){MARK} and MT3 it is NO FAIR comparison" in got["gain"].note


def test_unlike_presets_and_lengths_are_no_fair_comparison(folder, tmp_path):
    write(folder / "jt-0.json", make_evaluation("jt", 0, JT[0], preset="cpu"))
    note = tables_of(folder)["gain"].note
    assert "it is NO FAIR comparison: JT (ours) is of preset cpu, MT3 of preset paper." in note
    for method, rows in (("jt", JT[0]), ("mt3", MT3[0])):
        write(tmp_path / "r" / method / "e.json", make_evaluation(method, 0, rows))
        write_run(tmp_path / "r" / method, config_to_dict(make_config(method, "cifar10", "paper")), [])
    assert "is the fair rival of MT3" in tables_of(tmp_path / "r")["gain"].note
    short = {"epochs": 1, "lr": 0.05}
    write_run(tmp_path / "r" / "jt", config_to_dict(make_config("jt", "cifar10", "paper", 0, short)), [])
    note = tables_of(tmp_path / "r")["gain"].note
    assert "JT (ours) is of preset paper with epochs=1.0, MT3 of preset paper." in note


def test_gains_without_controls_are_said(tmp_path):
    controls = {"clean_other": accuracies(55, 45, 59), "same_corruption": accuracies(57, 46, 60)}
    write(tmp_path / "jt.json", make_evaluation("jt", 0, JT[0] | controls))
    write(tmp_path / "mt3.json", make_evaluation("mt3", 0, MT3[0]))
    assert "Of MT3 no controls were evaluated" in tables_of(tmp_path)["gain"].note
    write(tmp_path / "mt3.json", make_evaluation("mt3", 0, MT3[0] | controls))
    assert "no controls" not in tables_of(tmp_path)["gain"].note


def test_how_long_and_with_what_stands_beside_the_papers(tmp_path):
    for method, rows, epochs in (("jt", JT[0], 3), ("mt3", MT3[0], 2)):
        write(tmp_path / method / "e.json", make_evaluation(method, 0, rows))
        settings = make_config(method, "cifar10", "paper", 0, {"epochs": epochs, "width": 8, "depth": 14})
        curve = [(e, 0.2, 0.3) for e in (1, 2)]
        write_run(tmp_path / method, config_to_dict(settings), curve, step=2, total_steps=2)
    write(tmp_path / "baseline.json", make_evaluation("baseline", 0, BASELINE[0]))  # without its run
    lines = {line.label: line for line in tables_of(tmp_path, published=True)["accuracy"].lines}
    told = [(cell.words(), cell.published.words()) for cell in lines["epochs"].cells]
    assert told == [("-", "200"), ("3", "200"), ("3", "200"), ("2", "200"), ("2", "200")]
    sizes = [(cell.words(), cell.published.words()) for cell in lines["layers x width"].cells]
    assert sizes == [("-", "26 x 32"), *[("14 x 8", "26 x 32")] * 4]
    alone = {line.label: line for line in tables_of(tmp_path)["accuracy"].lines}
    assert [cell.published for cell in alone["epochs"].cells] == [None] * 5
    (section,) = [s for s in report_sections(collect([tmp_path]), False) if s.title == "Convergence"]
    table, figure = section.blocks
    assert table.title == "Training of MT3, 2 epochs, beside the authors', 200 epochs"
    assert "These were trained for 2 epochs, the authors' for 200 epochs: the axes are not alike." in figure.caption
    assert figure.draw.keywords["told"] == "cifar10, 2 epochs"
    write(tmp_path / "mt3" / "run.json", {"config": config_to_dict(settings), "init": None})  # goes on
    (section,) = [s for s in report_sections(collect([tmp_path]), False) if s.title == "Convergence"]
    assert section.blocks[1].draw.keywords["told"] == "cifar10, 2 of 2 epochs"
    write_run(tmp_path / "mt3", config_to_dict(settings) | {"epochs": "?"}, curve)
    (section,) = [s for s in report_sections(collect([tmp_path]), False) if s.title == "Convergence"]
    assert section.blocks[1].draw.keywords["told"] == "cifar10, 2 epochs"  # what is seen of a damaged run


def test_the_papers_tables_say_how_long(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_report([], tmp_path / "out", published=True)
    records = {(r["table"], r["line"], r["column"]): r for r in csv.DictReader((tmp_path / "out" / "table.csv").open())}
    assert records["published-cifar10", "epochs", "MT3"]["value"] == "200.0"
    assert records["published-cifar10", "epochs", "JT (Sun et al.)"]["value"] == "150.0"


def test_images_and_their_uncertainty_are_told(tmp_path, capsys):
    write(tmp_path / "a.json", make_evaluation("baseline", 0, BASELINE[0], first=9000))
    assert main(["report", str(tmp_path), "--published"]) == 0
    out = capsys.readouterr().out
    assert "severity 5, 100 images from number 9,000 on\n" in out
    assert "With 100 images a corruption's accuracy is uncertain by up to 9.8 points (95 %)" in out
    assert "10,000 images of the published -C data; these images: generated by mt3 0.1.0 with seed 0." in out
    assert "Sun et al. it quotes" not in out  # none of them stands here


def test_missing_rival_is_said(tmp_path):
    write(tmp_path / "a.json", make_evaluation("mt3", 0, MT3[0]))
    table, split = gain_tables(rows_of(collect([tmp_path]).main), [5])
    assert "JT (ours) was not evaluated" in table.note
    assert split is None


def test_split_of_the_gain(tmp_path):
    for seed, rows in enumerate(MT3):
        controls = {"clean_other": accuracies(55, 45, 59 + seed), "same_corruption": accuracies(57, 46, 60 + seed)}
        write(tmp_path / f"{seed}.json", make_evaluation("mt3", seed, rows | controls))
    _, split = gain_tables(rows_of(collect([tmp_path]).main), [5])
    cells = dict(zip(split.columns, split.lines[0].cells, strict=True))
    offsets = [53 - 50, 53 + 1 / 3 - 53, 53 + 2 / 3 - 56]
    assert cells["offset"].value == pytest.approx(np.mean(offsets))
    assert cells["distribution"].value == pytest.approx(4 / 3)
    parts = sum(cells[name].value for name in ("offset", "distribution", "instance"))
    assert parts == pytest.approx(cells["gain"].value) == pytest.approx(8.0)
    assert cells["unrelated image"].value == pytest.approx(53 + 1 / 3)
    assert cells["same corruption"].value == pytest.approx(54 + 2 / 3)
    assert cells["adaptation"].value == pytest.approx(4 / 3 + cells["instance"].value)


def keep_answers(evaluation: dict, answers: dict[str, np.ndarray]) -> dict:
    """Give an evaluation the answers (corruptions, images) of its rows."""
    for number, entry in enumerate(evaluation["corruptions"]):
        entry["correct"] = {row: pack_correct(a[number]) for row, a in answers.items()}
        for row, a in answers.items():
            entry[row]["accuracy"] = 100 * a[number].mean()
        entry |= fixed_and_broken(answers["after"][number], answers["before"][number])
    evaluation["average"] |= {row: 100 * a.mean() for row, a in answers.items()}
    return evaluation | gains(answers)


def test_differences_paired_over_images(tmp_path):
    rng = np.random.default_rng(0)
    controls = {"clean_other": accuracies(55, 45, 59), "same_corruption": accuracies(57, 46, 60)}
    mt3 = [{row: rng.random((3, 100)) < 0.5 for row in ("before", "after", "clean_other")} for _ in range(2)]
    jt = {row: rng.random((3, 100)) < 0.5 for row in ("before", "after")}
    for seed, answers in enumerate(mt3):
        write(tmp_path / f"{seed}.json", keep_answers(make_evaluation("mt3", seed, MT3[seed] | controls), answers))
    write(tmp_path / "jt.json", keep_answers(make_evaluation("jt", 1, JT[0]), jt))
    table = paired_table(rows_of(collect([tmp_path]).main), [5])
    got = {line.label: dict(zip(table.columns, line.cells, strict=True)) for line in table.lines}["MT, MT3"]
    by_image = np.mean([100.0 * (a["after"].mean(0) - a["clean_other"].mean(0)) for a in mt3], axis=0)
    reach = 1.959964 * by_image.std(ddof=1) / 10
    assert got["adaptation"].value == pytest.approx(by_image.mean())
    assert got["adaptation"].interval == pytest.approx((by_image.mean() - reach, by_image.mean() + reach))
    against = 100.0 * (mt3[1]["after"].mean() - jt["before"].mean())  # seed 1, the only one that both have
    assert got["after - JT (ours)"].value == pytest.approx(against)
    by_run = words(run_table(rows_of(collect([tmp_path]).main), [5]))
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
    assert run_table(rows_of(collect([alone]).main), [5]) is None


def test_without_kept_answers_nothing_is_paired_over_images(folder, tmp_path):
    assert paired_table(rows_of(collect([folder]).main), [5]) is None
    damaged = make_evaluation("mt3", 0, MT3[0])
    damaged["corruptions"][0]["correct"] = {"before": "00"}
    for entry in damaged["corruptions"][1:]:
        entry["correct"] = {"before": "00" * 13}
    with pytest.raises(InputError, match=r"is not a whole evaluation.*1 bytes for 100 images"):
        collect([write(tmp_path / "a.json", damaged)])


def test_a_run_without_kept_answers_is_left_out_of_what_is_paired(tmp_path):
    answers = {row: np.random.default_rng(0).random((3, 100)) < 0.5 for row in ("before", "after")}
    write(tmp_path / "0.json", keep_answers(make_evaluation("mt3", 0, MT3[0]), answers))
    write(tmp_path / "1.json", make_evaluation("mt3", 1, MT3[1]))
    (line,) = words(paired_table(rows_of(collect([tmp_path]).main), [5])).values()
    assert line["gain"].startswith(f"{100 * (answers['after'].mean() - answers['before'].mean()):+.1f} [")
    assert line["runs"] == "1"


def test_answers_that_contradict_the_accuracy_are_refused(tmp_path):
    answers = {row: np.random.default_rng(0).random((3, 100)) < 0.5 for row in ("before", "after")}
    whole = keep_answers(make_evaluation("mt3", 0, MT3[0], {"before": 50.0, "after": 60.0}), answers)
    whole["clean"]["correct"] = {"before": "f" * 12 + "c" + "0" * 13}  # 50 of 100
    collect([write(tmp_path / "a.json", whole)])

    def shift(value: dict) -> None:  # the mean over corruptions stays
        value["corruptions"][0]["before"]["accuracy"] += 1
        value["corruptions"][1]["before"]["accuracy"] -= 1

    for spoil, message in (
        (shift, "gaussian_noise, before: the accuracy is not that of the answers"),
        (lambda v: v["average"].update(after=99.0), "average, after: the accuracy is not that of the answers"),
        (lambda v: v["gain"].update(high=99.0), "average: the gain is not that of the answers"),
        (lambda v: v["corruptions"][2].update(fixed=9999), "what was fixed is not that of the answers"),
        (lambda v: v["clean"]["before"].update(accuracy=99.0), "clean images, before: the accuracy is not that"),
    ):
        damaged = copy.deepcopy(whole)
        spoil(damaged)
        with pytest.raises(InputError, match=message):
            collect([write(tmp_path / "a.json", damaged)])


def test_clean_accuracy_and_its_cost(folder):
    got = words(clean_table(rows_of(collect([folder]).main)))
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
    assert cells["Baseline (ours)"].value == pytest.approx(100)
    assert cells["MT3"].value == pytest.approx(100 * (59 / 99 + 119 / 159) / 2)
    assert "over severity 4, 5 only" in note
    got = tables_of(tmp_path)
    assert words(got["severities"])["fog"]["MT3"] == "*70.5"
    assert words(got["mce"])["severity 4"]["MT"] == "46.0"
    assert words(got["mce"])["mCE"]["MT3"].startswith("*")
    assert words(got["accuracy"])["fog"]["MT3"] == "*70.0"  # the highest severity
    (tmp_path / "b.json").unlink()
    cells, note = corruption_errors(rows_of(collect([tmp_path]).main))
    assert cells is None
    assert "relative to a baseline, and none was evaluated" in note


def test_calibration_before_and_after(folder):
    got = words(tables_of(folder)["calibration"])
    assert got["MT"]["NLL in nats"] == "1.470 ± 0.0300"
    assert got["MT3"]["calibration error in %"] == f"6.1 ± {np.std([5.8, 6.0, 6.5], ddof=1):.2f}"


def test_component_table_is_the_papers():
    got = {line.label: [c.text for c in line.cells[:4]] for line in component_table().lines}
    assert tuple(got) == ROWS
    assert got["TTT (Sun et al.)"] == ["rotation", "-", "joint", "yes"]
    assert got["Baseline (ours)"] == ["-", "-", "CE", "-"]
    assert got["MT"] == ["BYOL", "yes", "meta", "-"]


def test_sweeps_and_ablations(folder):
    for steps, gain in ((3, 2.0), (10, -1.0)):
        for seed, rows in enumerate(MT3[:2]):
            after = {name: value + gain for name, value in rows["after"].items()}
            value = make_evaluation("mt3", seed, rows | {"after": after}, steps=steps, default_adaptation=False)
            write(folder / f"steps-{steps}-{seed}.json", value)
    write(folder / "lr.json", make_evaluation("mt3", 0, MT3[0], lr=0.3, default_adaptation=False))
    weak = {"before": MT3[0]["before"], "after": accuracies(50, 40, 63), "clean_other": accuracies(48, 40, 59)}
    write(folder / "first.json", make_evaluation("mt3", 0, weak, ablation="first order"))
    got = tables_of(folder)
    assert "steps-3" not in str(got["accuracy"])
    steps = words(got["sweep-steps"])
    assert {line: cells["MT3 (32 views, lr 0.1)"] for line, cells in steps.items()} == {
        "1": f"61.0 ± {np.std([58, 60, 65], ddof=1):.2f}",
        "3": f"61.0 ± {np.std([60, 62], ddof=1):.2f}",
        "10": f"58.0 ± {np.std([57, 59], ddof=1):.2f}",
    }
    assert list(words(got["sweep-lr"])) == ["0.1", "0.3"]
    assert "sweep-views" not in got
    settings = words(got["settings"])["MT3: steps 10, views 32, lr 0.1"]
    assert (settings["steps x views"], settings["runs"]) == ("320", "2")
    ablations = words(got["ablations"])
    assert list(ablations) == ["MT3: default", "MT3: first order"]
    assert ablations["MT3: first order"]["minus default"] == "-7.0"
    assert ablations["MT3: first order"]["after"] == "51.0"
    assert (ablations["MT3: default"]["adaptation"], ablations["MT3: first order"]["adaptation"]) == ("-", "+2.0")


def test_an_ablation_may_adapt_where_its_default_does_not(tmp_path):
    write(tmp_path / "a.json", make_evaluation("baseline", 0, {"before": {"fog": 50.0}}))
    value = make_evaluation("mt3", 0, {"before": {"fog": 60.0}, "after": {"fog": 65.0}}, ablation="with BYOL")
    value["protocol"]["method"] = "baseline"
    write(tmp_path / "b.json", value)
    got = words(tables_of(tmp_path)["ablations"])
    assert got["Baseline (ours): default"]["after"] == "-"
    assert got["Baseline (ours): with BYOL"]["after"] == "65.0"
    assert got["Baseline (ours): with BYOL"]["minus default"] == "+10.0"  # both before adapting


def test_sweeps_under_another_protocol_leave_the_default_out(folder):
    for steps in (3, 10):
        value = make_evaluation("mt3", 0, MT3[0], steps=steps, images=20, default_adaptation=False)
        write(folder / f"steps-{steps}.json", value)
    got = tables_of(folder)
    assert list(words(got["sweep-steps"])) == ["3", "10"]
    assert "under another protocol" in got["settings"].note


def test_report_writes_every_file_and_the_same_bytes_again(folder, capsys):
    config = config_to_dict(make_config("mt3", "cifar10", "paper", 0))
    write_run(folder / "run", config, [(e, e / 20, e / 15) for e in range(1, 13)])
    out = folder / "report"
    assert main(["report", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "| average " in printed
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    names = ["bars", "convergence"]
    figures = {f"{name}.{ending}" for name in names for ending in ("png", "pdf")}
    first = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(first) == figures | {"report.md", "table.tex", "table.csv"}
    assert all(name in printed for name in first)
    text = first["report.md"].decode()
    titles = re.findall("^## (.*)$", text, re.M)
    assert titles == [
        "Accuracy under corruption",
        "Before and after adapting",
        "Severities and mCE",
        "Likelihood and calibration",
        "Clean images",
        "Convergence",
        "Methods",
        "Protocol",
    ]
    for line in ("- data: cifar10, test split, 100 images", "- versions: mt3 0.1.0, numpy 2.0", "- severities: 5"):
        assert line in text
    records = {(r["table"], r["line"], r["column"]): r for r in csv.DictReader((out / "table.csv").open())}
    assert float(records["accuracy", "average", "MT3"]["value"]) == pytest.approx(61.0)
    assert float(records["accuracy", "average", "MT3"]["std"]) == pytest.approx(math.sqrt(13))
    assert first["table.tex"].count(rb"\begin{tabular}") == first["table.tex"].count(rb"\bottomrule") == 1
    assert main(["report", str(folder)]) == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == first


def test_words_come_first_and_the_page_may_lie_elsewhere(folder, tmp_path, capsys):
    (tmp_path / "words.md").write_text("# Results\n\nIn plain words.\n")
    words = ["--words", str(tmp_path / "words.md"), "--page", str(tmp_path / "RESULTS.md")]
    assert main(["report", str(folder), "--out", str(tmp_path / "a" / "b"), *words]) == 0
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.startswith("# Results\n\nIn plain words.\n\n## Accuracy under corruption\n")
    assert "![bars](a/b/bars.png)" in text
    assert (tmp_path / "a" / "b" / "bars.png").exists()
    assert not (tmp_path / "a" / "b" / "report.md").exists()
    (tmp_path / "words.md").write_text(
        "# MT3\n\n{{accuracy | average |\n MT3}}, {{gain | MT, MT3 | before | mean}} %\n"
    )
    assert main(["report", str(folder), "--out", str(tmp_path / "a" / "b"), *words]) == 0
    columns = {line.label: line for line in tables_of(folder)["accuracy"].lines}["average"].cells
    mt3 = columns[tables_of(folder)["accuracy"].columns.index("MT3")]
    before = f"{np.mean([np.mean(list(rows['before'].values())) for rows in MT3]):.1f}"
    assert (tmp_path / "RESULTS.md").read_text().startswith(f"# MT3\n\n{mt3.words()}, {before} %\n\n")
    capsys.readouterr()
    for wrong, message in (
        ("{{accuracy | average}}", "Expected {{table | line | column}} or {{... | mean}} in the words, got {{accuracy"),
        ("{{a | average | MT3}}", "there is no table 'a'; there are accuracy, "),
        ("{{accuracy | mean | MT3}}", "there is no line 'mean'; there are "),
        ("{{accuracy | average | MT4}}", "there is no column 'MT4'; there are "),
    ):
        (tmp_path / "words.md").write_text(wrong)
        assert main(["report", str(folder), "--out", str(tmp_path / "none"), *words]) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "none").exists()
    (tmp_path / "words.md").write_text("# Results\n\nIn plain words.\n")
    assert main(["report", str(folder), "--words", str(tmp_path / "no.md")]) == 2
    assert "Cannot read" in capsys.readouterr().err
    same = ["--words", str(tmp_path / "words.md"), "--page", str(tmp_path / "a" / ".." / "words.md")]
    assert main(["report", str(folder), *same]) == 2
    assert "would take the place of" in capsys.readouterr().err
    assert (tmp_path / "words.md").read_text() == "# Results\n\nIn plain words.\n"


def test_the_authors_curve_stands_only_beside_a_curve(folder):
    titles = [section.title for section in report_sections(collect([folder]), published=True)]
    assert "The paper's results" in titles
    assert "Convergence" not in titles


def test_published_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["report", "--published"]) == 0
    assert "**75.6 ± 0.30**" in capsys.readouterr().out
    assert (tmp_path / "report" / "table.tex").read_text().count(r"\begin{tabular}") == 2
    assert "Convergence" in (tmp_path / "report" / "report.md").read_text()


def test_refusals_on_the_command_line(folder, capsys):
    write(folder / "other.json", make_evaluation("baseline", 7, BASELINE[0], images=50))
    for arguments, expected in (
        ([], "Expected directories of results, got none"),
        ([folder], "images is"),
        ([folder / "nowhere"], "is not there"),
        ([folder, "--bars"], "Unexpected argument '--bars'"),
    ):
        assert main(["report", *map(str, arguments)]) == 2
        err = capsys.readouterr().err
        assert expected in err
        assert len(err.strip().splitlines()) == 1
    assert not (folder / "report").exists()


def test_clean_images_alone(tmp_path):
    rows: Rows = {"before": {}, "after": {}}
    write(tmp_path / "a.json", make_evaluation("mt3", 0, rows, {"before": 90.0, "after": 91.0}))
    text, files, _ = write_report([tmp_path], tmp_path / "out")
    assert text == ""
    assert "| MT3    |           91.0 |" in (tmp_path / "out" / "report.md").read_text()
    assert all(path.exists() for path in files)


def test_report_needs_no_torch(folder):
    write(folder / "steps.json", make_evaluation("mt3", 0, MT3[0], steps=3, default_adaptation=False))
    code = (
        "import sys\nfrom mt3.cli.main import main\nassert main(sys.argv[1:]) == 0\n"
        "assert not {'torch', 'scipy', 'safetensors', 'huggingface_hub'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, "report", folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    for name in ("bars", "sweep-steps", "sweep-cost"):
        assert Image.open(folder / "report" / f"{name}.png").size[0] >= 1000
        assert (folder / "report" / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_without_matplotlib_the_tables_are_written(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["report", str(folder)]) == 0
    assert "no figures: Figures need matplotlib" in capsys.readouterr().err
    assert {p.name for p in (folder / "report").iterdir()} == {"report.md", "table.tex", "table.csv"}
    assert ".png" not in (folder / "report" / "report.md").read_text()


def test_colours_belong_to_methods():
    assert tuple(row for row in COLOURS if row != "Supervised with B") == ROWS
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_bars_have_the_methods_colours(folder):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    write_report([folder], folder / "report")
    picture = np.asarray(Image.open(folder / "report" / "bars.png").convert("RGB")).astype(int)

    def area(row: str) -> int:
        colour = [int(COLOURS[row][i : i + 2], 16) for i in (1, 3, 5)]
        return int((np.abs(picture - colour).sum(-1) < 6).sum())

    # every row of the table; bars from 0: their areas are as the sums of the accuracies
    assert area("TTT (ours)") / area("JT (ours)") == pytest.approx((54 * 3 + 54) / (55 * 3 + 55), abs=0.03)
    assert area("MT3") / area("MT") == pytest.approx((61 * 3 + 61) / (53 * 3 + 53), abs=0.03)
    assert area("JT (Sun et al.)") == 0


def test_eight_rows_have_bars_of_their_own_in_two_panels(tmp_path):
    pytest.importorskip("matplotlib", reason="figures need matplotlib")
    names = "abcdefghijklmnop"
    draw_bars([tmp_path / "f.png"], {row: dict.fromkeys(names, Cell(60.0)) for row in ROWS}, names)
    picture = np.asarray(Image.open(tmp_path / "f.png").convert("RGB")).astype(int)
    for row in ROWS:
        colour = [int(COLOURS[row][i : i + 2], 16) for i in (1, 3, 5)]
        tall = (np.abs(picture - colour).sum(-1) < 6).sum(0) > 100
        starts, ends = np.flatnonzero(np.diff(np.pad(tall, 1).astype(int))).reshape(-1, 2).T
        assert (ends - starts >= 12).sum() == 9, (
            row
        )  # groups of the two panels lie below each other, but for the average


def test_authors_curve_in_percent():
    curve = authors_curve()
    assert curve.before.shape == curve.after.shape == (3, 200)
    assert (curve.epochs[0], curve.epochs[-1]) == (1, 200)
    assert curve.after[:, 199].mean() == pytest.approx(98.5, abs=0.05)
