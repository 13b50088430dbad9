"""What each command of the command line does. Torch is imported where needed."""

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt3.cli.arguments import default_jobs, given_fields, load_data, set_up
from mt3.cli.cluster_commands import check_job_arguments, shard_done, study_jobs
from mt3.cli.method_commands import asked_evaluations
from mt3.config.config import make_config
from mt3.config.methods import METHODS, get_method
from mt3.data.folder import KIND, SIZE
from mt3.studies.ablations import resolve_ablations
from mt3.support.errors import NAME, InputError, is_name, name_list, shown
from mt3.support.files import read_text

if TYPE_CHECKING:
    from mt3.data import CorruptedSet, Dataset, ShiftedSet
    from mt3.models.classifier import MT3Model


def train_command(args: argparse.Namespace) -> None:
    config = make_config(args.method, args.data, _preset(args), args.seed, given_fields(args))
    from mt3.models.classifier import count_parameters
    from mt3.models.store import read_run
    from mt3.results.runs import about_run
    from mt3.support import ranks
    from mt3.training.loop import train
    from mt3.training.runs import RunOptions

    names = [field.name for field in fields(RunOptions)]
    asked = {name: value for name, value in vars(args).items() if name in names and value is not None}
    device = set_up(args)
    options = RunOptions(**(asked | {"device": str(device)}))
    with ranks.open_group(device):
        with ranks.main_first():
            dataset = load_data(args)
        model = train(config, dataset, args.out, options)
        if not ranks.is_main():
            return
        size = "its start is not finished" if model is None else f"{count_parameters(model)} parameters"
        print(f"{args.out}: {args.method} on {args.data}, {size}")
        about = about_run(read_run(args.out), args.out) or {}
        if about["step"] < about["total_steps"]:
            print(f"stopped after {about['step']} of {about['total_steps']} steps; --resume goes on")


def _preset(args: argparse.Namespace) -> str:
    return args.preset or ("demo" if args.data == "digits" else "small" if args.data.startswith(KIND) else "paper")


def dataset_of_run(args: argparse.Namespace, run: dict[str, Any], model: "MT3Model") -> "Dataset | None":
    """The data set a run was trained on, by what its run.json says; corrupted images will do without."""
    from mt3.data import EMBEDDED, load_dataset

    name = args.data or run.get("config", {}).get("data")
    if name is None and args.corrupted is not None:
        return None
    if name is None:
        raise InputError(f"{args.model} does not say which data it was trained on; give --data.")
    recorded = None if name in EMBEDDED else run.get("data_dir")  # which need none
    try:
        data_dir, size = args.data_dir or (Path(recorded) if recorded else None), args.size
        if size is None and name.startswith(KIND):
            size = model.size
        return load_dataset(name, data_dir, args.download, size, args.skip_broken)
    except InputError as error:
        if args.corrupted is None or args.data_dir is not None or args.download:
            raise
        print(f"without clean images: {error}", file=sys.stderr)
        return None


def evaluate_command(args: argparse.Namespace) -> None:
    from mt3.evaluation.evaluate import evaluate_shard
    from mt3.evaluation.protocol import Protocol, TestImages
    from mt3.evaluation.shards import WHOLE, rank_shard
    from mt3.models.store import find_model, load, read_run
    from mt3.reporting.summary import evaluation_summary
    from mt3.results.facts import read_evaluation
    from mt3.results.runs import about_run

    shard = args.shard or rank_shard()
    device = set_up(args)
    run = read_run(find_model(args.model))  # before the model: a training under way writes it after that
    model = load(args.model).to(device)
    dataset = dataset_of_run(args, run, model)
    if dataset is not None:
        _require_same_classes(model, dataset)
    corrupted: CorruptedSet | ShiftedSet | None
    if args.corrupted is not None and not any(args.corrupted.glob("*.npy")):
        corrupted = _shifted_images(args, model, dataset)
        names, severities = tuple(corrupted.names()), corrupted.severities
    else:
        corrupted, names, severities = _corrupted_images(args, dataset)
    if args.label and not is_name(args.label):
        raise InputError(f"Expected a label of 1 to {NAME} printable characters, got '{shown(args.label)}'.")
    images = TestImages(dataset, corrupted, first=args.first)
    asked = {name: getattr(args, name) for name in ("limit", "controls", "confidence", "seed", "label")}
    asked["run"] = about_run(run, args.model)
    for each in asked_evaluations(args, model, Path() if args.out else result_folder(args.model)):
        own = {name: getattr(each, name) for name in ("method", "stream", "adaptation", "tuned")}
        wrote = evaluate_shard(model, images, Protocol(names, severities, **asked, **own), each.out, shard)
        if shard != WHOLE and not wrote:
            print(shard_done(each.out, shard))
            continue
        found = read_evaluation(each.out)
        print(evaluation_summary(found))
        if found.protocol["run"] is not None and found.run.unfinished:
            print(f"{args.model} is not finished: this is after {found.run.progress}; train it with --resume")
        print(f"wrote {each.out} and {each.out.with_suffix('.npz').name}")


def result_folder(model: Path) -> Path:
    """Where results go if nobody says: beside the model, unless it is one of the package's."""
    from mt3.models.store import find_model, shipped_models

    if find_model(model) in shipped_models().values():
        raise InputError(f"{model} comes with the package, where no results go; give --out.")
    return model


def _require_same_classes(model: "MT3Model", dataset: "Dataset") -> None:
    known = tuple(model.classes or map(str, range(model.num_classes)))
    if len(known) != dataset.num_classes or (model.classes and known != dataset.classes):
        raise InputError(
            f"The model knows {name_list(known[:3])} and so on, {dataset.name} has {name_list(dataset.classes[:3])} "
            f"and so on, {len(known)} and {dataset.num_classes} classes; give the data that it was trained for."
        )


def _corrupted_images(
    args: argparse.Namespace, dataset: "Dataset | None"
) -> "tuple[CorruptedSet | None, tuple[str, ...], tuple[int, ...]]":
    """The -C directory if one is given, and which corruptions and severities are asked for."""
    from mt3.corruptions import resolve
    from mt3.corruptions.write import check_severities
    from mt3.data import open_corrupted

    severities, asked = tuple(check_severities(args.severity or [5])), args.corruptions or ["all"]
    if args.corrupted is None:
        return None, () if asked == ["none"] else resolve(asked), severities
    corrupted = open_corrupted(args.corrupted, dataset.num_classes if dataset else None)
    names = _names_there(args.corrupted, asked, corrupted.names())
    for name, severity in product(names, severities):
        corrupted.images_of(name, severity)  # refuses what is not there
    return corrupted, names, severities


def _names_there(directory: Path, asked: Sequence[str], there: Sequence[str]) -> tuple[str, ...]:
    """The corruptions that are asked for; of a group, those that the directory has."""
    from mt3.corruptions import HELD_OUT, PAPER

    groups = {"all": PAPER, "held-out": HELD_OUT, "every": there}
    names = dict.fromkeys(n for a in asked for n in groups.get(a, (a,)) if a not in groups or n in there)
    if not names:
        raise InputError(f"{directory} holds none of {name_list(asked)}, but {name_list(there)}.")
    return tuple(names)


def _shifted_images(args: argparse.Namespace, model: "MT3Model", dataset: "Dataset | None") -> "ShiftedSet":
    """The photos of a directory under the shifts that are asked for, by default all of them."""
    from mt3.corruptions.write import check_severities
    from mt3.data import Asked, open_shifts
    from mt3.data.shifts import list_shifts
    from mt3.support.processes import count_cores

    there = list_shifts(args.corrupted)
    names = _names_there(args.corrupted, args.corruptions or ["every"], list(there))
    size = model.size or args.size or (dataset.size if dataset is not None else SIZE)
    classes = model.classes or [str(i) for i in range(model.num_classes)]
    read = Asked(classes, size, args.skip_broken, count_cores())
    return open_shifts(args.corrupted, read, names, check_severities(args.severity) if args.severity else ())


def corrupt_command(args: argparse.Namespace) -> None:
    if args.out is None and args.preview is None:
        raise InputError("Expected --out DIR for the images, --preview FILE for a figure, or both; got neither.")
    from mt3.corruptions import resolve
    from mt3.corruptions.parameters import foreign_parameters
    from mt3.corruptions.write import SEVERITIES, check_severities, write_corrupted, write_folders
    from mt3.support.processes import count_cores

    names = resolve(args.corruptions or ["every"])
    severities = check_severities(args.severity or SEVERITIES)
    dataset = load_data(args)
    if args.preview is not None:
        _draw_preview(args, dataset, names, severities)
    if args.out is not None:
        workers = args.workers or count_cores()
        write = write_folders if args.format == "folders" else write_corrupted
        written = write(dataset, args.out, names, severities, args.limit, args.seed, workers)
        kept = f"; {len(names) - len(written)} of {len(names)} were there" if len(written) < len(names) else ""
        kept += foreign_parameters(dataset.size)
        print(f"{args.out}: {args.data} under {name_list(names)} at severities {name_list(severities)}{kept}")
    if args.preview is not None:
        print(f"wrote {args.preview}")


def _draw_preview(
    args: argparse.Namespace, dataset: "Dataset", names: Sequence[str], severities: Sequence[int]
) -> None:
    """Draw one test image with the very pixels that --out gives it."""
    import numpy as np

    from mt3.corruptions import apply
    from mt3.reporting.figures import draw_corruptions

    count = len(dataset.test_images)
    if args.image >= count:
        raise InputError(f"Expected an --image from 0 to {count - 1}, got {args.image}; choose one of these.")
    image = dataset.test_images[args.image : args.image + 1]
    corrupted = {
        name: np.concatenate([apply(image, name, severity, args.seed, args.image) for severity in severities])
        for name in names
    }
    draw_corruptions(args.preview, image[0], corrupted, severities)


def reproduce_command(args: argparse.Namespace) -> None:
    preset, overrides = _preset(args), given_fields(args)
    if (args.dry_run or args.list_jobs) and args.download:
        asked = "--dry-run" if args.dry_run else "--list-jobs"
        raise InputError(f"{asked} writes nothing, so that it does not download; drop --download or {asked}.")
    check_job_arguments(args)
    methods = [name for name in METHODS if name in {get_method(m).name for m in args.methods or ()}]
    ablations = resolve_ablations(args.ablations or [])
    from mt3.evaluation.protocol import TestImages
    from mt3.studies.plan import Study, paper_methods
    from mt3.studies.reproduce import reproduce

    methods = methods or paper_methods(args.data)
    for method in methods:
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
        methods,
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
    if args.list_jobs or args.job is not None:
        print(study_jobs(args, study), end="")
    else:
        reproduce(study, args.dry_run)


def report_command(args: argparse.Namespace) -> None:
    from mt3.reporting.collect import split_by_data
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
    parts = split_by_data(args.results)
    if len(parts) > 1 and (args.words is not None or args.page is not None):
        raise InputError(
            f"Expected one data set with --words or --page, got {name_list(parts)}; report each by itself."
        )
    for data, paths in parts.items():
        folder = out / re.sub(r"[^\w-]", "-", data)  # a name may hold what leads elsewhere
        table, files, notes = write_report(paths, folder, args.published, words=words, page=args.page)
        for note in notes:
            print(note, file=sys.stderr)
        print(f"{table}\n" if table else "", end="")
        elsewhere = "" if args.page is None else f"{args.page}, and "
        inside = files if args.page is None else files[1:]
        print(f"wrote {elsewhere}{name_list(f.name for f in inside)} in {folder}")


def demo_command(args: argparse.Namespace) -> None:
    from mt3.studies.demo import IMAGES, run_demo

    device = set_up(args)
    print(run_demo(args.out, args.seed, device, args.images or IMAGES, args.max_steps, default_jobs(device)))
