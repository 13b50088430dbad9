"""An evaluation's file: what is read from it, what follows from that, and what is refused."""

import json

import numpy as np
import pytest

from evaluations import JT, MT3, UNFINISHED, make_evaluation, make_run, write
from mt3.results import Run, facts, read_evaluation, read_run
from mt3.results.runs import about_run
from mt3.results.statistics import unpack_correct
from mt3.support.errors import InputError

ROWS = {"before": {"snow": 60.0, "fog": 50.0}, "after": {"snow": 61.0, "fog": 55.0}}


def read(folder, *arguments, **changes):
    return read_evaluation(write(folder / "a.json", make_evaluation(*arguments, **changes)))


def test_facts_of_three_answers():
    p = np.array([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]], dtype=np.float32)
    got = facts({"before": p}, np.array([0, 1, 1]))["before"]
    assert unpack_correct(got["correct"], 3).tolist() == [True, True, False]
    assert got["nll"] == pytest.approx(-(np.log(0.9) + np.log(0.6) + np.log(0.3)) / 3, rel=1e-6)
    # three different bins: gaps 0.9 - 1, 0.6 - 1, 0.7 - 0
    assert got["calibration_error"] == pytest.approx(100 * (0.1 + 0.4 + 0.7) / 3, rel=1e-6)
    assert json.loads(json.dumps(got)) == got


def test_accuracies_are_means_of_what_is_asked_for(tmp_path):
    e = read(tmp_path, "mt3", 0, ROWS, {"before": 90.0, "after": 89.0}, severities=(4, 5))
    assert e.corruptions == ["fog", "snow"]  # as in the paper's tables
    assert e.severities == [4, 5]
    assert e.accuracy("before", "fog", 5) == pytest.approx(50)
    assert e.accuracy("before", "fog") == pytest.approx(50.5)
    assert e.accuracy("before", severity=5) == pytest.approx(55)
    assert e.accuracy() == pytest.approx(58.5)
    assert e.accuracy(severity=0) == pytest.approx(89)
    assert e.mean("nll", "before", severity=5) == pytest.approx(2 - 0.55)
    assert e.answers("after", "fog", 5)[0].interval == pytest.approx((51.90, 58.06), abs=0.01)  # Wilson
    for asked in (("same_corruption",), ("after", "frost"), ("after", "fog", 3)):
        with pytest.raises(InputError, match=r"a\.json does not hold all of row"):
            e.accuracy(*asked)


def test_gains_and_flips_follow_from_the_answers(tmp_path):
    controls = {"clean_other": JT[0]["before"], "same_corruption": JT[0]["after"]}
    e = read(tmp_path, "mt3", 0, MT3[0] | controls)
    parts = [e.gain(name).mean for name in ("offset", "distribution", "instance")]
    assert parts == pytest.approx([5, -1, 4])
    assert e.gain().mean == pytest.approx(sum(parts))
    assert e.gain("adaptation").mean == pytest.approx(3)
    d = np.array([0] * 500 + [100] * 100 + [0] * 400)  # gaussian noise: images 500 to 599 are put right
    reach = 1.959964 * d.std(ddof=1) / np.sqrt(1000)
    assert e.gain("gain", "gaussian_noise") == pytest.approx((10, 10 - reach, 10 + reach))
    assert e.fixed_and_broken() == (100 + 40 + 100, 0)
    assert read(tmp_path, "jt", 0, JT[0]).fixed_and_broken(5) == (0, 30)


def test_the_run_is_typed_and_says_how_long_it_is(tmp_path):
    run = read(tmp_path, "mt3", 3, ROWS, run={"epochs": [5.0, 1.35, 0.32], **UNFINISHED}).run
    assert (run.method, run.seed, run.unfinished, run.mark) == ("mt3", 3, True, " (150 of 3,000 steps)")
    assert run.epoch_words == "6.35 + 0.32"
    assert Run(**make_run(epochs=[27.0])).epoch_words == "27"
    e = read(tmp_path, "mt3", 0, ROWS, adaptation={"steps": 3, "lr": 1})
    assert e.setting == (3, 32, 1.0)
    unknown = make_evaluation("mt3", 0, ROWS) | {}
    unknown["protocol"]["run"] = None
    e = read_evaluation(write(tmp_path / "b.json", unknown))
    assert e.accuracy() == pytest.approx(58)
    with pytest.raises(InputError, match="does not say which training"):
        _ = e.run


def test_what_tells_two_trainings_apart():
    one = Run(**make_run())
    assert one.unlike(Run(**make_run(seed=1, label="x", step=1))) == []
    other = make_run(epochs=[3.0], overrides={"epochs": 3.0, "lr": 0.1, "anchor": None})
    assert one.unlike(Run(**other)) == ["epochs", "anchor", "lr"]


def test_a_run_file_says_what_it_is_about(tmp_path):
    run, value = read_run(write(tmp_path / "run.json", {"about": make_run(), "config": {"start": "jt"}}))
    assert (run.network, value["config"]["start"]) == ("resnet26x32", "jt")
    for wrong in ({}, {"about": {}}, {"about": make_run(epochs=[])}, {"about": make_run(epochs=["?"])}):
        assert read_run(write(tmp_path / "run.json", wrong)) is None


CONTROLLED = ROWS | {"clean_other": ROWS["before"], "same_corruption": ROWS["before"]}
DAMAGE = {
    "a control's answers": lambda v: v["corruptions"][0]["rows"]["clean_other"].pop("correct"),
    "a corruption": lambda v: v["corruptions"].pop(),
    "its name": lambda v: v["corruptions"][0].update(name="frost"),
    "its rows": lambda v: v["corruptions"][0].update(rows=[1]),
    "the row before": lambda v: v["corruptions"][0]["rows"].pop("before"),
    "the clean images": lambda v: v.pop("clean"),
    "the list": lambda v: v["protocol"].pop("severities"),
    "a likelihood": lambda v: v["corruptions"][0]["rows"]["after"].update(nll=float("nan")),
    "a calibration error": lambda v: v["corruptions"][0]["rows"]["after"].update(calibration_error=None),
    "the steps": lambda v: v["protocol"]["adaptation"].update(steps="one"),
    "the rate": lambda v: v["protocol"]["adaptation"].update(lr=float("inf")),
    "the label": lambda v: v["protocol"].update(label=None),
    "the seed": lambda v: v["protocol"]["run"].update(seed=[0]),
    "the versions": lambda v: v["protocol"].update(versions=["2.0"]),
    "the method": lambda v: v["protocol"]["run"].update(method="mt4"),
    "the data": lambda v: v["protocol"].update(data=["cifar10"]),
    "the steps trained": lambda v: v["protocol"]["run"].update(step="150"),
    "the steps to train": lambda v: v["protocol"]["run"].pop("total_steps"),
    "more steps than there are": lambda v: v["protocol"]["run"].update(step=3001),
    "the images": lambda v: v["protocol"].update(images=None),
    "no images": lambda v: v["protocol"].update(images=0),
    "a truth for a number": lambda v: v["protocol"].update(images=True),
    "a name that a terminal obeys": lambda v: v["protocol"].update(data="\x1b[31mcifar10"),
    "a name without end": lambda v: v["protocol"].update(data="x" * 10_000),
    "a version in several lines": lambda v: v["protocol"].update(versions={"torch": "2\n3"}),
    "the answers": lambda v: v["corruptions"][0]["rows"]["before"].update(correct="zz"),
    "answers of fewer images": lambda v: v["corruptions"][0]["rows"]["before"].update(correct="ff"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_evaluation_is_one_sentence(tmp_path, damage):
    value = make_evaluation("mt3", 0, CONTROLLED)
    read_evaluation(write(tmp_path / "a.json", value))
    damage(value)
    sentence = r"a\.json is not (a )?whole (evaluation )?\(.*\); evaluate again\."
    with pytest.raises(InputError, match=sentence) as refused:
        read_evaluation(write(tmp_path / "a.json", value))
    assert "\n" not in str(refused.value)


def test_what_is_no_evaluation_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"a\.json is not an evaluation; give files that `mt3 evaluate` wrote"):
        read_evaluation(write(tmp_path / "a.json", {}))
    (tmp_path / "cut.json").write_text("{")
    with pytest.raises(InputError, match=r"cut\.json is not whole \(.*\); evaluate again"):
        read_evaluation(tmp_path / "cut.json")
    with pytest.raises(InputError, match=r"no\.json is not whole"):
        read_evaluation(tmp_path / "no.json")


def test_what_is_told_of_a_run_is_whole_or_refused(tmp_path):
    about = make_run("mt3", 0)
    assert about_run({"config": {}, "step": 1, "about": about}, tmp_path) == about
    assert about_run({}, tmp_path) is None  # a model that is no run
    with pytest.raises(InputError, match=r"is not finished; continue it with --resume"):
        about_run({"config": {}}, tmp_path)
    wrong = ({"step": 3, "total_steps": 2}, {"step": "1"}, {"method": "mt4"}, {"epochs": []}, {"label": "a\nb"})
    for damaged in (None, 5, {}, *(about | w for w in wrong)):
        with pytest.raises(InputError, match=r"run\.json is damaged: about is not whole"):
            about_run({"config": {}, "step": 1, "about": damaged}, tmp_path)
