"""What the command line does with test-time methods and streams. Torch is imported where needed."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mt3.cli.arguments import set_up
from mt3.config.adaptation import FIELDS, TUNED
from mt3.config.streams import PER_IMAGE
from mt3.support.errors import InputError, name_list

if TYPE_CHECKING:
    from mt3.config.adaptation import Adaptation
    from mt3.models.classifier import MT3Model


class Asked(NamedTuple):
    """One evaluation that was asked for."""

    method: str
    stream: str | None
    adaptation: "Adaptation | None"  # none: the model as it is
    tuned: dict[str, Any] | None
    out: Path


def given_adaptation(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of an adaptation that the command line replaces."""
    given = {name: getattr(args, name) for name in FIELDS if getattr(args, name, None) is not None}
    return {name: None if value == "none" else value for name, value in given.items()}


def asked_evaluations(args: argparse.Namespace, model: "MT3Model", folder: Path) -> list[Asked]:
    """Every method along every stream that was asked for; several go into a directory, a file for each."""
    from mt3.evaluation.settle import method_name, read_tuned

    tuned = None if args.tuned is None else read_tuned(args.tuned)
    usual = ["own"] if tuned is None else [tuned["method"]]
    methods = list(dict.fromkeys(method_name(name) for name in args.method or usual))
    streams: list[str | None] = list(dict.fromkeys(args.stream or [])) or [None]
    several = len(methods) * len(streams) > 1
    if several and args.out is not None and args.out.suffix == ".json":
        raise InputError(f"Several evaluations were asked for; give a directory as --out, not {args.out}.")
    asked: list[Asked] = []
    idle: list[dict[str, str] | None] = []  # of each, what would do nothing
    for method in methods:
        for stream in streams:
            idle.append({} if several else None)
            plain = method == "own" and stream is None
            name = "evaluation" if plain and not several else f"{method}-{(stream or PER_IMAGE).replace(' ', '-')}"
            out = args.out if args.out is not None and not several else (args.out or folder) / f"{name}.json"
            adaptation = _adaptation(args, model, method, stream, tuned, idle[-1])
            asked.append(Asked(method, stream, adaptation, tuned, out))
    for name, why in (idle[0] or {}).items():
        if all(name in (each or {}) for each in idle):
            raise InputError(f"--{name} would do nothing for any of these methods: {why}.")
    return asked


def _adaptation(
    args: argparse.Namespace,
    model: "MT3Model",
    method: str,
    stream: str | None,
    tuned: dict[str, Any] | None,
    idle: dict[str, str] | None,
) -> "Adaptation | None":
    """How one method adapts; fields that do nothing there are refused, or told in `idle`."""
    from mt3.evaluation.settle import settle, with_choice

    given = given_adaptation(args)
    fields = given if tuned is None else with_choice(tuned, method, given)
    adaptation = None if args.unadapted else settle(model, method, stream, fields, idle)
    asked = [name for name in ("controls", "confidence", "stream") if getattr(args, name, None)]
    if adaptation is None and (fields or asked):
        why = "Nothing adapts with --unadapted" if args.unadapted else "This model has nothing to adapt with"
        raise InputError(f"{why}; drop {name_list(f'--{name}' for name in (*given, *asked))}.")
    return adaptation


def next_adaptation(args: argparse.Namespace, model: "MT3Model") -> "Adaptation | None":
    """How the model adapts to images in the order given, each by itself unless it is told to follow them; or not."""
    from mt3.adaptation.choose import choose_adaptation
    from mt3.evaluation.predict import refuse_shift
    from mt3.evaluation.settle import method_name

    own, given = method_name(args.method) == "own", given_adaptation(args)
    if own and model.objective is None:
        if given:
            told = name_list(f"--{name}" for name in given)
            raise InputError(f"This model has nothing of its own to adapt with; drop {told}, or give a --method.")
        return None
    adaptation = choose_adaptation(model, None if own else args.method, given)
    refuse_shift(adaptation)
    return adaptation


def tune_command(args: argparse.Namespace) -> None:
    from mt3.cli.commands import dataset_of_run, result_folder
    from mt3.corruptions import resolve
    from mt3.corruptions.write import check_severities
    from mt3.evaluation.protocol import Protocol, TestImages
    from mt3.evaluation.settle import method_name, settle
    from mt3.evaluation.tune import Grid, default_grid, held_out, tune
    from mt3.models.store import find_model, load, read_run
    from mt3.results.runs import about_run

    device, run = set_up(args), read_run(find_model(args.model))
    model = load(args.model).to(device)
    asked = Grid(*(tuple(getattr(args, f"tried_{name}") or ()) for name in TUNED))
    method = method_name(args.method)
    adaptation = settle(model, method, args.stream, given_adaptation(args))
    if adaptation is None:
        raise InputError("This model has nothing of its own to adapt with; give a --method.")
    grid = default_grid(adaptation, asked)
    name = f"tuned-{method}-{(args.stream or PER_IMAGE).replace(' ', '-')}.json"
    out = args.out or result_folder(args.model) / name
    args.corrupted = None
    images = held_out(TestImages(dataset_of_run(args, run, model)))
    names, severities = resolve(args.corruptions or ["held-out"]), tuple(check_severities(args.severity or [5]))
    protocol = Protocol(
        names,
        severities,
        args.limit,
        adaptation=adaptation,
        method=method,
        stream=args.stream,
        seed=args.seed,
        run=about_run(run, args.model),
    )
    print(tuning_summary(tune(model, images, protocol, grid, out)))
    print(f"wrote {out}; `mt3 evaluate {args.model} --tuned {out}` takes the choice")


def moments_command(args: argparse.Namespace) -> None:
    import torch

    from mt3.cli.commands import dataset_of_run
    from mt3.evaluation.predict import as_tensor
    from mt3.models.moments import source_moments, write_moments
    from mt3.models.store import MOMENTS_FILE, find_model, load, read_run
    from mt3.support.threads import undisturbed

    device, folder = set_up(args), find_model(args.model)
    model = load(args.model).to(device)
    args.corrupted = None
    dataset = dataset_of_run(args, read_run(folder), model)
    assert dataset is not None
    images = dataset.some_training_images(args.images)
    if len(images) < 2:
        raise InputError(f"{dataset.name} has no training images; give --data with some.")
    with undisturbed(device), torch.no_grad():
        found = source_moments(model, as_tensor(images, device))
    write_moments(folder / MOMENTS_FILE, found)
    channels, norms, classes = sum(t.shape[-1] for t in found.moments.values()), len(found.moments), len(found.mix)
    print(
        f"wrote {folder / MOMENTS_FILE}: {channels} channels behind {norms} norms, on {len(images)} images"
        + (f" by {classes} classes" if classes > 1 else ", all classes together")
    )


def trace_command(args: argparse.Namespace) -> None:
    from mt3.cli.commands import dataset_of_run
    from mt3.corruptions import resolve
    from mt3.corruptions.write import check_severities
    from mt3.evaluation.protocol import Protocol, TestImages
    from mt3.evaluation.settle import settle
    from mt3.models.store import load, read_run
    from mt3.reporting.trace import trace_table
    from mt3.results.tables import markdown
    from mt3.studies.trace import find_snapshots, trace

    device = set_up(args)
    snapshots = find_snapshots(args.model)
    last = load(snapshots[-1].path)
    args.corrupted = None
    dataset = dataset_of_run(args, read_run(snapshots[-1].path), last)
    adaptation = settle(last, "own", None, given_adaptation(args))
    names, severities = resolve(args.corruptions or ["held-out"]), tuple(check_severities(args.severity or [5]))
    protocol = Protocol(names, severities, args.limit, adaptation=adaptation, seed=args.seed)
    out = args.out or args.model / "trace.json"
    table = trace_table(trace(snapshots, TestImages(dataset, first=args.first), protocol, out, device))
    print(f"{table.title}\n\n{markdown(table)}\n\n{table.note}\n")
    print(f"wrote {out} and {out.with_suffix('.png').name}")


def tuning_summary(tuned: dict[str, Any]) -> str:
    """The grid with its accuracies, the choice marked, and whether it is better than the model as it is."""
    from mt3.results.statistics import Difference
    from mt3.results.tables import DASH, Cell, Line, Table, markdown

    fields = list(tuned["choice"])
    lines = []
    for point in tuned["points"]:
        chosen = all(point[name] == tuned["choice"][name] for name in fields)
        cells = [Cell(point[name], digits=None) for name in fields[1:]]
        if point["gain"] is None:
            cells += [Cell(text="not finite"), DASH]
        else:
            gain = Difference(*point["gain"])
            cells += [Cell(point["accuracy"], best=chosen), Cell(gain.mean, interval=gain[1:], signed=True)]
        lines.append(Line(f"{fields[0]} {point[fields[0]]:g}", tuple(cells)))
    columns = (*fields[1:], "accuracy", "gain")
    table = markdown(Table("tuning", "Tuning", tuned["method"], columns, tuple(lines)))
    images = tuned["images"]
    words = f"as it is {tuned['unadapted']:.1f} %; {images['images']} images from number {images['first']} on, under "
    words += f"{name_list(images['corruptions'])}; chosen, in bold: {tuned['rule']}"
    if all((point["accuracy"] or 0) <= tuned["unadapted"] for point in tuned["points"]):
        words += ". NO setting is above the model as it is."
    return f"{table}\n\n{words}"
