"""What each command of the command line does. Torch is imported where needed."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt3.cli.arguments import default_jobs, default_preset, load_data, set_up
from mt3.config.adaptation import FIELDS as FIELDS_OF_ADAPTATION
from mt3.config.config import FIELDS, make_config
from mt3.config.methods import METHODS, get_method
from mt3.studies.ablations import resolve_ablations
from mt3.support.errors import NAME, InputError, is_name, name_list, shown
from mt3.support.files import check_can_write, read_text
from mt3.support.signals import Stopped

if TYPE_CHECKING:
    from mt3.config.adaptation import Adaptation
    from mt3.data import CorruptedSet, Dataset
    from mt3.models.classifier import MT3Model

# arguments of `mt3 train` that are fields of `RunOptions`
RUN_OPTIONS = ["max_steps", "resume", "init", "tensorboard", "recompute", "data_dir"]
RUN_OPTIONS += ["log_every", "checkpoint_every", "snapshot_every"]


def _overrides(args: argparse.Namespace, extra: Sequence[str]) -> dict[str, str]:
    """Read `--field value` and `--field=value`."""
    fields = [f"--{name.replace('_', '-')}" for name in FIELDS]
    found: dict[str, str] = {}
    words = list(extra)
    while words:
        word = words.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or name.replace("-", "_") not in FIELDS:
            args.parser.refuse(word, fields)
        if not equals:
            if not words:
                raise InputError(f"Expected a value after {word}; see `mt3 train --help`.")
            value = words.pop(0)
        found[name] = value
    return found


def _workers(args: argparse.Namespace) -> int:
    """The processes to use: as asked, or one for each core."""
    from mt3.support.processes import count_cores

    if args.workers == 0:
        raise InputError("Expected at least 1 worker, got 0; give --workers 1 for a single process.")
    return args.workers or count_cores()


def train_command(args: argparse.Namespace, extra: Sequence[str]) -> None:
    preset = args.preset or default_preset(args.data)
    config = make_config(args.method, args.data, preset, args.seed, _overrides(args, extra))
    from mt3.models.classifier import count_parameters
    from mt3.models.store import read_run
    from mt3.training.loop import train
    from mt3.training.runs import RunOptions, about_run

    device = set_up(args)
    dataset = load_data(args)
    try:
        asked = {name: getattr(args, name) for name in RUN_OPTIONS if getattr(args, name) is not None}
        model = train(config, dataset, args.out, RunOptions(str(device), **asked))
    except Stopped as stop:
        if str(stop):
            print(f"{stop}; --resume goes on", file=sys.stderr)
        raise
    size = "its start is not finished" if model is None else f"{count_parameters(model)} parameters"
    print(f"{args.out}: {args.method} on {args.data}, {size}")
    about = about_run(read_run(args.out), args.out) or {}
    if about["step"] < about["total_steps"]:
        print(f"stopped after {about['step']} of {about['total_steps']} steps; --resume goes on")


def _dataset_of_run(
    args: argparse.Namespace, run: dict[str, Any], model: "MT3Model", optional: bool
) -> "Dataset | None":
    """The data set a run was trained on, by what its run.json says."""
    from mt3.data import load_dataset
    from mt3.data.folder import KIND

    name = args.data or run.get("config", {}).get("data")
    if name is None:
        if optional:
            return None
        raise InputError(f"{args.model} does not say which data it was trained on; give --data.")
    recorded = run.get("data_dir") if name != "digits" else None  # which need none
    data_dir = args.data_dir or (Path(recorded) if recorded else None)
    try:
        size = args.size or (model.size if name.startswith(KIND) else None)
        return load_dataset(name, data_dir, args.download, size, args.skip_broken)
    except InputError as error:
        if optional and args.data_dir is None and not args.download:
            print(f"without clean images: {error}", file=sys.stderr)
            return None
        raise


def evaluate_command(args: argparse.Namespace, extra: Sequence[str]) -> None:
    from mt3.evaluation.evaluate import evaluate
    from mt3.evaluation.protocol import Protocol, TestImages
    from mt3.models.store import find_model, load, read_run, shipped_models
    from mt3.reporting.summary import evaluation_summary
    from mt3.training.runs import about_run

    device = set_up(args)
    run = read_run(find_model(args.model))  # before the model: a training under way writes it after that
    model = load(args.model).to(device)
    dataset = _dataset_of_run(args, run, model, optional=args.corrupted is not None)
    if dataset is not None:
        _require_same_classes(model, dataset)
    corrupted, names, severities = _corrupted_images(args, dataset)
    if args.label and not is_name(args.label):
        raise InputError(f"Expected a label of 1 to {NAME} printable characters, got '{shown(args.label)}'.")
    if args.out is None and find_model(args.model) in shipped_models().values():
        raise InputError(f"{args.model} comes with the package, where no results go; give --out.")
    out = args.out or args.model / "evaluation.json"
    protocol = Protocol(
        tuple(names),
        tuple(severities),
        args.limit,
        args.controls,
        _adaptation(args, model, args.unadapted),
        args.seed,
        args.label,
        run=about_run(run, args.model),
    )
    found = evaluate(model, TestImages(dataset, corrupted, first=args.first), protocol, out)
    print(evaluation_summary(found))
    if protocol.run is not None and found.run.unfinished:
        print(f"{args.model} is not finished: this is after {found.run.progress}; train it with --resume")
    print(f"wrote {out} and {out.with_suffix('.npz').name}")


def _adaptation(args: argparse.Namespace, model: "MT3Model", unadapted: bool = False) -> "Adaptation | None":
    """How the model adapts: its own way with what the command line replaces, or none."""
    given = {name: getattr(args, name) for name in FIELDS_OF_ADAPTATION if getattr(args, name, None) is not None}
    if model.objective is None and given:
        raise InputError(f"This model has nothing to adapt with; drop --{name_list(given)}.")
    if unadapted and (given or args.controls):
        raise InputError("Without adapting there are no views, steps, gate or controls; drop these or --unadapted.")
    return None if unadapted or model.objective is None else replace(model.adaptation, **given)


def _require_same_classes(model: "MT3Model", dataset: "Dataset") -> None:
    if dataset.num_classes != model.num_classes:
        raise InputError(
            f"The model has {model.num_classes} classes, {dataset.name} {dataset.num_classes}; give its own."
        )
    if model.classes and tuple(model.classes) != dataset.classes:
        raise InputError(
            f"The model knows {name_list(model.classes[:3])} and so on, {dataset.name} has "
            f"{name_list(dataset.classes[:3])} and so on; give the data that it was trained for."
        )


def _corrupted_images(
    args: argparse.Namespace, dataset: "Dataset | None"
) -> "tuple[CorruptedSet | None, list[str], list[int]]":
    """The -C directory if one is given, and which corruptions and severities are asked for."""
    from mt3.corruptions import resolve
    from mt3.data import open_corrupted

    severities = sorted(set(args.severity or [5]))
    asked = args.corruptions or ["all"]
    if not set(severities) <= set(range(1, 6)):
        raise InputError(f"Expected severities from 1 to 5, got {name_list(severities)}.")
    if args.corrupted is None:
        return None, [] if asked == ["none"] else list(resolve(asked)), severities
    corrupted = open_corrupted(args.corrupted, dataset.num_classes if dataset else None)
    return corrupted, _group_names(asked, corrupted, severities), severities


def _group_names(asked: Sequence[str], corrupted: "CorruptedSet", severities: Sequence[int]) -> list[str]:
    """Expand `all`, `held-out` and `every` to what a -C directory holds, and check that it holds what is asked for."""
    from mt3.corruptions import HELD_OUT, PAPER

    present = corrupted.names()
    groups = {"all": PAPER, "held-out": HELD_OUT, "every": tuple(present)}
    names = [n for a in asked for n in groups.get(a, (a,)) if a not in groups or n in present]
    if not names:
        raise InputError(f"{corrupted.directory} holds none of {name_list(asked)}, but {name_list(present)}.")
    for name in names:
        for severity in severities:
            corrupted.images_of(name, severity)
    return list(dict.fromkeys(names))


def predict_command(args: argparse.Namespace, extra: Sequence[str]) -> None:
    from mt3.data.image_files import read_image, silent_readers
    from mt3.evaluation.predict import predict
    from mt3.models.store import load

    model = load(args.model)
    if model.size is None:
        raise InputError(f"{args.model} takes images of any size, and does not say to which to scale them.")
    with silent_readers():
        read = [read_image(path, model.size) for path in args.images]
    model = model.to(set_up(args))
    answers = predict(model, [image for image, _ in read], _adaptation(args, model), args.seed)
    for answer, file, (_, notes) in zip(answers, args.images, read, strict=True):
        answer |= {"image": str(file), "converted": notes}
    if args.json:
        print(json.dumps(answers, indent=2))
        return
    for answer in answers:
        if answer["converted"]:
            print(f"{shown(answer['image'], 4096)}: {', '.join(answer['converted'])}", file=sys.stderr)
        before, after = answer["before"], answer["after"]
        line = f"{shown(answer['image'], 4096)}: {shown(before['class'])} {100 * before['probability']:.1f} % before"
        if after is None:
            line += " (does not adapt)"
        elif not answer["adapted"]:
            line += " (sure, so not adapted)"
        else:
            line += f", {shown(after['class'])} {100 * after['probability']:.1f} % after adapting"
        print(line)


def corrupt_command(args: argparse.Namespace, extra: Sequence[str]) -> None:
    if args.out is None and args.preview is None:
        raise InputError("Expected --out DIR for the images, --preview FILE for a figure, or both; got neither.")
    from mt3.corruptions import resolve
    from mt3.corruptions.write import SEVERITIES, check_severities, write_corrupted

    names = resolve(args.corruptions or ["every"])
    severities = check_severities(args.severity or SEVERITIES)
    workers = _workers(args)
    dataset = load_data(args)
    if args.preview is not None:
        _check_preview(args, dataset)
    if args.out is not None:
        written = write_corrupted(dataset, args.out, names, severities, args.limit, args.seed, workers)
        kept = f"; {len(names) - len(written)} of {len(names)} were there" if len(written) < len(names) else ""
        print(f"{args.out}: {args.data} under {name_list(names)} at severities {name_list(severities)}{kept}")

    if args.preview is not None:
        _preview(args, dataset, names, severities)
        print(f"wrote {args.preview}")


def _check_preview(args: argparse.Namespace, dataset: "Dataset") -> None:
    """Refuse what cannot be drawn, before the images are written."""
    from mt3.reporting.figures import check_figure, import_pyplot

    check_figure(args.preview)
    check_can_write(args.preview)
    import_pyplot()
    count = len(dataset.test_images)
    if args.image >= count:
        raise InputError(f"Expected an --image from 0 to {count - 1}, got {args.image}; choose one of these.")


def _preview(args: argparse.Namespace, dataset: "Dataset", names: Sequence[str], severities: Sequence[int]) -> None:
    """Draw one test image with the very pixels that --out gives it."""
    import numpy as np

    from mt3.corruptions import apply
    from mt3.reporting.figures import draw_corruptions

    image = dataset.test_images[args.image : args.image + 1]
    corrupted = {
        name: np.concatenate([apply(image, name, severity, args.seed, args.image) for severity in severities])
        for name in names
    }
    draw_corruptions(args.preview, image[0], corrupted, severities)


def reproduce_command(args: argparse.Namespace, extra: Sequence[str]) -> None:
    preset = args.preset or default_preset(args.data)
    overrides = {name.replace("-", "_"): value for name, value in _overrides(args, extra).items()}
    for name, instead in (("method", "--methods"), ("seed", "--seeds")):
        if name in overrides:
            raise InputError(f"Unexpected argument '--{name}': every training has its own; give {instead}.")
    if args.seeds < 1:
        raise InputError("Expected at least 1 seed, got 0.")
    if args.jobs == 0:
        raise InputError("Expected at least 1 job, got 0; give --jobs 1 for one run after the other.")
    if args.dry_run and args.download:
        raise InputError("A dry run writes nothing, so that it does not download; drop --download or --dry-run.")
    methods = [name for name in METHODS if name in {get_method(m).name for m in args.methods or ()}]
    ablations = resolve_ablations(args.ablations or [])
    from mt3.evaluation.protocol import TestImages
    from mt3.studies.plan import Study, paper_methods
    from mt3.studies.reproduce import reproduce

    for method in methods or paper_methods(args.data):
        make_config(method, args.data, preset, overrides=overrides)  # what is wrong with it is said before all else
    device = set_up(args)
    if args.corrupted is None:
        _corrupted_images(args, None)
    dataset = load_data(args)
    corrupted, names, severities = _corrupted_images(args, dataset)
    study = Study(
        args.out or Path("runs") / f"{preset}-{args.data.replace(':', '-')}",
        TestImages(dataset, corrupted),
        preset,
        methods or paper_methods(args.data),
        args.seeds,
        names,
        severities,
        args.limit,
        args.sweep_limit,
        ablations,
        overrides,
        device,
        args.data_dir,
        args.jobs or default_jobs(device),
    )
    reproduce(study, args.dry_run)


def report_command(args: argparse.Namespace, extra: Sequence[str]) -> None:
    from mt3.reporting.page import write_report

    if not args.results and not args.published:
        raise InputError(
            "Expected directories of results, got none; give some, or --published for the paper's numbers."
        )
    first = args.results[0] if args.results else Path()
    out = args.out or (first.parent if first.is_file() else first) / "report"
    words = "" if args.words is None else read_text(args.words)
    if args.words is not None and args.page is not None and args.words.resolve() == args.page.resolve():
        raise InputError(f"The report would take the place of {args.words}; choose another --page.")
    table, files, notes = write_report(args.results, out, args.published, words=words, page=args.page)
    for note in notes:
        print(note, file=sys.stderr)
    print(f"{table}\n" if table else "", end="")
    elsewhere = "" if args.page is None else f"{args.page}, and "
    inside = files if args.page is None else files[1:]
    print(f"wrote {elsewhere}{name_list(f.name for f in inside)} in {out}")


def demo_command(args: argparse.Namespace, extra: Sequence[str]) -> None:
    from mt3.studies.demo import IMAGES, run_demo

    device = set_up(args)
    print(run_demo(args.out, args.seed, device, args.images or IMAGES, args.max_steps, default_jobs(device)))
