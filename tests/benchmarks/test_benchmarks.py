"""Benchmarks: what is counted, that peers compute the same, and that the numbers shown follow from the times."""

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import (
    adapt,
    augment,
    batch_step,
    corruptions,
    everything,
    floor,
    growth,
    meta_step,
    methods,
    peers,
    ranks,
)
from benchmarks.commands import make_parser
from benchmarks.corruptions import bench_corruptions, corruptions_summary
from benchmarks.timing import alternate, compared
from mt3.cli.main import run_command
from mt3.config.adaptation import Adaptation
from mt3.corruptions import PAPER, available
from mt3.data import load_digits
from mt3.models.classifier import MT3Model
from mt3.support.errors import InputError

ROOT = Path(__file__).parents[2]
STEP = meta_step.Setting(width=4, depth=8, tasks=2, task_size=2)
ADAPT = adapt.Setting(width=4, depth=8, views=2, images=2)
BATCH = batch_step.Setting(width=4, depth=8, images=8)


def bench(words: list[str]) -> int:
    """Exit code of `python -m benchmarks`."""
    return run_command(make_parser, words)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_rounds_alternate_and_the_first_only_warms_up():
    clock = itertools.accumulate(itertools.count(1))  # 1, 3, 6, 10, ...: every interval is longer than the one before
    calls: list[str] = []
    times = alternate({name: lambda name=name: calls.append(name) for name in "ab"}, 2, lambda: next(clock))
    assert calls == ["a", "b"] * 3
    assert times == {"a": [6, 10], "b": [8, 12]}
    with pytest.raises(InputError, match="at least one round, got 0"):
        alternate({}, 0)


def test_ratios_are_taken_round_by_round():
    ours, theirs = compared({"mt3": [1.0, 2.0, 4.0], "peer": [3.0, 2.0, 8.0]}, work=80.0, best=100.0)
    assert ours == {
        "name": "mt3",
        "seconds": {"median": 2.0, "min": 1.0, "max": 4.0},
        "share_of_floor": {"median": 0.4, "min": 0.2, "max": 0.8},
    }
    assert theirs["ratio"] == {"median": 2.0, "min": 1.0, "max": 3.0}  # not the ratio of medians, 1.5
    assert theirs["share_of_floor"]["max"] == pytest.approx(0.4)
    assert "share_of_floor" not in compared({"mt3": [1.0]})[0]


def test_best_rate_is_that_of_the_fastest_product(monkeypatch):
    monkeypatch.setattr(floor, "MATRIX", 16)
    monkeypatch.setattr(floor, "alternate", lambda calls, rounds: {name: [0.5, 0.25] for name in calls})
    assert floor.alternate_with_floor({"mt3": list}, 2) == ({"mt3": [0.5, 0.25]}, 2 * 16**3 / 0.25)


def counted(call) -> int:
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize(("width", "depth", "variant"), [(4, 8, "paper"), (8, 14, "official")])
def test_operations_of_a_forward_pass_are_those_pytorch_counts(width, depth, variant):
    model = MT3Model(f"resnet{depth}x{width}", adaptation=Adaptation(variant=variant))
    by_layer = floor.layer_flops(model)
    assert by_layer["backbone.early.stem"] == 2 * 32 * 32 * 27 * width
    assert by_layer["classify"] == 2 * 256 * 10
    assert 3 * sum(by_layer.values()) == counted(lambda: model.outputs(torch.zeros(3, 3, 32, 32)))


@pytest.mark.parametrize("inner_steps", [1, 2])
def test_operations_of_a_meta_step_are_those_pytorch_counts(monkeypatch, inner_steps):
    """The package computes the heads for all rows, which the method does not need; they are small."""
    monkeypatch.setattr(
        "mt3.training.loop.stack_size", lambda *_: 1
    )  # PyTorch counts groups wrongly in backward passes
    setting = replace(STEP, width=16, inner_steps=inner_steps)
    model = meta_step.prepare(setting).state.model
    needed = floor.meta_step_flops(model, 2, 2, inner_steps)
    done = counted(meta_step.our_step(setting))
    assert needed <= done <= 1.01 * needed
    assert needed == pytest.approx((9 + 18 * inner_steps) * 4 * sum(floor.layer_flops(model).values()), rel=0.04)


@pytest.mark.parametrize("method", batch_step.METHODS)
def test_operations_of_a_batch_are_those_pytorch_counts(method):
    call, model = batch_step.batch_step(replace(BATCH, width=16), method, "float32")
    needed = BATCH.images * batch_step.batch_flops(model, joint=method == "jt")
    assert needed <= counted(call) <= 1.01 * needed


def test_operations_of_adapting_are_those_pytorch_counts(monkeypatch):
    monkeypatch.setattr("mt3.adaptation.adapter.stack_size", lambda *_: 1)
    model, _ = adapt.prepare(replace(ADAPT, width=16))
    done = counted(adapt.our_answer(replace(ADAPT, width=16)))
    needed = 2 * floor.adapt_flops(model, 2)
    assert needed <= done <= 1.01 * needed
    assert floor.adapt_flops(model, 32) == pytest.approx(193 * sum(floor.layer_flops(model).values()), rel=0.04)


@pytest.mark.parametrize("name", peers.META_STEP)
@pytest.mark.parametrize("inner_steps", [1, 2])
def test_gradients_of_peers_are_ours(name, inner_steps):
    found, absent = peers.load_peers({name: peers.META_STEP[name]})
    if absent:
        pytest.skip(f"needs {name}, of the extra bench")
    setting = replace(STEP, inner_steps=inner_steps)
    assert meta_step.gradient_error(setting, found[name]) <= 1e-12
    step, ours = meta_step.peer_step(setting, found[name]), meta_step.our_step(setting)()
    for _ in range(2):  # a second step starts from the same weights
        assert (step() - ours).norm() <= 1e-4 * ours.norm()


@pytest.mark.parametrize("name", peers.ADAPT)
def test_logits_of_peers_are_ours(name):
    found, absent = peers.load_peers({name: peers.ADAPT[name]})
    if absent:
        pytest.skip(f"needs {name}, of the extra bench")
    call = adapt.peer_answer(ADAPT, found[name])
    ours = adapt.our_answer(ADAPT)()
    for _ in range(2):
        assert torch.allclose(call(), ours, rtol=0, atol=adapt.CLOSE)


def test_peers_run_on_pytorchs_layers():
    model = meta_step.prepare(STEP).state.model
    kinds = {type(m) for m in peers.torch_layers(model).modules() if not list(m.children())}
    assert kinds == {torch.nn.Conv2d, torch.nn.GroupNorm, torch.nn.Linear, torch.nn.ReLU}
    assert type(model.backbone.early.stem) is not torch.nn.Conv2d  # the copy alone was changed


@pytest.fixture
def quick(monkeypatch):
    """No processes, little growth, small matrices; a peer that is not installed and one that is wrong."""

    def load_missing():
        raise ImportError("No module named 'missing'")

    monkeypatch.setattr(floor, "MATRIX", 64)
    for module in (meta_step, adapt, growth):
        monkeypatch.setattr(module, "peak_memory", lambda make, *args: 1.5)
    monkeypatch.setattr(meta_step, "SCALING", {"tasks": (1,)})
    monkeypatch.setattr(adapt, "SCALING", {"views": (1,)})
    wrong = {"wrong": lambda: lambda model, task, config: 2 * peers.plain_loss(model, task, config)}
    monkeypatch.setattr(meta_step, "META_STEP", {"plain": lambda: peers.plain_loss, "missing": load_missing} | wrong)
    shifted = {"wrong": lambda: lambda model, image, views: peers.plain_adapt(model, image, views) + 1}
    monkeypatch.setattr(peers, "ADAPT", {"plain": lambda: peers.plain_adapt, "missing": load_missing} | shifted)
    monkeypatch.setattr(augment, "PEERS", {"missing": load_missing})
    monkeypatch.setattr(everything, "META_STEPS", (STEP,))
    monkeypatch.setattr(everything, "ADAPTATIONS", (ADAPT,))
    monkeypatch.setattr(everything, "BATCHES", (BATCH,))
    monkeypatch.setattr(everything, "load", lambda name: tiny_model())
    monkeypatch.setattr(everything, "METHOD_IMAGES", 2)
    monkeypatch.setattr(everything, "RANKED", STEP)
    monkeypatch.setattr(ranks, "Steps", RankSteps)


class RankSteps:
    """Stands for processes: a rank costs a tenth of the processor's time, messages a twentieth of a step of four."""

    def __init__(self, setting, count, held):
        self.told, self.costs = [], {"step": 4.0, "processor": 1 + 0.1 * count, "waiting": 1.0, "messages": 0.2}

    def __call__(self):
        self.told.append(self.costs)


def test_what_ranks_cost_follows_from_the_times(quick):
    result = ranks.bench_ranks(STEP, rounds=2)
    assert result["overhead"]["of the processor"]["median"] == pytest.approx(1.1)
    assert result["shares"] == {
        "waiting": {"median": 0.25, "min": 0.25, "max": 0.25},
        "messages": {"median": 0.05, "min": 0.05, "max": 0.05},
    }
    assert result["message_bytes"] == 4 * result["parameters"]
    assert "5.0 % (5.0..5.0) of their time goes to messages" in ranks.ranks_summary(result)


def tiny_model() -> MT3Model:
    return MT3Model("resnet8x4g2", 10, adaptation=Adaptation(views=2)).eval()


def test_methods_alternate_with_the_plain_forward_pass(monkeypatch):
    asked = []

    def measured(calls, rounds):
        asked.append(rounds)
        assert all(call().shape == (4, 10) for call in calls.values())  # each answers every image
        return {name: [4.0 * number, 8.0 * number] for number, name in enumerate(calls, start=1)}

    monkeypatch.setattr(methods, "alternate", measured)
    result = methods.bench_methods(tiny_model(), 4, 2)
    assert asked == [2]
    plain, own, *others = result["candidates"]
    assert plain == {
        "name": "forward pass",
        "passes": 1.0,
        "seconds": {"median": 1.5, "min": 1.0, "max": 2.0},
        "ratio": {"median": 1.0, "min": 1.0, "max": 1.0},
    }
    assert (own["name"], own["passes"], own["ratio"]["median"]) == ("own, per image", 13.0, 2.0)
    named = {c["name"] for c in others}
    assert {"own, online", "tent, per image", "tent, online", "memo, per image", "t3a, online"} <= named
    assert "t3a, per image" not in named
    assert any(a["name"] == "norm, online" and "no batch normalisation" in a["reason"] for a in result["absent"])
    text = methods.methods_summary(result)
    assert "| own, per image" in text
    assert "2.0 (2.0..2.0)" in text
    with pytest.raises(InputError, match="at least two images to measure on, got 1"):
        methods.bench_methods(tiny_model(), 1)


def test_everything_goes_into_one_file(quick, tmp_path, capsys):
    assert bench(["all", "--rounds", "1", "--threads", "1", "--json", str(tmp_path / "all.json")]) == 0
    out = capsys.readouterr().out
    written = json.loads((tmp_path / "all.json").read_text())
    assert written["benchmark"] == "all"
    assert [r["benchmark"] for r in written["results"]] == [
        "meta-step",
        "batch-step",
        "ranks",
        "adapt",
        "methods",
        "augment",
        "corruptions",
    ]
    assert (
        out == "".join(f"{everything.summary(r)}\n\n" for r in written["results"]) + f"wrote {tmp_path / 'all.json'}\n"
    )
    for result in (written["results"][0], written["results"][3]):
        assert result["candidates"][0]["name"] == "mt3"
        assert {"plain", "mt3 bfloat16"} <= {c["name"] for c in result["candidates"]}
        for candidate in result["candidates"]:
            assert candidate["seconds"]["min"] <= candidate["seconds"]["median"] <= candidate["seconds"]["max"]
            assert candidate["share_of_floor"]["median"] > 0
            assert ("ratio" in candidate) == (candidate["name"] != "mt3")
        assert [p["name"] for p in result["absent"]] == ["missing", "wrong"]
        assert result["peak_mb"] == {"mt3": 1.5, "plain": 1.5}
        assert result["machine"]["threads"] == 1
        assert [entry["value"] for entry in result["scaling"]] == [1, 2]
        assert ["ratio" in entry for entry in result["scaling"]] == [True, False]
    (loop,) = [c for c in written["results"][3]["candidates"] if c["name"] == "mt3 loop"]
    assert loop["logits_error"] < adapt.CLOSE
    step = written["results"][0]
    assert step["setting"] == {
        "width": 4, "depth": 8, "tasks": 2, "task_size": 2, "inner_steps": 1, "precision": "float32",
    }  # fmt: skip
    assert step["candidates"][1]["gradient_error"] < 1e-12
    assert step["candidates"][-1]["gradient_cosine"] > 0.9
    assert 0 < step["input_share"]["median"] < 1
    assert "absent: missing (No module named 'missing'); pip install -c constraints.txt '.[bench]'" in out
    assert "absent: wrong (its gradient differs by 1 of ours)\n" in out
    assert "absent: wrong (its logits differ by 1)\n" in out


def hold(megabytes: int):
    """Work that writes to so much memory."""
    return lambda: bytearray(megabytes * 2**20).count(0)


def test_peak_memory_is_what_the_work_held():
    assert floor.peak_memory(hold, 64) == pytest.approx(64, abs=8)


@pytest.fixture
def result(monkeypatch) -> dict:
    """Every corruption takes 10 s in the first round, 20 in the second, 60 in the third; nothing is computed."""
    monkeypatch.setattr(
        corruptions, "alternate", lambda names, rounds, clock: {name: [10.0, 20.0, 60.0] for name in names}
    )
    return bench_corruptions(load_digits(), images=100, severity=3, rounds=3)


def test_times_become_medians_with_their_spread(result):
    assert [entry["name"] for entry in result["corruptions"]] == list(available())
    entry = result["corruptions"][0]
    assert entry["ms_per_image"] == {"median": 200, "min": 100, "max": 600}
    assert entry["images_per_second"] == pytest.approx({"median": 5, "min": 100 / 60, "max": 10})
    missing = [name for name in PAPER if name not in available()]
    there = 15 - len(missing)
    assert result["paper"]["ms_per_image"] == {"median": 200 * there, "min": 100 * there, "max": 600 * there}
    assert result["paper"]["missing"] == missing
    assert (result["images"], result["severity"], result["rounds"], result["data"]) == (100, 3, 3, "digits")


def test_summary_shows_the_table_and_the_sum(result):
    result["paper"] = {"ms_per_image": {"median": 1.5, "min": 1.25, "max": 2.0}, "missing": ["snow", "frost"]}
    lines = corruptions_summary(result).splitlines()
    assert lines[0] == "100 images of digits, 32 pixels, at severity 3, one core: median of 3 rounds, by processor time"
    assert [cell.strip() for cell in lines[4].strip("|").split("|")] == [
        "gaussian_noise", "5", "200.000", "100.000..600.000",
    ]  # fmt: skip
    assert lines[-1] == "13 of the paper's 15 together: 1.500 ms/image (1.250..2.000); without snow, frost"
    result["paper"]["missing"] = []
    assert corruptions_summary(result).endswith("15 of the paper's 15 together: 1.500 ms/image (1.250..2.000)")


def test_real_times_are_positive_and_ordered(capsys, tmp_path):
    words = ["corruptions", "--images", "3", "--pixels", "48", "--rounds", "2", "--json", str(tmp_path / "b.json")]
    assert bench(words) == 0
    result = json.loads((tmp_path / "b.json").read_text())
    assert (result["size"], result["parameter_set"]) == (48, 64)
    for entry in (*result["corruptions"], result["paper"]):
        times = entry["ms_per_image"]
        assert 0 < times["min"] <= times["median"] <= times["max"]
    out = capsys.readouterr().out
    assert out.startswith(corruptions_summary(result))
    assert out.endswith(f"wrote {tmp_path / 'b.json'}\n")
    with pytest.raises(InputError, match="at least one image to measure on, got 0; raise --images"):
        bench_corruptions(load_digits(), images=0)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("meta-step --depth 9", "Expected a depth of 6n+2 layers"),
        ("adapt --images 0", "Expected at least one image to measure on, got 0"),
        ("augment --images 0", "Expected at least one image and one repeat, got 0"),
        ("speed", "Unknown benchmark 'speed': expected one of meta-step, batch-step"),
        ("adpat", "Unknown benchmark 'adpat' (did you mean 'adapt'?)"),
        ("adapt --veiws 3", "(did you mean '--views'?); see `python -m benchmarks adapt --help`."),
        ("corruptions --severity 6", "Expected severities from 1 to 5, got 6"),
        ("corruptions --pixels 8", "Expected the side of the images to be a whole number from 16 to 512, got 8"),
        ("corruptions --images 0", "Expected at least one image to measure on, got 0"),
        ("corruptions --rounds 0", "Expected at least one round, got 0; raise --rounds."),
        ("corruptions --data-dir photos", "The digits do not come from --data-dir photos"),
        ("corruptions --json /proc/none/x.json", "Cannot write /proc/none/x.json"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_measured(capsys, words, expected):
    assert bench(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert expected in err
    assert len(err.splitlines()) == 1


def test_corruptions_are_measured_without_torch():
    code = "import sys\nfrom benchmarks.commands import make_parser\nfrom mt3.cli.main import run_command\n"
    code += "assert run_command(make_parser, sys.argv[1:]) == 0\nassert 'torch' not in sys.modules\n"
    words = [sys.executable, "-c", code, "corruptions", "--images", "1", "--rounds", "1"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
