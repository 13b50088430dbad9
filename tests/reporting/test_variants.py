"""Other settings at test time, and ablations of the training."""

import numpy as np

from evaluations import BASELINE, JT, MARK, MT3, UNFINISHED, accuracies, make_evaluation, tables_of, words, write


def swept(rows, seed: int = 0, **settings):
    images = settings.pop("images", 1000)
    return make_evaluation("mt3", seed, rows, adaptation=settings, own_adaptation=False, images=images)


def test_sweeps_and_ablations(folder):
    for steps, gain in ((3, 2.0), (10, -1.0)):
        for seed, rows in enumerate(MT3[:2]):
            after = {name: value + gain for name, value in rows["after"].items()}
            write(folder / f"steps-{steps}-{seed}.json", swept(rows | {"after": after}, seed, steps=steps))
    write(folder / "lr.json", swept(MT3[0], lr=0.3))
    weak = {"before": MT3[0]["before"], "after": accuracies(50, 40, 63), "clean_other": accuracies(48, 40, 59)}
    write(folder / "first.json", make_evaluation("mt3", 0, weak, label="first order"))
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
    assert ablations["MT3: first order"]["minus default"].startswith("-7.0 [")
    assert ablations["MT3: first order"]["after"] == "51.0"
    assert ablations["MT3: default"]["adaptation"] == "-"
    assert ablations["MT3: first order"]["adaptation"].startswith("+2.0 [")


def test_an_ablation_stands_beside_joint_training_of_the_same_label(tmp_path):
    write(tmp_path / "a.json", make_evaluation("mt3", 0, MT3[0], label="width 4"))
    write(tmp_path / "b.json", make_evaluation("jt", 0, JT[0], label="width 4"))
    write(tmp_path / "c.json", make_evaluation("mt3", 0, MT3[0], label="width 8"))
    table = tables_of(tmp_path)["ablations"]
    got = words(table)
    assert got["MT3: width 4"]["minus JT (ours)"].startswith("+3.0 [")
    assert got["MT3: width 8"]["minus JT (ours)"] == got["TTT (ours): width 4"]["minus JT (ours)"] == "-"
    assert "The default TTT (ours), MT3 was not evaluated under this protocol." in table.note
    write(tmp_path / "b.json", make_evaluation("jt", 0, JT[0], label="width 4", run=UNFINISHED))
    table = tables_of(tmp_path)["ablations"]
    assert words(table)["MT3: width 4"][f"minus JT (ours){MARK}"].startswith("+3.0 [")
    assert f"that is not finished are not fair: TTT (ours): width 4{MARK}." in table.note


def test_an_ablation_may_adapt_where_its_default_does_not(tmp_path):
    write(tmp_path / "a.json", make_evaluation("baseline", 0, {"before": {"fog": 50.0}}))
    rows = {"before": {"fog": 60.0}, "after": {"fog": 65.0}}
    write(tmp_path / "b.json", make_evaluation("baseline", 0, rows, label="with BYOL"))
    got = words(tables_of(tmp_path)["ablations"])
    assert got["Baseline (ours): default"]["after"] == "-"
    assert got["Baseline (ours): with BYOL"]["after"] == "65.0"
    assert got["Baseline (ours): with BYOL"]["minus default"].startswith("+10.0 [")  # both before adapting


def test_ablations_of_methods_that_are_not_there_alter_nothing(folder):
    write(folder / "b.json", make_evaluation("baseline", 0, BASELINE[1], label="longer"))
    assert list(words(tables_of(folder)["ablations"])) == ["Baseline (ours): default", "Baseline (ours): longer"]


def test_sweeps_under_another_protocol_leave_the_default_out(folder):
    for steps in (3, 10):
        write(folder / f"steps-{steps}.json", swept(MT3[0], steps=steps, images=100))
    got = tables_of(folder)
    assert list(words(got["sweep-steps"])) == ["3", "10"]
    assert "under another protocol" in got["settings"].note
