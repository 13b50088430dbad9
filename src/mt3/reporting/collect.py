"""Evaluations and training curves found on disk, checked and sorted for a report. Needs no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mt3.config.streams import PER_IMAGE
from mt3.reporting.accuracy import source_words
from mt3.reporting.curves import Curves, find_curves
from mt3.reporting.trace import POINT_FILE, Trace, is_trace, read_trace
from mt3.results.facts import TUNING, Evaluation, is_evaluation, parse_evaluation
from mt3.results.runs import read_run
from mt3.results.shape import TIMING, check_shape
from mt3.support.errors import InputError, name_list
from mt3.support.files import METRICS_FILE, RUN_FILE, load_json

# what results in one table must share, and adapted runs in one row besides
LIKE = ("data", "split", "source", "corruptions", "severities", "images", "first")
ADAPTED = ("objective", "clip", "layers", "gate", "variant")

Group = tuple[str, str]  # training and label


@dataclass(frozen=True)
class Results:
    """What a report is made of. Within a list the runs are ordered by seed."""

    main: dict[str, list[Evaluation]] = field(default_factory=dict)  # by training, adapted as the model says
    ablations: dict[Group, list[Evaluation]] = field(default_factory=dict)
    others: list[Evaluation] = field(default_factory=list)  # adapted with other steps, views or learning rate
    methods: list[Evaluation] = field(default_factory=list)  # adapted by other methods, or along a stream
    timings: list[dict[str, Any]] = field(default_factory=list)  # benchmarks of methods
    curves: Curves = field(default_factory=Curves)
    traces: list[Trace] = field(default_factory=list)  # steps along trainings
    notes: list[str] = field(default_factory=list)  # what was left out, and why

    @property
    def groups(self) -> list[list[Evaluation]]:
        """Runs of one training, adapted as the model says."""
        return [*self.main.values(), *self.ablations.values()]

    @property
    def every(self) -> list[Evaluation]:
        return flat([*self.groups, self.others, [e for e in self.methods if e.protocol["run"] is not None]])


def collect(paths: Sequence[Path], root: Path | None = None) -> Results:
    """Find, check and sort the evaluations and MT3 training curves in directories and files.

    Paths are shown as they were given, or relative to `root`.
    """
    notes: list[str] = []
    timings: list[dict[str, Any]] = []
    files, traces = _find_traces(_find(paths, "*.json"), notes, root)
    every = [e for path in files for e in _read(path, path in paths, timings, notes, root)]
    reported = [e for e in every if not (e.protocol["sweep"] and e.label == TUNING)]
    methods = [e for e in reported if is_method(e)]
    found = [e for e in reported if not is_method(e)]
    curves = find_curves(_find(paths, METRICS_FILE), notes, root)
    if not every and not traces and not curves.paths:
        why = f" {' '.join(notes)}" if notes else ""
        raise InputError(f"Found no evaluation in {name_list(paths)}; `mt3 evaluate RUN` writes one.{why}")
    _require_trained_alike(found)
    require_alike(methods)
    methods.sort(key=lambda e: (e.label, str(e.path)))
    results = Results(methods=methods, timings=timings, curves=curves, traces=traces, notes=notes)
    for e in sorted(_drop_repeated(found, notes), key=lambda e: (e.label, e.setting, e.run.seed, str(e.path))):
        if not e.has_own_setting:
            results.others.append(e)
        elif e.label:
            results.ablations.setdefault((e.run.method, e.label), []).append(e)
        else:
            results.main.setdefault(e.run.method, []).append(e)
    for runs in results.groups:
        require_alike([run for run in runs if run.has("after")], ADAPTED)
    for group in (flat(results.main.values()), flat(results.ablations.values()), results.others):
        require_alike(group)
    for runs in results.main.values():
        unadapted = [e.path for e in runs if not e.has("after")]
        if unadapted and len(unadapted) < len(runs):
            row = runs[0].method.after
            notes.append(f"Without the row {row}: no adapting was evaluated in {name_list(unadapted)}.")
    return results


def split_by_data(paths: Sequence[Path]) -> dict[str, list[Path]]:
    """The files of each data set, whose results go into a report of their own; of a single one the paths themselves."""
    found: dict[str, list[Path]] = {}
    for path in _find(paths, "*.json"):
        try:
            value = load_json(path)
        except (OSError, ValueError):
            continue  # `collect` tells of it
        if is_evaluation(value):
            found.setdefault(str(value["protocol"].get("data")), []).append(path)
        elif is_trace(value):
            found.setdefault(str(read_trace(path).data), []).append(path)
    if len(found) < 2:
        return {"": list(paths)}
    for path in _find(paths, METRICS_FILE):
        about = read_run(path.with_name(RUN_FILE)) if path.with_name(RUN_FILE).exists() else None
        if about is not None and about[0].data in found:
            found[about[0].data].append(path)
    return found


def flat(groups: Iterable[Sequence[Evaluation]]) -> list[Evaluation]:
    return [e for group in groups for e in group]


def _find(paths: Sequence[Path], pattern: str) -> list[Path]:
    found: dict[Path, Path] = {}
    for path in paths:
        if not path.exists():
            raise InputError(f"{path} is not there; give directories or files of results.")
        inside = sorted(path.rglob(pattern)) if path.is_dir() else [path] if path.match(pattern) else []
        for file in inside:
            if not any(part.endswith(".partial") for part in file.parts):
                found.setdefault(file.resolve(), file)
    return list(found.values())


def _find_traces(files: Sequence[Path], notes: list[str], root: Path | None) -> tuple[list[Path], list[Trace]]:
    """The traces of steps among files, and the others; a trace's own evaluations are in neither."""
    traces = [read_trace(path) for path in files if _holds_trace(path)]
    for trace in traces:
        require_alike([point.found for point in trace.points], (*LIKE, *ADAPTED))
    theirs = {path.resolve() for t in traces for path in (t.path, *(point.found.path for point in t.points))}
    others = [file for file in files if file.resolve() not in theirs]
    stray = [file for file in others if POINT_FILE.fullmatch(file.name)]
    for folder in dict.fromkeys(_shown(file.parent, root) for file in stray):
        notes.append(
            f"Left out: points in {folder} that no trace has; `mt3 trace` again finishes one that was interrupted."
        )
    shown = [t._replace(path=_shown(t.path, root)) for t in traces]
    return [file for file in others if file not in stray], shown


def _shown(path: Path, root: Path | None) -> Path:
    return path if root is None else path.relative_to(root)


def _holds_trace(path: Path) -> bool:
    try:
        return is_trace(load_json(path))
    except (OSError, ValueError):
        return False  # told of where it is read


def is_method(evaluation: Evaluation) -> bool:
    """Whether it adapts otherwise than its model was made to: by another method, along a stream, or tuned."""
    return evaluation.rival != "own" or evaluation.way != PER_IMAGE or "tuned" in evaluation.protocol


def _read(
    path: Path, asked: bool, timings: list[dict[str, Any]], notes: list[str], root: Path | None
) -> list[Evaluation]:
    """The evaluation in a file; a file that is none is left out, and refused if it was asked for.

    A benchmark of methods goes to `timings`.
    """
    shown = path if root is None else path.relative_to(root)
    try:
        value = load_json(path)
    except (OSError, ValueError) as error:
        if asked:
            raise InputError(f"{path} is not whole ({error}); evaluate again.") from None
        notes.append(f"{shown} is left out: it is not a whole JSON file.")
        return []
    if isinstance(value, dict) and value.get("benchmark") == "methods":
        if why := _wrong_timing(value):
            if asked:
                raise InputError(f"{path} is {why}.")
            notes.append(f"{shown} is left out: it is {why}.")
        else:
            timings.append(value)
        return []
    if not asked and not is_evaluation(value):
        return []
    evaluation = parse_evaluation(value, path)
    if evaluation.protocol["run"] is None and not is_method(evaluation):
        notes.append(f"{shown} is left out: it does not say which method its model was trained with.")
        return []
    return [replace(evaluation, path=shown)]


def _wrong_timing(value: dict[str, Any]) -> str:
    """What is wrong with a benchmark of methods, or nothing."""
    try:
        check_shape(value, TIMING, "a benchmark")
    except (KeyError, TypeError, ValueError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        return f"not a whole benchmark of methods ({what}); `python -m benchmarks methods --json` writes one"
    return ""


def is_alike(one: Evaluation, other: Evaluation) -> bool:
    """Whether two evaluations may stand in one table."""
    return all(_comparable(one, name) == _comparable(other, name) for name in LIKE)


def require_alike(evaluations: Sequence[Evaluation], fields: Sequence[str] = LIKE) -> None:
    """Refuse evaluations that do not belong in one table."""
    for other in evaluations[1:]:
        one = evaluations[0]
        for name in fields:
            a, b = _comparable(one, name), _comparable(other, name)
            if a != b:
                raise InputError(
                    f"Results of unlike protocols do not go into one table: {name} is {_word(a, b)} in {one.path} but "
                    f"{_word(b, a)} in {other.path}; report them separately."
                )


def _comparable(evaluation: Evaluation, name: str) -> Any:
    value = evaluation.protocol[name] if name in LIKE else evaluation.protocol["adaptation"][name]
    return sorted(value) if isinstance(value, list) else value


def _word(value: Any, other: Any) -> str:
    """A value of the protocol; of two long lists, only what the other lacks."""
    if isinstance(value, list) and len(value) > 5:
        extra = [v for v in value if v not in other]
        return f"{len(value)} long" + (f" (with {name_list(extra)})" if extra else "")
    if isinstance(value, dict):
        return source_words(value)
    return name_list(value) or "none" if isinstance(value, list) else str(value)


def _drop_repeated(evaluations: Sequence[Evaluation], notes: list[str]) -> list[Evaluation]:
    """Drop copies of one evaluation, and refuse two different ones of the same run."""
    kept: dict[Any, Evaluation] = {}
    for e in evaluations:
        first = kept.setdefault((e.run.method, e.label, e.run.seed, None if e.has_own_setting else e.setting), e)
        if first is not e and first.value == e.value:
            notes.append(f"{e.path} repeats {first.path} and is counted once.")
        elif first is not e:
            fields = sorted(k for k in e.protocol if first.protocol[k] != e.protocol[k])
            what = f"differ in {name_list(fields)}" if fields else "differ in their numbers"
            raise InputError(
                f"Two evaluations of {e.run.method} with seed {e.run.seed} {what}: {first.path} and {e.path}; "
                "leave one of them out, or give one of them another --label."
            )
    return list(kept.values())


def _require_trained_alike(evaluations: Sequence[Evaluation]) -> None:
    """Refuse a mean over trainings that are not alike, or not equally far."""
    first: dict[Group, Evaluation] = {}
    for e in evaluations:
        one = first.setdefault((e.run.method, e.label), e)
        if fields := one.run.unlike(e.run):
            raise InputError(
                f"The trainings of {one.path} and {e.path} are both {e.run.method} {e.label or 'without a label'} but "
                f"differ in {name_list(fields)}; give one of them another --label, or report them separately."
            )
        if (one.run.unfinished or e.run.unfinished) and one.run.progress != e.run.progress:
            a, b = (x.run.progress if x.run.unfinished else "a finished training" for x in (one, e))
            raise InputError(
                f"Trainings of {e.run.method} that are not equally far do not go into one mean: {one.path} is of {a} "
                f"but {e.path} of {b}; report them separately, or finish them with --resume and evaluate again."
            )
