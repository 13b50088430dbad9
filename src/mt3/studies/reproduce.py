"""The paper's tables from nothing: all trainings, all evaluations and the report, in one resumable directory.

    DIR/<method>/seed-<n>/                 a run, its evaluation.json and the sweep-*.json of the ablations
    DIR/ablations/<name>/seed-<n>/         the same of a trained ablation
    DIR/report/                            what `mt3 report DIR` writes

Nothing that is there is done again: a run is known by its config, an evaluation by its protocol.
"""

import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from mt3.config.config import Config, start_config
from mt3.evaluation.evaluate import evaluate
from mt3.models.store import load
from mt3.reporting.page import write_report
from mt3.reporting.published import published_table
from mt3.results.facts import Evaluation
from mt3.studies.plan import (
    Part,
    Study,
    Test,
    Training,
    check_study,
    make_parts,
    plan_text,
    plan_trainings,
    protocol_of,
    starts_of,
)
from mt3.support import ranks
from mt3.support.errors import name_list
from mt3.support.files import RUN_FILE, own_directory
from mt3.support.processes import run_apart
from mt3.support.progress import duration
from mt3.training.loop import train
from mt3.training.runs import RunOptions, copy_start, steps_done


def reproduce(study: Study, dry_run: bool = False) -> None:
    """Print the plan, then do what is missing of it and write the report; with `dry_run` only print."""
    trainings = plan_trainings(study)
    check_study(study, trainings)
    study = replace(study, jobs=min(study.jobs, len(trainings)))
    if dry_run:
        print(plan_text(study, make_parts(study, trainings)))
        return
    with own_directory(study.out):
        _remove_leftovers(study.out)
        parts = make_parts(study, trainings)
        print(plan_text(study, parts), flush=True)
        _do_parts(study, trainings, [part for part in parts if part.share < 1])
        told = write_study_report(study)
    print(told)


def write_study_report(study: Study) -> str:
    """Report on all that is in the study's directory; returns what to print."""
    published = published_table(study.dataset.name) is not None and study.preset != "demo"
    table, files, notes = write_report([study.out], study.out / "report", published, root=study.out)
    return "\n".join(["", *notes, table, "", f"wrote {name_list(f.name for f in files)} in {study.out / 'report'}"])


def _do_parts(study: Study, trainings: Sequence[Training], todo: Sequence[Part]) -> None:
    """The common starts, then the runs with their main rows, then the sweeps; a process does the parts of one run."""
    set_up = partial(torch.set_num_threads, study.threads)
    for level in _missing_starts([part.training for part in todo if not part.tests], trainings):
        starts = [[(f"train the {start.name}", Part("", 0.0, 0.0, start))] for start in level]
        run_apart(partial(_do, study, trainings), starts, [start.name for start in level], study.jobs, set_up)
    told = [_beginning(study, todo, number) for number in range(len(todo))]
    for sweeps in (False, True):
        runs: dict[str, list[tuple[str, Part]]] = defaultdict(list)
        for beginning, part in zip(told, todo, strict=True):
            if any(test.sweep for test in part.tests) == sweeps:
                runs[part.training.name].append((beginning, part))
        run_apart(partial(_do, study, trainings), list(runs.values()), list(runs), study.jobs, set_up)


def _beginning(study: Study, todo: Sequence[Part], number: int) -> str:
    left = sum(part.seconds for part in todo[number:]) / study.jobs
    part = todo[number]
    return f"[{number + 1}/{len(todo)}] {part.title}: about {duration(part.seconds)}, {duration(left)} for all"


def _missing_starts(todo: Sequence[Training], trainings: Sequence[Training]) -> list[list[Training]]:
    """The trainings that come before others, each once, however many runs share it; those that come first first."""
    every = [start for training in trainings for start in starts_of(training)]
    there = {start.config for start in every if steps_done(start.config, start.folder) is None}
    levels: dict[int, dict[Config, Training]] = defaultdict(dict)
    for start in [start for training in todo for start in starts_of(training)]:
        if start.config not in there and not (start.folder.parent / RUN_FILE).exists():
            levels[len(starts_of(start))].setdefault(start.config, start)
    return [list(levels[level].values()) for level in sorted(levels)]


def _do(study: Study, trainings: Sequence[Training], parts: Sequence[tuple[str, Part]]) -> None:
    """Parts in their order, each after the words that say that it begins."""
    for beginning, part in parts:
        print(beginning, flush=True)
        if not part.tests:
            train_run(study, trainings, part.training)
        for test in part.tests:
            evaluate_run(study, test)


def train_run(study: Study, trainings: Sequence[Training], training: Training) -> None:
    """Train, or go on; the training that comes first is copied from one of `trainings` that has the very same."""
    first = start_config(training.config)
    for start in [start for other in trainings for start in starts_of(other) if ranks.is_main()]:
        if start.config == first and steps_done(first, start.folder) is None:
            copy_start(start.folder.parent, training.folder)
            break
    options = RunOptions(str(study.device), resume=True, data_dir=study.data_dir, label=training.label)
    train(training.config, study.dataset, training.folder, options)


def evaluate_run(study: Study, test: Test) -> Evaluation:
    model = load(test.training.folder).to(study.device)
    return evaluate(model, study.images, protocol_of(study, test, model), test.file)


def _remove_leftovers(out: Path) -> None:
    """Delete what a kill left where nothing is done again; trainings and evaluations remove their own."""
    for path in (out / "report").glob(".*.tmp"):
        path.unlink(missing_ok=True)
    for pieces in out.rglob("*.json.partial"):
        if pieces.with_suffix("").exists():
            shutil.rmtree(pieces, ignore_errors=True)
