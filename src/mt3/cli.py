"""The command line: train | evaluate | predict | corrupt | reproduce | report | bench | demo.

Torch is imported where needed.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mt3.ablations import ABLATIONS, resolve_ablations
from mt3.arguments import Parser, compute_arguments, count, data_arguments, default_jobs, path, rate, set_up
from mt3.bench.commands import add_bench
from mt3.config import CHOICES, FIELDS, make_config, preset_names
from mt3.data.dataset import DATASETS
from mt3.errors import InputError, name_list
from mt3.files import check_can_write, read_text
from mt3.method import LAYERS, METHODS, get_method
from mt3.version import __version__

if TYPE_CHECKING:
    from mt3.data import CorruptedSet, Dataset


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="mt3",
        description="Meta test-time training: image classifiers that adapt to each single unlabeled image.",
    )
    parser.add_argument("--version", action="version", version=f"mt3 {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser, metavar="COMMAND")

    train = commands.add_parser(
        "train",
        help="train one of the paper's methods",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_field_help(),
    )
    train.add_argument("--method", required=True, help=f"one of {name_list(METHODS)}")
    train.add_argument("--data", default="digits", help=f"one of {name_list(DATASETS)} (default: digits)")
    train.add_argument(
        "--preset", help=f"one of {name_list(preset_names())} (default: demo for the digits, paper for CIFAR)"
    )
    train.add_argument("--out", type=path, required=True, help="the run's directory")
    train.add_argument("--seed", type=count, default=0)
    train.add_argument("--max-steps", type=count, help="stop after this many steps; --resume goes on later")
    train.add_argument("--resume", action="store_true", help="continue the run in --out, or start it if there is none")
    train.add_argument("--init", type=path, metavar="RUN", help="start from this run's weights")
    train.add_argument("--tensorboard", action="store_true", help="also log for TensorBoard (an extra)")
    data_arguments(train)
    compute_arguments(train)
    train.set_defaults(run=_train)

    evaluate = commands.add_parser("evaluate", help="accuracy under corruption, before and after adapting")
    evaluate.add_argument("model", type=path, metavar="RUN", help="a run, a saved model, or cifar10-cpu")
    evaluate.add_argument(
        "--corruptions", nargs="+", action="extend", help="names, or: all (the paper's; default), held-out, every, none"
    )
    evaluate.add_argument(
        "--severity", type=count, nargs="+", action="extend", help="1 to 5 (default: 5); several give all of them"
    )
    evaluate.add_argument("--limit", type=count, help="only this many images of the test split")
    evaluate.add_argument("--first", type=count, default=0, metavar="INDEX", help="from this image on (default: 0)")
    evaluate.add_argument("--corrupted", type=path, metavar="DIR", help="images in the published -C layout")
    evaluate.add_argument("--unadapted", action="store_true", help="the model as it is, without adapting: much faster")
    evaluate.add_argument("--controls", action="store_true", help="also adapt on other images, to split the gain")
    evaluate.add_argument("--adapt-layers", help=f"what adapts: {name_list(LAYERS)} (default: the model's)")
    evaluate.add_argument("--ablation", metavar="LABEL", help="the name of this variant in a report")
    evaluate.add_argument("--data", help="the data set, if RUN does not say")
    evaluate.add_argument("--out", type=path, help="JSON file (default: RUN/evaluation.json)")
    _adapt_arguments(evaluate)
    data_arguments(evaluate)
    compute_arguments(evaluate)
    evaluate.set_defaults(run=_evaluate)

    predict = commands.add_parser("predict", help="class and probability of image files, before and after adapting")
    predict.add_argument("model", type=path, metavar="RUN", help="a run, a saved model, or cifar10-cpu")
    predict.add_argument("images", type=path, nargs="+", metavar="IMAGE")
    predict.add_argument("--json", action="store_true", help="print JSON")
    _adapt_arguments(predict)
    compute_arguments(predict)
    predict.set_defaults(run=_predict)

    corrupt = commands.add_parser("corrupt", help="write corrupted test images in the published -C layout")
    corrupt.add_argument("--data", default="digits", help=f"one of {name_list(DATASETS)} (default: digits)")
    corrupt.add_argument("--out", type=path, metavar="DIR", help="the directory to write; whole files in it are kept")
    corrupt.add_argument(
        "--corruptions", nargs="+", action="extend", help="names, or: all (the paper's), held-out, every (default)"
    )
    corrupt.add_argument("--severities", type=count, nargs="+", action="extend", help="1 to 5 (default: all five)")
    corrupt.add_argument("--limit", type=count, help="only this many images of the test split")
    corrupt.add_argument("--seed", type=count, default=0)
    corrupt.add_argument("--workers", type=count, help="processes (default: one for each core)")
    corrupt.add_argument("--preview", type=path, metavar="FILE", help="draw one image under all of them (.png or .pdf)")
    corrupt.add_argument("--image", type=count, default=0, metavar="INDEX", help="which test image to draw")
    data_arguments(corrupt)
    corrupt.set_defaults(run=_corrupt)

    add_bench(commands)

    reproduce = commands.add_parser(
        "reproduce",
        help="the paper's tables from nothing: every training, every evaluation and the report",
        description="Trains, evaluates and reports, and begins with a plan that says how long each part takes here. "
        "Finished parts are not done again, so that the same command goes on after a kill. "
        "Any field of the trainings can be set for all of them, as in `mt3 train`.",
        allow_abbrev=False,
    )
    reproduce.add_argument("--data", default="digits", help=f"one of {name_list(DATASETS)} (default: digits)")
    reproduce.add_argument(
        "--preset", help=f"one of {name_list(preset_names())} (default: demo for the digits, paper for CIFAR)"
    )
    reproduce.add_argument("--seeds", type=count, default=3, help="how many, from 0 on (default: 3)")
    reproduce.add_argument("--out", type=path, metavar="DIR", help="the directory (default: runs/PRESET-DATA)")
    reproduce.add_argument(
        "--methods", nargs="+", action="extend", help=f"of {name_list(METHODS)} (default: those of the paper's table)"
    )
    reproduce.add_argument(
        "--ablations", nargs="+", action="extend", metavar="NAME", help=f"of {name_list(ABLATIONS)}, or all"
    )
    reproduce.add_argument("--corruptions", nargs="+", action="extend", help="as of `mt3 evaluate`")
    reproduce.add_argument("--severity", type=count, nargs="+", action="extend", help="1 to 5 (default: 5)")
    reproduce.add_argument("--corrupted", type=path, metavar="CDIR", help="images in the published -C layout")
    reproduce.add_argument("--limit", type=count, help="test images (default: 50 digits, all of CIFAR)")
    reproduce.add_argument(
        "--sweep-limit", type=count, help="test images for sweeps (default: 25 digits, else --limit)"
    )
    reproduce.add_argument(
        "--jobs", type=count, help="runs at a time, each with its share of the threads (default: 2 on a CPU, else 1)"
    )
    reproduce.add_argument("--dry-run", action="store_true", help="print the plan and write nothing")
    data_arguments(reproduce)
    compute_arguments(reproduce)
    reproduce.set_defaults(run=_reproduce)

    report = commands.add_parser("report", help="tables and figures from evaluations and training curves")
    report.add_argument(
        "results", type=path, nargs="*", metavar="DIR", help="directories or files, searched for results"
    )
    report.add_argument("--out", type=path, help="directory (default: report, inside the first DIR)")
    report.add_argument("--published", action="store_true", help="the paper's numbers beside them; without DIR, alone")
    report.add_argument("--words", type=path, metavar="FILE", help="Markdown that the report begins with")
    report.add_argument("--page", type=path, metavar="FILE", help="where the report goes (default: report.md in --out)")
    report.set_defaults(run=_report)

    demo = commands.add_parser("demo", help="train and evaluate on the embedded digits, in minutes")
    demo.add_argument("--out", type=path, default=Path("runs/demo"))
    demo.add_argument("--seed", type=count, default=0)
    demo.add_argument("--images", type=count, help="held-out images under each corruption (default: the demo's)")
    demo.add_argument("--max-steps", type=count, help="of each training, for a quick look")
    compute_arguments(demo)
    demo.set_defaults(run=_demo)
    return parser


def _field_help() -> str:
    lines = ["any field of the run can be set, as in --width 16 or --inner-lr 0.05; the paper's MT3 has:"]
    for name, field in FIELDS.items():
        if name not in ("method", "data", "preset", "seed"):
            choices = f" ({name_list(CHOICES[name])})" if name in CHOICES else ""
            default = "none" if field.default is None else str(field.default).lower() if field.default != () else "1,2"
            lines.append(f"  --{name.replace('_', '-')} {default}{choices}")
    return "\n".join(lines)


def _adapt_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=count, help="inner steps (default: the model's)")
    parser.add_argument("--lr", type=rate, help="inner learning rate (default: the model's)")
    parser.add_argument("--views", type=count, help="views K_T (default: the model's)")
    parser.add_argument(
        "--average", type=count, metavar="N", help="average the answer over N shifted, mirrored copies, too"
    )
    parser.add_argument("--gate", type=rate, metavar="P", help="do not adapt where the model is sure to probability P")
    parser.add_argument("--seed", type=count, default=0, help="of the views")


def _overrides(extra: Sequence[str]) -> dict[str, str]:
    """Read `--field value` and `--field=value`."""
    found: dict[str, str] = {}
    words = list(extra)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise InputError(f"Unexpected argument '{word}'; see `mt3 train --help`.")
        name, equals, value = word.removeprefix("--").partition("=")
        if not equals:
            if not words:
                raise InputError(f"Expected a value after {word}; see `mt3 train --help`.")
            value = words.pop(0)
        found[name] = value
    return found


def _workers(args: argparse.Namespace) -> int:
    """The processes to use: as asked, or one for each core."""
    from mt3.workers import count_cores

    if args.workers == 0:
        raise InputError("Expected at least 1 worker, got 0; give --workers 1 for a single process.")
    return args.workers or count_cores()


def _train(args: argparse.Namespace, extra: Sequence[str]) -> None:
    preset = args.preset or ("demo" if args.data == "digits" else "paper")
    config = make_config(args.method, args.data, preset, args.seed, _overrides(extra))
    from mt3.data import load_dataset
    from mt3.model import count_parameters
    from mt3.train import train

    device = set_up(args)
    dataset = load_dataset(args.data, args.data_dir, args.download)
    model = train(
        config, dataset, args.out, device, args.max_steps, args.resume, args.init, args.tensorboard, args.data_dir
    )
    print(f"{args.out}: {args.method} on {args.data}, {count_parameters(model)} parameters")


def _dataset_of_run(args: argparse.Namespace, optional: bool) -> "tuple[Dataset | None, dict[str, Any]]":
    """The data set a run was trained on, and what its run.json says."""
    from mt3.checkpoint import find_model, read_run
    from mt3.data import load_dataset

    run = read_run(find_model(args.model))
    name = args.data or run.get("config", {}).get("data")
    if name is None:
        if optional:
            return None, run
        raise InputError(f"{args.model} does not say which data it was trained on; give --data.")
    recorded = run.get("data_dir")
    data_dir = args.data_dir or (Path(recorded) if recorded else None)
    try:
        return load_dataset(name, data_dir, args.download), run
    except InputError as error:
        if optional and args.data_dir is None and not args.download:
            print(f"without clean images: {error}", file=sys.stderr)
            return None, run
        raise


def _evaluate(args: argparse.Namespace, extra: Sequence[str]) -> None:
    from mt3.checkpoint import find_model, load, shipped_models
    from mt3.evaluate import TestImages, evaluate
    from mt3.report import evaluation_summary

    device = set_up(args)
    model = load(args.model).to(device)
    dataset, run = _dataset_of_run(args, optional=args.corrupted is not None)
    if dataset is not None and dataset.num_classes != model.num_classes:
        raise InputError(
            f"The model has {model.num_classes} classes, {dataset.name} {dataset.num_classes}; give its own."
        )
    corrupted, names, severities = _corrupted_images(args, dataset)
    about = {
        "data": (dataset.name if dataset else None) or run.get("config", {}).get("data"),
        "method": run.get("config", {}).get("method"),
        "preset": run.get("config", {}).get("preset"),
        "train_seed": run.get("config", {}).get("seed"),
    }
    if args.ablation is not None:
        about["ablation"] = args.ablation
    if dataset is not None and model.classes and tuple(model.classes) != dataset.classes:
        raise InputError(
            f"The model knows {name_list(model.classes[:3])} and so on, {dataset.name} has "
            f"{name_list(dataset.classes[:3])} and so on; give the data that it was trained for."
        )
    if args.out is None and find_model(args.model) in shipped_models().values():
        raise InputError(f"{args.model} comes with the package, where no results go; give --out.")
    out = args.out or args.model / "evaluation.json"
    result = evaluate(
        model,
        TestImages(dataset, corrupted, first=args.first),
        names,
        severities,
        out,
        args.limit,
        args.steps,
        args.lr,
        args.views,
        args.seed,
        args.controls,
        about,
        adapt_layers=args.adapt_layers,
        average=args.average,
        gate=args.gate,
        unadapted=args.unadapted,
    )
    print(evaluation_summary(result))
    print(f"wrote {out} and {out.with_suffix('.npz').name}")


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
    corrupted = open_corrupted(args.corrupted, dataset.name if dataset else None)
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


def _predict(args: argparse.Namespace, extra: Sequence[str]) -> None:
    from mt3.images import read_image

    read = [read_image(path) for path in args.images]
    from mt3.checkpoint import load
    from mt3.predict import predict

    device = set_up(args)
    model = load(args.model).to(device)
    pixels = [image for image, _ in read]
    answers = predict(model, pixels, args.steps, args.lr, args.views, args.seed, args.average, args.gate)
    for answer, file, (_, notes) in zip(answers, args.images, read, strict=True):
        answer |= {"image": str(file), "converted": notes}
    if args.json:
        print(json.dumps(answers, indent=2))
        return
    for answer in answers:
        if answer["converted"]:
            print(f"{answer['image']}: {', '.join(answer['converted'])}", file=sys.stderr)
        before, after = answer["before"], answer["after"]
        line = f"{answer['image']}: {before['class']} {100 * before['probability']:.1f} % before"
        if after is None:
            line += " (does not adapt)"
        elif not answer["adapted"]:
            line += " (sure, so not adapted)"
        else:
            line += f", {after['class']} {100 * after['probability']:.1f} % after adapting"
        print(line)


def _corrupt(args: argparse.Namespace, extra: Sequence[str]) -> None:
    if args.out is None and args.preview is None:
        raise InputError("Expected --out DIR for the images, --preview FILE for a figure, or both; got neither.")
    from mt3.corruptions import resolve
    from mt3.corruptions.write import SEVERITIES, check_severities, write_corrupted
    from mt3.data import load_dataset

    names = resolve(args.corruptions or ["every"])
    severities = check_severities(args.severities or SEVERITIES)
    workers = _workers(args)
    dataset = load_dataset(args.data, args.data_dir, args.download)
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
    from mt3.figures import check_figure, import_pyplot

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
    from mt3.figures import draw_corruptions

    image = dataset.test_images[args.image : args.image + 1]
    corrupted = {
        name: np.concatenate([apply(image, name, severity, args.seed, args.image) for severity in severities])
        for name in names
    }
    draw_corruptions(args.preview, image[0], corrupted, severities)


def _reproduce(args: argparse.Namespace, extra: Sequence[str]) -> None:
    preset = args.preset or ("demo" if args.data == "digits" else "paper")
    overrides = {name.replace("-", "_"): value for name, value in _overrides(extra).items()}
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
    from mt3.data import load_dataset
    from mt3.evaluate import TestImages
    from mt3.plan import Study, paper_methods
    from mt3.reproduce import reproduce

    for method in methods or paper_methods(args.data):
        make_config(method, args.data, preset, overrides=overrides)  # what is wrong with it is said before all else
    device = set_up(args)
    if args.corrupted is None:
        _corrupted_images(args, None)
    dataset = load_dataset(args.data, args.data_dir, args.download)
    corrupted, names, severities = _corrupted_images(args, dataset)
    study = Study(
        args.out or Path("runs") / f"{preset}-{args.data}",
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


def _report(args: argparse.Namespace, extra: Sequence[str]) -> None:
    from mt3.report import write_report

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


def _demo(args: argparse.Namespace, extra: Sequence[str]) -> None:
    from mt3.demo import IMAGES, run_demo

    device = set_up(args)
    print(run_demo(args.out, args.seed, device, args.images or IMAGES, args.max_steps, default_jobs(device)))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; bad input gives one sentence and exit code 2."""
    try:
        args, extra = _parser().parse_known_args(argv)
        if extra and args.command not in ("train", "reproduce"):
            raise InputError(f"Unexpected argument '{extra[0]}'; see `mt3 {args.command} --help`.")
        if getattr(args, "command", "") == "bench" and getattr(args, "json", None) is not None:
            check_can_write(args.json)  # before measuring
        args.run(args, extra)
        sys.stdout.flush()  # a full disk under it is said below
        return 0
    except InputError as error:
        print(f"mt3: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("mt3: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 141
    except (MemoryError, RuntimeError) as error:
        told = str(error)  # PyTorch's, on a CPU and on an accelerator; other errors speak of memory formats
        if not isinstance(error, MemoryError) and "not enough memory" not in told and "out of memory" not in told:
            raise
        print("mt3: There is not enough memory for this; lower views, average, tasks or task_size.", file=sys.stderr)
        return 2
    except OSError as error:  # a path that cannot be entered or is too long, a full disk under the output
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"mt3: {where}{error.strerror or error}; check the path, what you may do there, and its space.",
            file=sys.stderr,
        )
        return 2
