"""The benchmarks' command line: `python -m benchmarks meta-step`, and what it prints and writes."""

import argparse
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from benchmarks import BENCHMARKS
from mt3.cli.arguments import Parser, chosen_data_arguments, count, load_data, path, set_up
from mt3.support.files import check_can_write, write_json

Run = Callable[[argparse.Namespace], None]
Sizes = dict[str, tuple[int, str]]  # field -> default, what it is

NETWORK: Sizes = {"width": (32, "filters of the first stage"), "depth": (26, "layers, 6n+2")}
SIZES: dict[str, Sizes] = {
    "meta-step": {"tasks": (4, "T"), "task_size": (8, "K"), "inner_steps": (1, "M"), **NETWORK},
    "batch-step": {
        "images": (64, "of a batch"),
        "width": (16, "filters of the first stage"),
        "depth": (26, "layers, 6n+2"),
    },
    "ranks": {"tasks": (4, "T"), "task_size": (8, "K"), **NETWORK},
    "adapt": {"views": (32, "K_T"), "images": (4, "in a call"), **NETWORK},
    "methods": {"images": (16, "in a call")},
    "augment": {"images": (32, "in a call, two views of each")},
    "corruptions": {
        "images": (128, "test images in a call"),
        "severity": (5, "1 to 5"),
        "pixels": (32, "of a side, to which they are scaled"),
    },
    "all": {},
    "service": {"images": (30, "a request each")},
}
ROUNDS = {"augment": 15, "ranks": 20}
USUAL_ROUNDS = 5


def make_parser() -> argparse.ArgumentParser:
    """A command for each benchmark."""
    bench = Parser(prog="python -m benchmarks", description="How fast a part of the package is on this machine.")
    measured = bench.add_subparsers(dest="command", required=True, parser_class=Parser, metavar="BENCHMARK")
    for name, sizes in SIZES.items():
        parser = measured.add_parser(name, help=BENCHMARKS[name])
        for field, (default, what) in sizes.items():
            option = f"--{field.replace('_', '-')}"
            parser.add_argument(option, type=count, default=default, help=f"{what} (default: {default})")
        if name in ("meta-step", "adapt"):
            parser.add_argument("--scaling", action="store_true", help="also how time and memory grow")
        if name == "methods":
            parser.add_argument("--model", type=path, default=path("cifar10-mt3"), help="a run or a saved model")
        if name == "corruptions":
            chosen_data_arguments(parser)
        else:  # these are on one core
            parser.add_argument("--threads", type=count, help="of the CPU (default: all cores)")
            parser.set_defaults(device="cpu")
        rounds = ROUNDS.get(name, USUAL_ROUNDS)
        parser.add_argument("--rounds", type=count, default=rounds, help=f"over all candidates (default: {rounds})")
        parser.add_argument("--json", type=path, metavar="FILE", help="also write the numbers there")
        parser.set_defaults(run=_checked(RUN[name]))
    return bench


def _checked(
    run: Callable[[argparse.Namespace], None],
) -> Callable[[argparse.Namespace], None]:
    """Refuse a file that cannot be written before measuring."""

    def checked(args: argparse.Namespace) -> None:
        if args.json is not None:
            check_can_write(args.json)
        run(args)

    return checked


def _network(name: str, args: argparse.Namespace) -> None:
    """Measure a network of the sizes that are asked for, by the file of the benchmark's name."""
    file = import_module(f"benchmarks.{name.replace('-', '_')}")
    set_up(args)
    setting = file.Setting(**{field: getattr(args, field) for field in SIZES[name]})
    scaling = (args.scaling,) if "scaling" in args else ()
    _show(args, file.summary, file.bench(setting, args.rounds, *scaling))


def _methods(args: argparse.Namespace) -> None:
    from benchmarks.methods import bench_methods, methods_summary
    from mt3.models.store import load

    device = set_up(args)
    _show(args, methods_summary, bench_methods(load(args.model).to(device), args.images, args.rounds))


def _ranks(args: argparse.Namespace) -> None:
    from benchmarks.meta_step import Setting
    from benchmarks.ranks import bench_ranks, ranks_summary

    setting = Setting(**{field: getattr(args, field) for field in SIZES["ranks"]})
    _show(args, ranks_summary, bench_ranks(setting, args.rounds))


def _augment(args: argparse.Namespace) -> None:
    from benchmarks.augment import augment_summary, bench_augment

    set_up(args)
    _show(args, augment_summary, bench_augment(args.images, args.rounds))


def _corruptions(args: argparse.Namespace) -> None:
    from benchmarks.corruptions import bench_corruptions, corruptions_summary

    data = load_data(args)
    _show(args, corruptions_summary, bench_corruptions(data, args.images, args.severity, args.rounds, args.pixels))


def _service(args: argparse.Namespace) -> None:
    from benchmarks.service import bench_service, service_summary

    set_up(args)
    _show(args, service_summary, bench_service(args.images, args.rounds))


def _all(args: argparse.Namespace) -> None:
    from benchmarks.everything import bench_all, summary

    set_up(args)
    results: list[dict[str, Any]] = []
    for result in bench_all(args.rounds):
        results.append(result)
        print(f"{summary(result)}\n", flush=True)
        if args.json is not None:
            write_json(args.json, {"benchmark": "all", "results": results})  # what is there so far
    if args.json is not None:
        print(f"wrote {args.json}")


def _show(args: argparse.Namespace, summary: Callable[[dict[str, Any]], str], result: dict[str, Any]) -> None:
    print(summary(result))
    if args.json is not None:
        write_json(args.json, result)
        print(f"wrote {args.json}")


RUN: dict[str, Run] = {
    **{name: partial(_network, name) for name in ("meta-step", "batch-step", "adapt")},
    "ranks": _ranks,
    "methods": _methods,
    "augment": _augment,
    "corruptions": _corruptions,
    "all": _all,
    "service": _service,
}
