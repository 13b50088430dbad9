"""The jobs of a study: what can be run apart, on any host that shares its directory, and what must come before.

Each job is `mt3 reproduce` with the same options and the job's name. All of them, in any order that respects what they
need, give the tree that `mt3 reproduce` gives; those that are done do nothing.
"""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mt3.config.config import Config, start_config
from mt3.evaluation.evaluate import evaluate_shard
from mt3.evaluation.pieces import PIECE, is_whole
from mt3.evaluation.shards import Shard, rank_shard
from mt3.models.store import load
from mt3.studies.clock import Clock
from mt3.studies.plan import (
    Study,
    Test,
    Training,
    check_study,
    plan_tests,
    plan_trainings,
    protocol_of,
    starts_of,
    test_part,
)
from mt3.studies.reproduce import train_run, write_study_report
from mt3.support import ranks
from mt3.support.errors import InputError, one_of
from mt3.support.files import RUN_FILE, own_directory
from mt3.training.runs import count_steps, steps_done

REPORT = "report"


class Job(NamedTuple):
    """One training, one evaluation, or the report."""

    name: str
    needs: list[str]  # names of jobs
    outputs: list[Path]
    work: Training | Test | None  # none: the report


def plan_jobs(study: Study) -> list[Job]:
    """Each after those that it needs: starts that runs share, each once, then the runs, then the report."""
    trainings = plan_trainings(study)
    check_study(study, trainings)
    starts: dict[Config, Job] = {}
    for start in sorted((s for t in trainings for s in starts_of(t)), key=lambda start: len(starts_of(start))):
        if start.config not in starts:
            starts[start.config] = _train_job(study, start, starts)
    main: list[Job] = []
    swept: list[Job] = []
    for training in trainings:
        main.append(job := _train_job(study, training, starts))
        for sweep, tests in plan_tests(study, training).items():
            (swept if sweep else main).extend(_test_job(study, test, job) for test in tests)
    jobs = [*starts.values(), *main, *swept]
    tested = [job.name for job in jobs if isinstance(job.work, Test)]
    return [*jobs, Job(REPORT, tested, [study.out / "report" / "report.md"], None)]


def _train_job(study: Study, training: Training, starts: dict[Config, Job]) -> Job:
    first = start_config(training.config)
    folder = training.folder
    outputs = [folder / name for name in ("config.json", "model.safetensors", RUN_FILE)]
    needs = [] if first is None else [starts[first].name]
    return Job(f"{folder.relative_to(study.out).as_posix()}/train", needs, outputs, training)


def _test_job(study: Study, test: Test, training: Job) -> Job:
    name = test.file.relative_to(study.out).with_suffix("").as_posix()
    return Job(name, [training.name], [test.file, test.file.with_suffix(".npz")], test)


def list_jobs(study: Study, shards: int, command: Sequence[str]) -> list[dict[str, Any]]:
    """The jobs, each evaluation split into shards; `command` is what their names are added to."""
    jobs, clock = plan_jobs(study), Clock(study.dataset, study.device, study.threads)
    described: list[dict[str, Any]] = []
    names: dict[str, list[str]] = {}  # of a job's shards
    for job in jobs:
        share, seconds = _estimate(study, job, clock)
        count = _count_shards(study, job, shards)
        names[job.name] = [job.name if count == 1 else f"{job.name}/{i}-of-{count}" for i in range(count)]
        for i, name in enumerate(names[job.name]):
            more = ["--shard", str(Shard(i, count))] if count > 1 else []
            described.append(
                {
                    "job": name,
                    "kind": {Training: "train", Test: "evaluate"}.get(type(job.work), REPORT),
                    "needs": [part for needed in job.needs for part in names[needed]],
                    "command": shlex.join([*command, "--job", job.name, *more]),
                    "seconds": round(seconds / count, 1),
                    "done": round(share, 4),
                    "outputs": [str(path) for path in job.outputs],
                }
            )
    return described


def _count_shards(study: Study, job: Job, asked: int) -> int:
    """No more than there are pieces."""
    if not isinstance(job.work, Test):
        return 1
    sources = len(study.corruptions) * len(study.severities) + 1  # and the clean images
    return min(asked, sources * math.ceil(study.count(job.work.sweep) / PIECE))


def _estimate(study: Study, job: Job, clock: Clock) -> tuple[float, float]:
    """How much of a job is there, and the seconds that the rest takes on this machine."""
    if isinstance(job.work, Training):
        config, total = job.work.config, count_steps(job.work.config, study.dataset)[1]
        done = steps_done(config, job.work.folder)
        return (1.0, 0.0) if done is None else (done / total, (total - done) * clock.step(config))
    if isinstance(job.work, Test):
        training = job.work.training
        trained = steps_done(training.config, training.folder) is None
        model = load(training.folder).to(study.device) if trained else None
        part = test_part(study, "", [job.work], model, clock)
        return part.share, part.seconds
    return float(all(path.exists() for path in job.outputs)), 0.0


def do_job(study: Study, name: str, shard: Shard | None) -> str:
    """Do one job of a study, whose needs are done, and say so; without a shard an evaluation has that of its rank."""
    jobs = {job.name: job for job in plan_jobs(study)}
    if name not in jobs:
        raise InputError(one_of("job", name, jobs))
    work = jobs[name].work
    if shard is not None and not isinstance(work, Test):
        raise InputError(f"Only evaluations have shards, and {name} is none; drop --shard.")
    if isinstance(work, Training):
        return _do_training(study, work)
    if isinstance(work, Test):
        return _do_test(study, work, shard or rank_shard())
    missing = [path for job in jobs.values() if isinstance(job.work, Test) for path in job.outputs if not path.exists()]
    if missing:
        raise InputError(f"The report needs {missing[0]}, which is not there; do what it needs first.")
    with own_directory(study.out):
        return write_study_report(study)


def _do_training(study: Study, training: Training) -> str:
    """Of ranks that torchrun started, the first says so."""
    trainings = plan_trainings(study)
    starts = [start for other in trainings for start in starts_of(other)]
    same = [start for start in starts if start.config == training.config] if training in starts else [training]
    with ranks.open_group(study.device):
        there = [one.folder for one in same if steps_done(one.config, one.folder) is None]
        if not ranks.agree(len(there)):  # a start may be there elsewhere, by a study with other methods
            train_run(study, trainings, training)
        return f"{training.folder} is trained" if ranks.is_main() else ""


def _do_test(study: Study, test: Test, shard: Shard) -> str:
    training = test.training
    if steps_done(training.config, training.folder) is not None:
        raise InputError(
            f"The training in {training.folder} is not finished, and its evaluation needs it; train first."
        )
    model = load(training.folder).to(study.device)
    evaluate_shard(model, study.images, protocol_of(study, test, model), test.file, shard)
    return f"{test.file} is {'whole' if is_whole(test.file) else f'not whole yet; shard {shard} of it is done'}"
