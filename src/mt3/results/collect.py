"""Evaluations and training curves found on disk, checked and sorted for a report. Needs no torch."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mt3.config.config import BOOKKEEPING, Config, config_from_dict, config_to_dict, make_config, warm_config
from mt3.config.methods import get_method
from mt3.results.record import Epochs, Evaluation, Trained, check_whole, read_evaluation, read_trained
from mt3.support.errors import InputError, name_list
from mt3.support.files import METRICS_FILE, RUN_FILE, read_json

ANSWERED = ("average", "gate")  # what runs in one row must share besides
# what results in one table must share
LIKE = ("data", "split", "source", "corruptions", "severities", "images", "first")

START = "warm"  # the folder of a run that keeps the training that came first

_DEFAULTS = config_to_dict(Config())
Group = tuple[str, str]  # training and label of the ablation


@dataclass(frozen=True)
class Results:
    """What a report is made of. Within a list the runs are ordered by seed."""

    main: dict[str, list[Evaluation]] = field(default_factory=dict)  # by training, adapted as the model says
    ablations: dict[Group, list[Evaluation]] = field(default_factory=dict)
    others: list[Evaluation] = field(default_factory=list)  # adapted with other steps, views or learning rate
    curves: list[Path] = field(default_factory=list)  # metrics of the MT3 runs
    curve_settings: dict[str, Any] | None = None  # how these were trained
    curve_epochs: Epochs | None = None  # for how long
    curves_whole: bool = True  # whether they are of finished trainings
    notes: list[str] = field(default_factory=list)  # what was left out, and why


def collect(paths: Sequence[Path], root: Path | None = None) -> Results:
    """Find, check and sort the evaluations and MT3 training curves in directories and files.

    Paths are shown as they were given, or relative to `root`.
    """
    notes: list[str] = []
    found = []
    files = _find(paths, "*.json")
    for path in files:
        try:
            value = read_evaluation(path)
        except (OSError, ValueError) as error:
            if path in paths:
                raise InputError(f"{path} is not whole ({error}); evaluate again.") from None
            notes.append(f"{_shown(path, root)} is left out: it is not a whole JSON file.")
            continue
        if value is None:
            if path in paths:
                raise InputError(f"{path} is not an evaluation; give files that `mt3 evaluate` wrote.")
        elif value["protocol"].get("method") is None:
            notes.append(f"{_shown(path, root)} is left out: it does not say which method its model was trained with.")
        else:
            found.append(replace(_make_evaluation(path, value), path=_shown(path, root)))
    curves = _find_curves(_find(paths, METRICS_FILE), notes, root)
    if not found and not curves.curves:
        why = f" {' '.join(notes)}" if notes else ""
        raise InputError(f"Found no evaluation in {name_list(paths)}; `mt3 evaluate RUN` writes one.{why}")
    labelled = _drop_repeated(_label_ablations(found), notes)
    _require_equally_trained(labelled)
    main: dict[str, list[Evaluation]] = defaultdict(list)
    ablations: dict[Group, list[Evaluation]] = defaultdict(list)
    others = []
    for e in sorted(labelled, key=_order):
        if not e.has_default_setting:
            others.append(e)
        elif e.label:
            ablations[e.method.name, e.label].append(e)
        else:
            main[e.method.name].append(e)
    for runs in (*main.values(), *ablations.values()):
        require_alike(runs, ANSWERED)
    for group in (flat(main.values()), flat(ablations.values()), others):
        require_alike(group)
    for runs in main.values():
        unadapted = [e.path for e in runs if not e.has("after")]
        if len(unadapted) < len(runs) and unadapted:
            notes.append(
                f"Without the row {runs[0].method.after}: no adapting was evaluated in {name_list(unadapted)}."
            )
    return replace(curves, main=dict(main), ablations=dict(ablations), others=others, notes=notes)


def _shown(path: Path, root: Path | None) -> Path:
    return path if root is None else path.relative_to(root)


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
    value = evaluation.protocol.get(name)
    return sorted(value) if isinstance(value, list) else value


def _word(value: Any, other: Any) -> str:
    """A value of the protocol; of two long lists, only what the other lacks."""
    if isinstance(value, list) and isinstance(other, list) and len(value) > 5:
        extra = [v for v in value if v not in other]
        return f"{len(value)} long" + (f" (with {name_list(extra)})" if extra else "")
    return name_list(value) or "none" if isinstance(value, list) else describe_source(value)


def describe_source(source: Any) -> str:
    """Where corrupted images come from, in words."""
    if not isinstance(source, dict):
        return str(source)
    if source.get("kind") == "generated":
        return f"generated by mt3 {source.get('version')} with seed {source.get('seed')}"
    return f"the directory {source.get('name')}"


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


def _make_evaluation(path: Path, value: dict[str, Any]) -> Evaluation:
    name = value["protocol"]["method"]
    if not isinstance(name, str):
        raise InputError(f"{path} is not a whole evaluation (its method is no name); evaluate again.")
    try:
        method = get_method(name)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    evaluation = Evaluation(path, value, method, str(value["protocol"].get("ablation") or ""))
    try:
        check_whole(evaluation)
        trained = read_trained(value["protocol"], "trained_steps")
    except KeyError as error:
        raise InputError(f"{path} is not a whole evaluation ({error} is missing); evaluate again.") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is not a whole evaluation ({error}); evaluate again.") from None
    config, run = _read_run(path.parent)
    if any(config.get(a) != value["protocol"].get(b) for a, b in (("method", "method"), ("seed", "train_seed"))):
        return replace(evaluation, trained=trained)  # of another run than that in its folder
    return replace(
        evaluation,
        settings=_settings(config, run.get("init")),
        trained=trained or _steps_with_start(path.parent, run),  # the protocol first: the run may have gone on since
        epochs=_epochs_of(path.parent, config, run.get("init")),
    )


def _read_run(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The config of the run in a folder and all that its run.json says; nothing where there is none."""
    path = folder / RUN_FILE
    run = read_json(path) if path.exists() else {}
    config = run.get("config")
    return (config, run) if isinstance(config, dict) else ({}, {})


def _steps_with_start(folder: Path, run: dict[str, Any]) -> Trained | None:
    """How far a run is, with the trainings before it that it keeps."""
    own, start = _steps_of(folder, run), folder / START
    before = _steps_with_start(start, _read_run(start)[1]) if Path(str(run.get("init"))).name == START else None
    return Trained(own.steps + before.steps, own.total + before.total) if own and before else own


def _steps_of(folder: Path, run: dict[str, Any]) -> Trained | None:
    try:
        return read_trained(run, "step")
    except ValueError as error:
        raise InputError(f"{folder / RUN_FILE} is damaged ({error}); restore it, or train again.") from None


def _epochs_of(folder: Path, config: dict[str, Any], init: Any) -> Epochs | None:
    """How long a run's training is; that of a start which is not its own is not known."""
    try:
        whole = config_from_dict(config)
    except InputError:  # a config of another version
        return None
    if init is None:
        return Epochs(whole.epochs)
    start, here = Path(str(init)), folder.resolve()
    own = start.name == START and start.parent.name in ("", here.name, here.parent.name)  # it may have been moved
    return Epochs(whole.epochs, _epochs_before(whole) if own else None)


def _epochs_before(config: Config) -> float:
    first = warm_config(config)
    return 0.0 if first is None else first.epochs + _epochs_before(first)


def _settings(config: dict[str, Any], init: Any) -> dict[str, Any]:
    """The fields that runs of one training share; one that is younger than the run has its default."""
    kept = {k: v for k, v in (_DEFAULTS | config).items() if k != "seed" and k not in BOOKKEEPING}
    return kept | {"init": "none" if init is None else "warm"}


def _departures(settings: dict[str, Any]) -> int:
    """In how many fields a training departs from its preset."""
    changed = overrides_of(settings)
    return len(settings) if changed is None else len(changed)


def overrides_of(settings: dict[str, Any]) -> dict[str, Any] | None:
    """The fields in which a training departs from its preset; None if there is no such preset."""
    try:
        preset = make_config(settings["method"], settings["data"], settings["preset"])
    except (InputError, KeyError, TypeError):  # a damaged run.json may have anything for a name
        return None
    return {k: settings.get(k) for k in _changed(settings, _settings(config_to_dict(preset), None))}


def _changed(settings: dict[str, Any], reference: dict[str, Any]) -> list[str]:
    return sorted(k for k in settings.keys() | reference.keys() if settings.get(k) != reference.get(k))


def reference_settings(known: Sequence[tuple[Path, dict[str, Any]]]) -> dict[str, Any] | None:
    """Of the ways in which runs of one method were trained, the one nearest to its preset: the others are ablations."""
    if not known:
        return None
    ranked = sorted(known, key=lambda item: (_departures(item[1]), str(item[0])))
    path, reference = ranked[0]
    for other, settings in ranked[1:]:
        fields = _changed(settings, reference)
        if fields and _departures(settings) == _departures(reference):
            raise InputError(
                f"The trainings of {path} and {other} differ ({name_list(fields)}) and neither is nearer to its "
                "preset, so that it is unclear which is the ablation; report them separately."
            )
    return reference


def _label_ablations(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Label the evaluations whose training departs from that of the others of their method."""
    labelled = [e for e in evaluations if e.label]
    for name in dict.fromkeys(e.method.name for e in evaluations):
        group = [e for e in evaluations if e.method.name == name and not e.label]
        reference = reference_settings([(e.path, e.settings) for e in group if e.settings is not None])
        for e in group:
            if reference is None or e.settings is None:
                labelled.append(e)
            else:
                changed = _changed(e.settings, reference)
                label = ", ".join(f"{k}={_plain(e.settings.get(k))}" for k in changed)
                labelled.append(replace(e, label=label))
        plain = [e for e in labelled if e.method.name == name and not e.label]
        for e in plain[1:]:
            a, b = plain[0].protocol.get("preset"), e.protocol.get("preset")
            if a != b:
                raise InputError(
                    f"Results of unlike protocols do not go into one table: the preset is {a} in {plain[0].path} but "
                    f"{b} in {e.path}; report them separately."
                )
    return labelled


def _plain(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _drop_repeated(evaluations: Sequence[Evaluation], notes: list[str]) -> list[Evaluation]:
    """Drop copies of one evaluation, and refuse two different ones of the same run."""
    kept: dict[Any, Evaluation] = {}
    for e in evaluations:
        key = (e.method.name, e.label, e.seed, None if e.has_default_setting else e.setting)
        first = kept.setdefault(key, e)
        if first is e:
            continue
        if first.result == e.result:
            notes.append(f"{e.path} repeats {first.path} and is counted once.")
            continue
        fields = [k for k in first.protocol.keys() | e.protocol.keys() if first.protocol.get(k) != e.protocol.get(k)]
        what = f"differ in {name_list(sorted(fields))}" if fields else "differ in their numbers"
        raise InputError(
            f"Two evaluations of {e.method.name} with seed {e.seed} {what}: {first.path} and {e.path}; "
            "leave one of them out."
        )
    return list(kept.values())


def _order(evaluation: Evaluation) -> tuple[Any, ...]:
    seed = -1 if evaluation.seed is None else evaluation.seed
    setting = evaluation.setting
    return evaluation.label, setting.steps, setting.views, setting.lr, seed, str(evaluation.path)


def _require_equally_trained(evaluations: Sequence[Evaluation]) -> None:
    """Refuse a mean over finished and unfinished trainings, or over such that are not equally far."""
    first: dict[Group, Evaluation] = {}
    for e in evaluations:
        one = first.setdefault((e.method.name, e.label), e)
        if one.unfinished != e.unfinished:
            a, b = (x.unfinished.words() if x.unfinished else "a finished training" for x in (one, e))
            raise InputError(
                f"Trainings of {e.method.name} that are not equally far do not go into one mean: {one.path} is of {a} "
                f"but {e.path} of {b}; report them separately, or finish them with --resume and evaluate again."
            )


def flat(groups: Iterable[Sequence[Evaluation]]) -> list[Evaluation]:
    return [e for group in groups for e in group]


def _find_curves(files: Sequence[Path], notes: list[str], root: Path | None) -> Results:
    """The metrics of MT3 runs that were trained alike, as `reference_settings` chooses, and how they were.

    A run that is not finished has no part in the curve of those that are.
    """
    known, whole, epochs = [], {}, {}
    for path in files:
        config, run = _read_run(path.parent)
        if config.get("method") == "mt3":
            known.append((path, _settings(config, run.get("init"))))
            trained = _steps_with_start(path.parent, run)  # which a run that goes on does not say
            whole[path] = trained is not None and trained.steps == trained.total
            epochs[path] = _epochs_of(path.parent, config, run.get("init"))
    try:
        reference = reference_settings(known)
    except InputError as error:
        notes.append(f"No training curve: {error}")
        return Results()
    chosen = [path for path, settings in known if settings == reference]
    finished = [path for path in chosen if whole[path]]
    if finished and finished != chosen:
        left_out = name_list(_shown(path, root) for path in chosen if not whole[path])
        notes.append(f"Not in the training curve, since the training is not finished: {left_out}.")
    chosen = finished or chosen
    return Results(
        curves=chosen,
        curve_settings=reference,
        curve_epochs=epochs[chosen[0]] if chosen else None,
        curves_whole=bool(finished),
    )
