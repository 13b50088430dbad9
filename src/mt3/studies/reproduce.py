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
from typing import NamedTuple

import torch

from mt3.config.config import Config, warm_config
from mt3.evaluation.evaluate import evaluate
from mt3.models.store import load
from mt3.reporting.page import write_report
from mt3.reporting.published import published_table
from mt3.studies.plan import (
    Part,
    Study,
    Test,
    Training,
    about_test,
    check_study,
    controls_of,
    make_parts,
    plan_text,
    plan_trainings,
    starts_of,
)
from mt3.support.errors import name_list
from mt3.support.files import RUN_FILE, own_directory
from mt3.support.processes import run_apart
from mt3.support.progress import duration
from mt3.training.loop import train
from mt3.training.runs import copy_start, steps_done


class Job(NamedTuple):
    """What one process does: the missing parts of one run, in their order."""

    study: Study
    trainings: Sequence[Training]  # all of them, for a common warm start
    parts: Sequence[tuple[str, Part]]  # with what to say when it begins


class StartJob(NamedTuple):
    """A training that comes before others, in a process of its own."""

    study: Study
    start: Training
    trainings: Sequence[Training]


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
        todo = [part for part in parts if part.share < 1]
        set_up = partial(torch.set_num_threads, study.threads)
        for level in _missing_starts([part.training for part in todo if not part.tests], trainings):
            starts = [StartJob(study, start, trainings) for start in level]
            run_apart(_train_start, starts, [start.name for start in level], study.jobs, set_up)
        begun = {part.title: _beginning(study, todo, number) for number, part in enumerate(todo)}
        for sweeps in (False, True):  # the main rows of all runs first
            now = [part for part in todo if any(test.sweep for test in part.tests) == sweeps]
            runs = {part.training.folder: part.training.name for part in now}
            jobs = [
                Job(study, trainings, [(begun[part.title], part) for part in now if part.training.folder == folder])
                for folder in runs
            ]
            run_apart(_run_job, jobs, list(runs.values()), study.jobs, set_up)
        published = published_table(study.dataset.name) is not None and study.preset != "demo"
        table, files, notes = write_report([study.out], study.out / "report", published, root=study.out)
    print("\n".join(["", *notes, table, "", f"wrote {name_list(f.name for f in files)} in {study.out / 'report'}"]))


def _beginning(study: Study, todo: Sequence[Part], number: int) -> str:
    left = sum(part.seconds for part in todo[number:]) / study.jobs
    part = todo[number]
    return f"[{number + 1}/{len(todo)}] {part.title}: about {duration(part.seconds)}, {duration(left)} for all"


def _missing_starts(todo: Sequence[Training], trainings: Sequence[Training]) -> list[list[Training]]:
    """The trainings that come before others, each once, however many runs share it; those that come first first."""
    every = [start for training in trainings for start in starts_of(training)]
    there = {start.config for start in every if steps_done(start.config, start.folder) is None}
    levels: dict[int, dict[Config, Training]] = defaultdict(dict)
    for training in todo:
        for start in starts_of(training):
            if start.config not in there and not (start.folder.parent / RUN_FILE).exists():
                levels[len(starts_of(start))].setdefault(start.config, start)
    return [list(levels[level].values()) for level in sorted(levels)]


def _train_start(job: StartJob) -> None:
    print(f"train the {job.start.name}", flush=True)
    _train(job.study, job.start, job.trainings)


def _run_job(job: Job) -> None:
    for beginning, part in job.parts:
        print(beginning, flush=True)
        if part.tests:
            for test in part.tests:
                _evaluate(job.study, test)
        else:
            _train(job.study, part.training, job.trainings)


def _train(study: Study, training: Training, trainings: Sequence[Training]) -> None:
    _take_warm_start(training, trainings)
    train(training.config, study.dataset, training.folder, study.device, resume=True, data_dir=study.data_dir)


def _take_warm_start(training: Training, trainings: Sequence[Training]) -> None:
    """Copy the training that comes first from a run that has the very same one, if there is one."""
    first = warm_config(training.config)
    for start in [start for other in trainings for start in starts_of(other)]:
        if start.config == first and steps_done(first, start.folder) is None:
            copy_start(start.folder.parent, training.folder)
            return


def _evaluate(study: Study, test: Test) -> None:
    model = load(test.training.folder).to(study.device)
    evaluate(
        model,
        study.images,
        study.corruptions,
        study.severities,
        test.file,
        study.count(test.sweep),
        **test.setting,
        controls=controls_of(test, model),
        about=about_test(study, test),
    )


def _remove_leftovers(out: Path) -> None:
    """Delete what a kill left where nothing is done again; trainings and evaluations remove their own."""
    for path in (out / "report").glob(".*.tmp"):
        path.unlink(missing_ok=True)
    for pieces in out.rglob("*.json.partial"):
        if pieces.with_suffix("").exists():
            shutil.rmtree(pieces, ignore_errors=True)
