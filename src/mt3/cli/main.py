"""The command line: train | evaluate | merge | tune | predict | serve | corrupt | reproduce | report | status | demo.

`mt3.cli.commands` has what each of them does; torch is imported where needed.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from mt3.cli import answer_commands, cluster_commands, commands, method_commands
from mt3.cli.arguments import (
    ADAPTATION,
    METHOD_WORDS,
    NEXT_IMAGES,
    ONE_STEP,
    Parser,
    adapt_arguments,
    chosen_data_arguments,
    compute_arguments,
    corruption_arguments,
    count,
    data_arguments,
    limit_arguments,
    method_arguments,
    number,
    path,
    positive,
    settle_data,
    shard,
    training_arguments,
)
from mt3.config.adaptation import TUNED
from mt3.config.methods import METHODS
from mt3.config.words import field_help
from mt3.service import DEFAULT_MODEL
from mt3.studies.ablations import ABLATIONS
from mt3.support.errors import WORD, InputError, RankLostError, name_list, shown
from mt3.support.signals import Stopped, stop_on_signals
from mt3.support.version import __version__

MODEL_WORDS = "a run, a saved model, or a shipped model's name, as cifar10-mt3"
ORDERED = "of the views, and of a stream's order"
TESTED = "all (the paper's; default), held-out, every, none"
FORMATS = ("arrays", "folders")  # of corrupted images
FORMAT_WORDS = "arrays: CIFAR-10-C's .npy files (default); folders: Tiny-ImageNet-C's, CORRUPTION/SEVERITY/CLASS/*.png"
MANY = ("reproduce", "demo")  # are many jobs, which torchrun's ranks would all begin
RESUMABLE = ("evaluate", "tune", "corrupt", "reproduce", "demo")  # `train` says how far it is, and needs --resume


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="mt3",
        description="Meta test-time training: image classifiers that adapt to each single unlabeled image.",
    )
    parser.add_argument("--version", action="version", version=f"mt3 {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, parser_class=Parser, metavar="COMMAND")

    train = subparsers.add_parser(
        "train",
        help="train one of the paper's methods",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=field_help(),
    )
    train.add_argument("--method", required=True, help=f"one of {name_list(METHODS)}")
    training_arguments(train)
    train.add_argument("--out", type=path, required=True, help="the run's directory")
    train.add_argument("--seed", type=count, default=0)
    train.add_argument("--max-steps", type=count, help="stop after this many, its start's included; --resume goes on")
    train.add_argument("--resume", action="store_true", help="continue the run in --out, or start it if there is none")
    train.add_argument("--init", type=path, metavar="RUN", help="start from this run's weights")
    train.add_argument("--log-every", type=count, metavar="N", help="steps from one line of metrics to the next")
    train.add_argument("--checkpoint-every", type=count, metavar="N", help="steps from one checkpoint to the next")
    train.add_argument(
        "--snapshot-every", type=count, metavar="N", help="keep the model at first and every so many steps, too"
    )
    train.add_argument("--recompute", action="store_true", help="keep fewer activations: less memory, more time")
    train.add_argument("--tensorboard", action="store_true", help="also log for TensorBoard (an extra)")
    compute_arguments(train)
    train.set_defaults(run=commands.train_command)

    evaluate = subparsers.add_parser("evaluate", help="accuracy under corruption, before and after adapting")
    evaluate.add_argument("model", type=path, metavar="RUN", help=MODEL_WORDS)
    corruption_arguments(evaluate, TESTED, "5")
    evaluate.add_argument("--limit", type=count, help="only this many images of the test split")
    evaluate.add_argument("--first", type=count, default=0, metavar="INDEX", help="from this image on (default: 0)")
    evaluate.add_argument("--corrupted", type=path, metavar="DIR", help="images in a -C layout, or SHIFT/CLASS/*")
    evaluate.add_argument("--unadapted", action="store_true", help="the model as it is, without adapting: much faster")
    evaluate.add_argument("--controls", action="store_true", help="also adapt on other images, to split the gain")
    evaluate.add_argument("--label", default="", help="the name of this variant in a report (default: the reference)")
    evaluate.add_argument("--data", help="the data set, if RUN does not say")
    evaluate.add_argument("--out", type=path, help="JSON file (default: RUN/evaluation.json)")
    evaluate.add_argument(
        "--shard", type=shard, metavar="I/N", help="share I, from 0 on, of N (default: torchrun's rank)"
    )
    method_arguments(evaluate, several=True)
    evaluate.add_argument(
        "--confidence",
        action="store_true",
        help="also how well the softmax and near copies tell right answers from wrong",
    )
    evaluate.add_argument("--tuned", type=path, metavar="FILE", help="take what `mt3 tune` chose")
    adapt_arguments(evaluate, ADAPTATION, ORDERED)
    data_arguments(evaluate)
    compute_arguments(evaluate)
    evaluate.set_defaults(run=commands.evaluate_command)

    merge = subparsers.add_parser("merge", help="the results of an evaluation whose shards are all done")
    merge.add_argument("results", type=path, metavar="FILE", help="the JSON file that they were given as --out")
    merge.set_defaults(run=cluster_commands.merge_command)

    tune = subparsers.add_parser("tune", help="choose learning rate, steps, views or support, on what is not reported")
    tune.add_argument("model", type=path, metavar="RUN", help=MODEL_WORDS)
    method_arguments(tune)
    for name, kind in (("lr", number), ("steps", positive), ("views", positive), ("support", positive)):
        told = f"values of {name} to try (default: by the method)"
        tune.add_argument(f"--{name}", dest=f"tried_{name}", type=kind, nargs="+", metavar=name.upper(), help=told)
    corruption_arguments(tune, "held-out (default), and no other group", "5")
    tune.add_argument("--limit", type=positive, default=200, help="of the held-out images at most these (default: 200)")
    tune.add_argument("--data", help="the data set, if RUN does not say")
    tune.add_argument("--out", type=path, help="JSON file (default: RUN/tuned-METHOD-STREAM.json)")
    adapt_arguments(tune, [name for name in ADAPTATION if name not in TUNED], ORDERED)
    data_arguments(tune)
    compute_arguments(tune)
    tune.set_defaults(run=method_commands.tune_command)

    moments = subparsers.add_parser("moments", help="let a model know its channels on training images, for plus")
    moments.add_argument("model", type=path, metavar="RUN", help="a run or a saved model, beside whose weights they go")
    moments.add_argument("--images", type=partial(count, low=2), default=1000, help="training images (default: 1000)")
    moments.add_argument("--data", help="the data set, if RUN does not say")
    data_arguments(moments)
    compute_arguments(moments)
    moments.set_defaults(run=method_commands.moments_command)

    trace = subparsers.add_parser("trace", help="what happens to the step along a training, from its snapshots")
    trace.add_argument("model", type=path, metavar="RUN", help="a run that was trained with --snapshot-every")
    corruption_arguments(trace, "held-out (default) and more", "5")
    trace.add_argument("--limit", type=positive, default=100, help="test images (default: 100)")
    trace.add_argument("--first", type=count, default=0, metavar="INDEX", help="from this image on (default: 0)")
    trace.add_argument("--data", help="the data set, if RUN does not say")
    trace.add_argument("--out", type=path, help="JSON file; a PNG goes beside it (default: RUN/trace.json)")
    adapt_arguments(trace, ONE_STEP)
    data_arguments(trace)
    compute_arguments(trace)
    trace.set_defaults(run=method_commands.trace_command)

    predict = subparsers.add_parser("predict", help="class and probability of image files, before and after adapting")
    predict.add_argument("model", type=path, metavar="RUN", help=MODEL_WORDS)
    predict.add_argument("images", type=path, nargs="+", metavar="IMAGE", help="files, in the order of a stream")
    predict.add_argument("--json", action="store_true", help="print JSON")
    predict.add_argument("--method", default="own", metavar="NAME", help=METHOD_WORDS)
    adapt_arguments(predict, NEXT_IMAGES)
    compute_arguments(predict)
    predict.set_defaults(run=answer_commands.predict_command)

    serve = subparsers.add_parser("serve", help="a page to try it on, and an HTTP service (an extra)")
    told = f"a run, a saved model, or a shipped model's name (default: {DEFAULT_MODEL})"
    serve.add_argument("model", type=path, nargs="?", default=Path(DEFAULT_MODEL), metavar="MODEL", help=told)
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen at (default: this machine alone)")
    serve.add_argument("--port", type=count, default=8000, help="0: any that is free (default: 8000)")
    limit_arguments(serve)
    compute_arguments(serve)
    serve.set_defaults(run=answer_commands.serve_command)

    corrupt = subparsers.add_parser("corrupt", help="write corrupted test images in a published layout")
    chosen_data_arguments(corrupt)
    corrupt.add_argument("--out", type=path, metavar="DIR", help="the directory to write; whole files in it are kept")
    corrupt.add_argument("--format", choices=FORMATS, default=FORMATS[0], help=FORMAT_WORDS)
    corruption_arguments(corrupt, "all (the paper's), held-out, every (default)", "all five")
    corrupt.add_argument("--limit", type=positive, help="only this many images of the test split")
    corrupt.add_argument("--seed", type=count, default=0)
    corrupt.add_argument("--workers", type=positive, help="processes (default: one for each core)")
    corrupt.add_argument("--preview", type=path, metavar="FILE", help="draw one image under all of them (.png or .pdf)")
    corrupt.add_argument("--image", type=count, default=0, metavar="INDEX", help="which test image to draw")
    corrupt.set_defaults(run=commands.corrupt_command)

    reproduce = subparsers.add_parser(
        "reproduce",
        help="the paper's tables from nothing: every training, every evaluation and the report",
        description="Trains, evaluates and reports, and begins with a plan that says how long each part takes here. "
        "Finished parts are not done again, so that the same command goes on after a kill. "
        "Any field of the trainings can be set for all of them, as in `mt3 train`.",
    )
    training_arguments(reproduce)
    reproduce.add_argument("--seeds", type=positive, default=3, help="how many, from 0 on (default: 3)")
    reproduce.add_argument("--out", type=path, metavar="DIR", help="the directory (default: runs/PRESET-DATA)")
    reproduce.add_argument(
        "--methods", nargs="+", action="extend", help=f"of {name_list(METHODS)} (default: those of the paper's table)"
    )
    reproduce.add_argument(
        "--ablations", nargs="+", action="extend", metavar="NAME", help=f"of {name_list(ABLATIONS)}, or all"
    )
    corruption_arguments(reproduce, TESTED, "5")
    reproduce.add_argument("--corrupted", type=path, metavar="CDIR", help="images in the layout of CIFAR-10-C")
    reproduce.add_argument("--limit", type=count, help="test images (default: 50 digits, all of CIFAR)")
    reproduce.add_argument(
        "--sweep-limit", type=count, help="test images for sweeps (default: 25 digits, else --limit)"
    )
    reproduce.add_argument(
        "--jobs", type=positive, help="runs at a time, each with its share of the threads (default: 2 on a CPU, else 1)"
    )
    reproduce.add_argument("--dry-run", action="store_true", help="print the plan and write nothing")
    reproduce.add_argument("--list-jobs", action="store_true", help="print what can run apart, as lines of JSON")
    reproduce.add_argument(
        "--shards", type=positive, metavar="N", help="of each evaluation in --list-jobs (default: 1)"
    )
    reproduce.add_argument("--job", metavar="NAME", help="do this one of --list-jobs, and nothing else")
    reproduce.add_argument("--shard", type=shard, metavar="I/N", help="share I of N of a --job that evaluates")
    compute_arguments(reproduce)
    reproduce.set_defaults(run=commands.reproduce_command)

    report = subparsers.add_parser("report", help="tables and figures from evaluations and training curves")
    report.add_argument(
        "results", type=path, nargs="*", metavar="DIR", help="directories or files, searched for results"
    )
    report.add_argument("--out", type=path, help="directory (default: report, inside the first DIR)")
    report.add_argument("--published", action="store_true", help="the paper's numbers beside them; without DIR, alone")
    report.add_argument("--words", type=path, metavar="FILE", help="Markdown that the report begins with")
    report.add_argument("--page", type=path, metavar="FILE", help="where the report goes (default: report.md in --out)")
    report.set_defaults(run=commands.report_command)

    status = subparsers.add_parser("status", help="how far trainings, evaluations and studies are, also on other hosts")
    status.add_argument("results", type=path, nargs="+", metavar="DIR", help="a run, a study, or an evaluation's file")
    status.add_argument("--json", action="store_true", help="print JSON")
    status.set_defaults(run=cluster_commands.status_command)

    demo = subparsers.add_parser("demo", help="train and evaluate on the embedded digits, in minutes")
    demo.add_argument("--out", type=path, default=Path("runs/demo"))
    demo.add_argument("--seed", type=count, default=0)
    images = partial(count, low=2)  # a control adapts on another one
    demo.add_argument("--images", type=images, help="held-out images under each corruption (default: the demo's)")
    demo.add_argument("--max-steps", type=positive, help="of each training, for a quick look")
    compute_arguments(demo)
    demo.set_defaults(run=commands.demo_command)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; bad input gives one sentence and exit code 2, a signal to end 128 and its number."""
    return run_command(_parser, argv)


def run_command(make_parser: Callable[[], argparse.ArgumentParser], argv: Sequence[str] | None) -> int:
    """Parse the arguments and call what they chose; what goes wrong for the user is said in one sentence."""
    command = ""
    with stop_on_signals():
        try:
            args, extra = make_parser().parse_known_args(argv)
            if extra:
                args.parser.refuse(extra[0])
            command = args.command
            if command in MANY and getattr(args, "job", None) is None and "TORCHELASTIC_RUN_ID" in os.environ:
                raise InputError(f"torchrun is for a single job; start mt3 {command} without it, or see --list-jobs.")
            settle_data(args)
            args.run(args)
            sys.stdout.flush()  # a full disk under it is said below
            return 0
        except InputError as error:
            _say(f"mt3: {error}")
            return 2
        except RankLostError as error:
            _say(f"mt3: {error}")
            return 1
        except KeyboardInterrupt as stop:
            again = "; the same command goes on where it stopped" if command in RESUMABLE else ""
            far = f"{stop}; --resume goes on\n" if command == "train" and str(stop) else ""
            _say(f"{far}mt3: interrupted{again}")
            return 128 + (stop.number if isinstance(stop, Stopped) else signal.SIGINT)
        except BrokenPipeError:
            sys.stderr.close()
            return 141
        except (MemoryError, RuntimeError) as error:
            # PyTorch's, on a CPU and on an accelerator; other errors speak of memory formats
            told = any(words in str(error) for words in ("not enough memory", "out of memory", "allocate memory"))
            if not isinstance(error, MemoryError) and not told:
                raise
            _say("mt3: There is not enough memory for this; lower views, tasks or task_size.")
            return 2
        except OSError as error:  # a path that cannot be entered or is too long, a full disk under the output
            where = f"{shown(error.filename, WORD)}: " if error.filename else ""
            reason = shown(error.strerror or error, WORD)
            _say(f"mt3: {where}{reason}; check the path, what you may do there, and its space.")
            return 2


def _say(words: str) -> None:
    """Print to the error stream; of the ranks that torchrun started, the first with something to say does."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from mt3.support.ranks import may_speak  # imports torch

        if not may_speak():
            return
    print(words, file=sys.stderr)
