"""What the commands for work that is spread over processes and hosts do. Needs no torch."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from mt3.support.errors import InputError

if TYPE_CHECKING:
    from mt3.evaluation.shards import Shard
    from mt3.studies.plan import Study


def shard_done(out: Path, shard: "Shard") -> str:
    """What a process says that has done its shard and did not write the results."""
    from mt3.evaluation.pieces import is_whole

    left = f"{out} is whole" if is_whole(out) else f"the last one to finish writes {out}, or `mt3 merge {out}`"
    return f"shard {shard} is done; {left}"


def check_job_arguments(args: argparse.Namespace) -> None:
    """Refuse options of the job list that do not go together."""
    if sum(map(bool, (args.dry_run, args.list_jobs, args.job))) > 1:
        raise InputError("Expected one of --dry-run, --list-jobs and --job, got several; drop all but one.")
    if args.shards is not None and not args.list_jobs:
        raise InputError("--shards says how --list-jobs splits evaluations; add it, or drop --shards.")
    if args.shard is not None and args.job is None:
        raise InputError("--shard is a share of a --job that is an evaluation; name the job, or drop --shard.")


def study_jobs(args: argparse.Namespace, study: "Study") -> str:
    """The list of jobs, or what a job says that is done, to be printed."""
    from mt3.studies.jobs import do_job, list_jobs

    if not args.list_jobs:
        told = do_job(study, args.job, args.shard)
        return told and f"{told}\n"
    words = [word for word in args.parser.words if word != "--list-jobs" and not word.startswith("--shards=")]
    if "--shards" in words:
        del words[words.index("--shards") : words.index("--shards") + 2]
    return "".join(f"{json.dumps(job)}\n" for job in list_jobs(study, args.shards or 1, ["mt3", "reproduce", *words]))


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


def status_command(args: argparse.Namespace) -> None:
    from mt3.reporting.status import read_status, status_json, status_text

    found = [read_status(root) for root in args.results]
    if args.json:
        print(json.dumps([each for one in found for each in status_json(one)], indent=2))
    else:
        print("\n".join(status_text(root, one) for root, one in zip(args.results, found, strict=True)))
