"""How far trainings, evaluations and studies are, by what lies in their directories alone. Needs no torch.

A file says who works and when it last said so. Whether that process still runs can be seen for one of this host; of
one elsewhere only the age of its last word is known, and no more is claimed.
"""

import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mt3.evaluation.pieces import PROTOCOL, all_pieces, folder_of, is_whole, path_of
from mt3.results.facts import is_evaluation
from mt3.support.errors import SENTENCE, InputError, shown
from mt3.support.files import PROGRESS_FILE, RUN_FILE, load_json
from mt3.support.presence import is_there
from mt3.support.progress import TOLD_INTERVAL, duration

HEARD = 6 * TOLD_INTERVAL  # seconds for which the last word from another host counts as news
STATES = ("working", "heard", "failed", "gone", "silent")  # of workers; the first that one has is all the work's
PARTIAL, SNAPSHOTS = ".partial", "snapshots"  # ends and names of folders


@dataclass(frozen=True)
class Worker:
    """A process that is or was at it, by its last word."""

    state: str  # working | heard (a short while ago) | silent (for long) | gone (without a word) | failed
    host: str
    pid: int
    seconds_ago: float  # its last word
    shard: str  # of an evaluation, "0/3"; of a training nothing
    done: int
    total: int
    rate: float | None  # units a second
    error: str = ""

    def __str__(self) -> str:
        who, age = f"process {self.pid} on {shown(self.host)}", duration(self.seconds_ago)
        words = {
            "working": f"{who} is at work",
            "heard": f"last word {age} ago from {who}",
            "silent": f"no word for {age} from {who}, which cannot be seen from here",
            "gone": f"{who} is gone, its last word was {age} ago",
            "failed": f"{who} failed {age} ago: {self.error}",
        }[self.state]
        return (f"shard {self.shard}, {self.done} of {self.total}: " if self.shard not in ("", "0/1") else "") + words


@dataclass(frozen=True)
class Status:
    """A training or an evaluation."""

    path: str
    kind: str
    name: str  # what is trained, or evaluated
    state: str  # finished | waiting (nothing is done yet) | stopped | as its workers'
    done: int
    total: int | None  # None: not known yet
    unit: str
    rate: float | None = None  # units a second
    seconds_left: float | None = None
    checkpoint: int | None = None  # the step of the last one
    checkpoint_seconds_ago: float | None = None
    seconds: float | None = None  # that a training took so far
    error: str = ""  # the last one
    workers: list[Worker] = field(default_factory=list)

    def __str__(self) -> str:
        words = f"{self.path}: {self.kind} {self.name}".rstrip() + f"; {self.state}, {self.done}"
        words += f" of {self.total} {self.unit}" if self.total is not None else f" {self.unit}"
        if self.state == "finished":
            return words + (f" in {duration(self.seconds)}" if self.seconds else "")
        if self.rate and self.seconds_left is not None:
            words += f", {self.rate:.3g} {self.unit}/s, {duration(self.seconds_left)} left"
        if self.checkpoint is not None:
            words += f"; checkpoint of step {self.checkpoint}, {duration(self.checkpoint_seconds_ago or 0)} ago"
        return "; ".join([words, *map(str, self.workers)])


def read_status(root: Path) -> list[Status]:
    """Of all trainings and evaluations in a directory, or of the evaluation that a file is."""
    if not root.exists() and not folder_of(root).exists():
        raise InputError(f"{root} is not there; give the directory of a run or a study, or the file of an evaluation.")
    found = [status for status in _find(root) if status is not None]
    if not found:
        raise InputError(f"{root} holds no training and no evaluation, finished or begun; give another directory.")
    return found


def _find(root: Path) -> Iterator[Status | None]:
    if root.name.endswith(PARTIAL) or not root.is_dir():
        yield _evaluation(root.with_name(root.name.removesuffix(PARTIAL)))
        return
    for path in sorted(root.rglob(RUN_FILE)):
        if SNAPSHOTS not in path.relative_to(root).parts:
            yield _training(path.parent)
    begun = {path.with_name(path.name.removesuffix(PARTIAL)) for path in root.rglob(f"*.json{PARTIAL}")}
    files = {path: path.relative_to(root).parts for path in root.rglob("*.json")}
    whole = {path for path, parts in files.items() if not any(part.endswith(PARTIAL) for part in parts)}
    for path in sorted(begun | whole):
        yield _evaluation(path)


def status_text(root: Path, found: list[Status]) -> str:
    """A line for each, and for several one on all."""
    lines = [str(status) for status in found]
    if len(found) > 1:
        states = {
            kind: Counter(status.state for status in found if status.kind == kind)
            for kind in ("training", "evaluation")
        }
        told = [
            f"{sum(counts.values())} {kind}s ({', '.join(f'{n} {state}' for state, n in counts.items())})"
            for kind, counts in states.items()
            if counts
        ]
        report = root / "report" / "report.md"
        told += [f"a report, {duration(_age(report) or 0)} old"] if report.exists() else []
        lines.insert(0, f"{root}: {', '.join(told)}; what has not begun is not counted")
    return "\n".join(lines)


def status_json(found: list[Status]) -> list[dict[str, Any]]:
    return [asdict(status) for status in found]


def _training(folder: Path) -> Status | None:
    run = _read(folder / RUN_FILE)
    if not isinstance(run.get("config"), dict):
        return None
    config, told = run["config"], _worker(folder / PROGRESS_FILE, "")
    steps = {
        int(match[1]): path
        for path in (folder / "checkpoints").glob("step-*.safetensors")
        if (match := re.fullmatch(r"step-(\d+)", path.stem))
    }
    newest, step, total = max(steps, default=None), _whole(run.get("step")), _whole(run.get("total_steps"))
    name = f"{config.get('method')} on {config.get('data')}, seed {config.get('seed')}"
    if step is not None and step == total:
        seconds = _number(run.get("seconds"))
        return Status(str(folder), "training", name, "finished", step, total, "steps", seconds=seconds)
    workers = [] if told is None else [told]
    done = max(newest or 0, step or 0, told.done if told else 0)
    state = _state(workers, "stopped" if done else "waiting")
    rate = told.rate if told else None
    goal = told.total if told else total
    left = (goal - done) / rate if goal is not None and rate and state in ("working", "heard") else None
    return Status(
        str(folder),
        "training",
        name,
        state,
        done,
        goal,
        "steps",
        rate,
        left,
        newest,
        None if newest is None else _age(steps[newest]),
        _number(run.get("seconds")),
        told.error if told else "",
        workers,
    )


def _evaluation(out: Path) -> Status | None:
    folder, value = folder_of(out), _read(out)
    if is_evaluation(value) and (is_whole(out) or not folder.is_dir()):  # results may be kept without their NPZ
        total = _images(value["protocol"])[1]
        return Status(str(out), "evaluation", _name(value["protocol"]), "finished", total or 0, total, "images")
    if not folder.is_dir():
        return None
    protocol = _read(folder / PROTOCOL)
    done, total = _images(protocol, folder)
    files = sorted(folder.glob("shard-*-of-*.json"))
    read = [_worker(path, path.stem.removeprefix("shard-").replace("-of-", "/")) for path in files]
    workers = [worker for worker in read if worker is not None]
    state = _state(workers, "stopped" if done else "waiting")
    active = [worker for worker in workers if worker.state in ("working", "heard")]
    rate = sum(worker.rate or 0.0 for worker in active) or None
    left = (total - done) / rate if rate and total is not None else None
    errors = [worker.error for worker in sorted(workers, key=lambda w: w.seconds_ago) if worker.error]
    name, error = _name(protocol), errors[0] if errors else ""
    return Status(str(out), "evaluation", name, state, done, total, "images", rate, left, error=error, workers=workers)


def _images(protocol: dict[str, Any], folder: Path | None = None) -> tuple[int, int | None]:
    """Images that are done, by the pieces in the folder, and all; each counts under every corruption."""
    try:
        sizes = {path_of(folder or Path(), piece): piece.stop - piece.start for piece in all_pieces(protocol)}
    except (KeyError, TypeError, ValueError):  # there is no protocol yet, or it is damaged
        return 0, None
    return sum(size for path, size in sizes.items() if folder and path.exists()), sum(sizes.values())


def _name(protocol: dict[str, Any]) -> str:
    run = protocol.get("run") or {}
    name = f"of {run.get('method')}, seed {run.get('seed')}" if run else "of a model"
    return name + (f", {protocol['label']}" if protocol.get("label") else "")


def _state(workers: list[Worker], otherwise: str) -> str:
    states = {worker.state for worker in workers}
    return next((state for state in STATES if state in states), otherwise)


def _worker(path: Path, shard: str) -> Worker | None:
    told, age = _read(path), _age(path)
    done, total, pid = (_whole(told.get(name)) for name in ("done", "total", "pid"))
    if done is None or total is None or pid is None or age is None:
        return None
    error, there = shown(told.get("error") or "", SENTENCE), is_there(told)
    state = "heard" if age <= HEARD else "silent"
    if error:
        state = "failed"
    elif there is not None:
        state = "working" if there else "gone"
    return Worker(state, shown(told.get("host")), pid, age, shard, done, total, _number(told.get("rate")), error)


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; of a file that is missing, damaged or just being replaced nothing."""
    try:
        value = load_json(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _age(path: Path) -> float | None:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
