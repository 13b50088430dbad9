"""What the commands for work that is spread over processes and hosts do. Needs no torch."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from mt3.support.errors import InputError

if TYPE_CHECKING:
    from mt3.evaluation.shards import Shard


def shard_done(out: Path, shard: "Shard") -> str:
    """What a process says that has done its shard and did not write the results."""
    from mt3.evaluation.pieces import is_whole

    left = f"{out} is whole" if is_whole(out) else f"the last one to finish writes {out}, or `mt3 merge {out}`"
    return f"shard {shard} is done; {left}"


def merge_command(args: argparse.Namespace) -> None:
    from mt3.evaluation.shards import merge, remove_pieces
    from mt3.reporting.summary import evaluation_summary
    from mt3.results.facts import read_evaluation

    if args.results.suffix != ".json":
        raise InputError(f"Expected the JSON file that `mt3 evaluate --out` was given, got {args.results}.")
    wrote = merge(args.results)
    remove_pieces(args.results)
    if not wrote:
        print(f"{args.results} is whole; there was nothing to merge")
        return
    print(evaluation_summary(read_evaluation(args.results)))
    print(f"wrote {args.results} and {args.results.with_suffix('.npz').name}")
