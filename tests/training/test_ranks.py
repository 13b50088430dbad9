"""Ranks: real processes that Gloo joins on this machine train what one process trains, and end together."""

import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

import rank_script
from mt3.cli.arguments import set_up
from mt3.cli.main import main
from mt3.config.methods import METHODS
from mt3.models.store import load_checkpoint, read_run
from mt3.support import ranks
from mt3.support.files import own_directory
from mt3.training.loop import gradient_of_step
from mt3.training.state import make_state
from rank_runs import STEPS, difference, sentences, torchrun, words
from trainings import metrics, small_config

FIVE = [method for method in METHODS if METHODS[method].paper]
TOLERANCE = {"float64": 1e-10, "float32": 1e-4}
# In float32 rounding alone moves some activation across the kink of its ReLU, and with the paper's rate of 0.01 twenty
# steps make a difference of 1e-3 of it, on one process with another number of threads as well: smaller steps here.
RATES = {"float64": {}, "float32": {"mt3": "3e-4"} | {method: "1e-3" for method in FIVE if method != "mt3"}}


def all_commands(folder: Path, kind: str) -> list[list[str]]:
    return [words(m, folder / f"{m}-{kind}", STEPS, *(["--lr", RATES[kind][m]] if RATES[kind] else [])) for m in FIVE]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """The five trainings in this process, in both precisions."""
    folder = tmp_path_factory.mktemp("plain")
    assert rank_script.run({kind: all_commands(folder, kind) for kind in TOLERANCE}) == 0
    return folder


def same_training(plain: Path, found: Path) -> None:
    """All weights, momenta and averages, every line of the metrics, and the same files."""
    for kind, tolerance in TOLERANCE.items():
        for method in FIVE:
            one, other = plain / f"{method}-{kind}", found / f"{method}-{kind}"
            assert difference(one, other) < tolerance, (method, kind)
            if kind == "float64":
                assert difference(one, other, "") < 1e-8, method  # momenta are made of gradients alone
            assert [p.name for p in sorted(one.rglob("*"))] == [p.name for p in sorted(other.rglob("*"))]
            lines = [metrics(run) for run in (one, other)]
            assert len(lines[0]) == len(lines[1]) == STEPS
            for a, b in zip(*lines, strict=True):
                assert a == pytest.approx(b, rel=1e-3, abs=1e-6)
            told = [read_run(run) for run in (one, other)]
            assert told[0] == {k: told[0]["seconds"] if k == "seconds" else v for k, v in told[1].items() if k != "job"}


@pytest.mark.parametrize("count", [3, pytest.param(2, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.slow)])
def test_ranks_train_what_one_process_trains(plain, tmp_path, count):
    """Four tasks, or a batch of ten images, on three ranks; then on two and on one."""
    done = torchrun(count, {kind: all_commands(tmp_path, kind) for kind in TOLERANCE})
    assert done.returncode == 0, done.stderr
    same_training(plain, tmp_path)
    assert done.stdout.count("parameters") == done.stdout.count("stopped after 20 of") == 2 * len(FIVE)
    assert done.stderr.count("steps/s, took") == 2 * len(FIVE)
    assert sentences(done) == []


def at_rank(rank: int, world: int, patch: pytest.MonkeyPatch) -> None:
    """Stand for one of several ranks, whose sums are left to the test."""
    patch.setattr(ranks, "rank", lambda: rank)
    patch.setattr(ranks, "world", lambda: world)
    patch.setattr(ranks, "combine", lambda parameters, values: torch.stack([*values, torch.zeros(())]))


@pytest.mark.parametrize("world", [3, 7])
@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("mt3", {"tasks": 5, "inner_steps": 2, "anchor": 0.5}),
        ("mt3", {"tasks": 4, "task_images": 1, "objective": "rotation"}),
        ("jt", {"task_size": 12, "shift_group": 4, "smoothing": 0.1}),
        ("jt", {"task_size": 5, "variant": "official"}),
        ("jt-rotation", {"task_size": 6, "shift_group": 3, "batch_aug": True, "flip": True}),
        ("supervised", {"task_size": 6, "shift_group": 2, "smoothing": 0.2}),
        ("baseline-sun", {"task_size": 6, "hidden": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(value),
)
def test_the_ranks_parts_add_up_to_the_step(digits, monkeypatch, method, fields, world):
    """Also with more ranks than tasks or images: those bring nothing."""
    config = small_config(method, **fields)
    images = torch.from_numpy(digits.train_images).permute(0, 3, 1, 2)
    labels = torch.from_numpy(digits.train_labels)
    state = make_state(config, digits, torch.device("cpu"))
    state.model.double()
    state.ema = None if state.ema is None else {name: p.double() for name, p in state.ema.items()}
    want = gradient_of_step(state, images, labels, config, 3, log=True)
    whole = [p.grad for p in state.model.parameters()]
    parts, logged = [], []
    for rank in range(world):
        with monkeypatch.context() as patch:
            at_rank(rank, world, patch)
            logged.append(gradient_of_step(state, images, labels, config, 3, log=True))
        parts.append([p.grad for p in state.model.parameters()])
    for total, *each in zip(whole, *parts, strict=True):
        brought = [g for g in each if g is not None]
        assert (total is None) == (not brought)
        if total is not None:
            assert float((sum(brought) - total).norm()) <= 1e-12 * max(1.0, float(total.norm()))
    sums = {name: sum(values.get(name, 0.0) for values in logged) for name in want}
    assert sums == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_a_rank_that_raises_ends_all_with_one_sentence(tmp_path, rank):
    asked = {"float32": [words("mt3", tmp_path / "run", 100_000)], "fail": "gradient", "how": "raise", "rank": rank}
    done, ended = torchrun(2, asked), time.time()
    assert done.returncode == 1  # torchrun's own, whatever its ranks' are
    assert sentences(done) == ["mt3: This rank has had enough."]
    assert f"rank      : {rank} (local_rank: {rank})\n  exitcode  : 2" in done.stderr
    found = load_checkpoint(tmp_path / "run")
    assert found is not None
    assert found[0] == 4
    saved = tmp_path / "run" / "checkpoints" / "step-00000004.safetensors"
    assert ended - saved.stat().st_mtime < 30  # three steps, and their end
    with own_directory(tmp_path / "run"):  # nobody holds it any more
        pass


def killed(plain: Path, out: Path, asked: dict[str, Any], counts: tuple[int, int], method: str = "mt3") -> None:
    """A rank is killed in the first attempt of a job; torchrun starts all again, or the user does, with others."""
    command, whole = words(method, out), plain / f"{method}-float64"
    done = torchrun(
        counts[0], asked | {"float64": [command]}, *(["--max-restarts", "1"] if len({*counts}) == 1 else [])
    )
    if done.returncode:
        assert len(sentences(done)) == (asked["fail"] != "group")  # before they meet, torchrun alone knows
        assert "exitcode  : -9" in done.stderr
        done = torchrun(counts[1], {"float64": [[*command, "--resume"]]})
    assert done.returncode == 0, done.stderr
    assert difference(whole, out) < TOLERANCE["float64"]
    assert metrics(out) == [pytest.approx(line, rel=1e-6) for line in metrics(whole)]
    assert read_run(out)["step"] == STEPS
    assert not list(out.rglob("*.tmp")) + list(out.rglob(".model-*"))


def test_a_killed_rank_is_started_again_with_the_others(plain, tmp_path):
    """torchrun starts both again, with the very same command, which goes on by itself."""
    killed(plain, tmp_path / "run", {"fail": "message", "how": "kill", "rank": 1}, (2, 2), "baseline")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "rank", "counts"),
    [
        *((place, rank, (2, 2)) for place in ("group", "data", "gradient", "message", "update") for rank in (0, 1)),
        *((place, 0, (2, 2)) for place in ("checkpoint", "rename", "model")),  # only the first rank writes
        ("gradient", 0, (2, 3)),
        ("rename", 0, (3, 1)),
        ("message", 1, (3, 2)),
    ],
    ids=str,
)
def test_a_rank_is_killed_at_any_moment(plain, tmp_path, place, rank, counts):
    killed(plain, tmp_path / "run", {"fail": place, "how": "kill", "rank": rank}, counts)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [1])
def test_a_signal_to_one_rank_stops_all_after_the_same_step(plain, tmp_path, rank):
    """It is saved, and each rank exits with 143; torchrun says so, and goes on where restarts are left."""
    asked = {"float64": [words("mt3", tmp_path / "run")], "fail": "gradient", "how": "terminate", "rank": rank}
    done = torchrun(2, asked)
    assert sentences(done) == ["mt3: interrupted"]
    assert "stopped after 7 of" in done.stderr
    assert "exitcode  : 143" in done.stderr
    assert read_run(tmp_path / "run")["step"] == 7
    assert main([*words("mt3", tmp_path / "run"), "--resume"]) == 0


@pytest.mark.parametrize(
    ("job", "count", "begun_by", "restarted"),
    [
        (None, "0", None, False),
        ("a", "0", None, False),  # a run that was begun without torchrun
        ("a", "0", "a", True),  # a host joined, which torchrun does not count
        ("a", "1", "b", False),  # a refused command that torchrun started again
        ("none", "0", "none", False),
        ("none", "1", "none", True),
    ],
)
def test_a_job_goes_on_with_its_own_run_alone(monkeypatch, job, count, begun_by, restarted):
    if job is not None:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
    assert ranks.is_restart(begun_by) is restarted


def test_torchrun_is_refused_by_what_starts_trainings_of_its_own(monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setattr(ranks, "may_speak", lambda: True)
    assert main(["demo"]) == 2
    want = "mt3: torchrun is for a single job; start mt3 demo without it, or see --list-jobs.\n"
    assert capsys.readouterr().err == want


@pytest.mark.parametrize(("given", "sharers", "want"), [("1", 2, 3), ("1", 8, 1), ("4", 2, 4)])
def test_ranks_share_the_cores(monkeypatch, given, sharers, want):
    """torchrun sets one thread where nothing is said; what is said otherwise is left as it is."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(sharers))
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    monkeypatch.setattr("mt3.cli.arguments.count_cores", lambda: 6)
    threads = [4]
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    set_up(Namespace(threads=None, device="cpu"))
    assert threads[-1] == want
