"""The plan of a study: its trainings and evaluations, what is there of them, and how long the rest takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from mt3.config.config import Config, make_config, start_config
from mt3.config.methods import METHODS
from mt3.data import Dataset
from mt3.evaluation.pieces import share_done
from mt3.evaluation.protocol import Protocol, TestImages, describe
from mt3.models.classifier import MT3Model
from mt3.models.store import load, read_run
from mt3.reporting.published import published_table
from mt3.results.runs import about_run
from mt3.results.tables import Cell, Line, Table, markdown
from mt3.studies.ablations import SWEEPS, SWEPT, TRAINED, label
from mt3.studies.clock import Clock
from mt3.support.errors import InputError, name_list
from mt3.support.progress import duration
from mt3.support.threads import thread_share
from mt3.training.runs import START, count_steps, steps_done
from mt3.training.state import build_model

IMAGES = {"digits": 50}  # test images under each corruption; of other data all
SWEEP_IMAGES = {"digits": 25}


@dataclass(frozen=True)
class Study:
    """What is to be reproduced."""

    out: Path
    images: TestImages
    preset: str
    methods: Sequence[str]
    seeds: int  # 0 to this, exclusive
    corruptions: Sequence[str]
    severities: Sequence[int]
    limit: int | None = None  # test images; None: as IMAGES says
    sweep_limit: int | None = None
    ablations: Sequence[str] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)  # fields of all trainings
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    data_dir: Path | None = None  # noted down in the runs
    jobs: int = 1  # runs at a time, each in a process of its own with its share of the threads

    @property
    def dataset(self) -> Dataset:
        assert self.images.dataset is not None
        return self.images.dataset

    @property
    def threads(self) -> int:
        """Of each job."""
        return thread_share(self.jobs)

    def count(self, sweep: bool = False) -> int:
        """Test images under each corruption."""
        name, available = self.dataset.name, len(self.images.labels)
        count = min(IMAGES.get(name, available) if self.limit is None else self.limit, available)
        if not sweep:
            return count
        return min(SWEEP_IMAGES.get(name, count) if self.sweep_limit is None else self.sweep_limit, count)


class Training(NamedTuple):
    """One run: of a method or of a trained ablation, with one seed."""

    name: str
    config: Config
    folder: Path
    ablation: str = ""

    @property
    def label(self) -> str:
        """What a report calls it; the reference has none."""
        return label(self.ablation) if self.ablation else ""


class Test(NamedTuple):
    """One evaluation of a run; `setting` is what departs from how the model adapts by itself."""

    training: Training
    file: Path
    setting: dict[str, Any]
    sweep: bool = False


class Part(NamedTuple):
    """A training, or evaluations of its model: how much of it is there, and how many seconds the rest takes."""

    title: str
    share: float
    seconds: float
    training: Training
    tests: Sequence[Test] = ()  # those that are missing; of a training none


def paper_methods(data: str) -> list[str]:
    """The trainings that give the rows of the paper's table for this data; of data that it does not have, all five."""
    rows = published_table(data) or published_table("cifar10") or {}
    return [m.name for m in METHODS.values() if m.before in rows]


def starts_of(training: Training) -> list[Training]:
    """The trainings that come before one, in the run's own folders; the last begins from nothing."""
    first = start_config(training.config)
    if first is None:
        return []
    start = Training(f"start of {training.name}", first, training.folder / START)
    return [start, *starts_of(start)]


def plan_trainings(study: Study) -> list[Training]:
    """The runs, seed by seed; ablations come after all methods."""
    found = []
    for seed in range(study.seeds):
        for method in study.methods:
            config = make_config(method, study.dataset.name, study.preset, seed, study.overrides)
            found.append(Training(f"{method}, seed {seed}", config, study.out / method / f"seed-{seed}"))
    for seed in range(study.seeds):
        default = make_config("mt3", study.dataset.name, study.preset, seed, study.overrides)
        for name in study.ablations:
            if name in TRAINED:
                overrides = {**study.overrides, **TRAINED[name]}
                config = make_config("mt3", study.dataset.name, study.preset, seed, overrides)
                if config == default:
                    raise InputError(f"mt3 is trained as the ablation {label(name)} already; drop one of the two.")
                folder = study.out / "ablations" / name / f"seed-{seed}"
                found.append(Training(f"mt3 {name}, seed {seed}", config, folder, name))
    return found


def plan_tests(study: Study, training: Training) -> dict[str, list[Test]]:
    """The run's evaluations: its main one as "", and those of its sweeps; what sweeps share is evaluated once."""
    found = {"": [Test(training, training.folder / "evaluation.json", {})]}
    if training.ablation or training.config.method not in SWEPT:
        return found
    own = training.config.test
    owns = [] if study.count(sweep=True) == study.count() else [_sweep_test(training, "own", {})]
    for name in [name for name in study.ablations if name in SWEEPS]:
        values = [v * own.lr if name == "lr" else v for v in SWEEPS[name]]
        others = [v for v in values if v != getattr(own, name)]
        found[name] = [*owns, *(_sweep_test(training, f"{name}-{v:g}", {name: v}) for v in others)]
        owns = []
    return {name: tests for name, tests in found.items() if tests}


def _sweep_test(training: Training, name: str, setting: dict[str, Any]) -> Test:
    return Test(training, training.folder / f"sweep-{name}.json", setting, sweep=True)


def check_study(study: Study, trainings: Sequence[Training]) -> None:
    """Refuse at once what would be refused after hours."""
    swept = [name for name in study.ablations if name in SWEEPS]
    if swept and not set(SWEPT) & set(study.methods):
        raise InputError(
            f"The ablation {swept[0]} evaluates {' and '.join(SWEPT)}, of which none is trained; add one to --methods."
        )
    if min(study.count(), study.count(sweep=True)) < 2:
        raise InputError("The controls adapt on another image, so they need at least 2 images; raise --limit.")
    every = [one for training in trainings for one in (training, *starts_of(training))]
    for config in dict.fromkeys(replace(one.config, seed=0) for one in every):
        build_model(config, study.dataset)
        count_steps(config, study.dataset)


def make_parts(study: Study, trainings: Sequence[Training]) -> list[Part]:
    """All that belongs to the study, with what is there of it and what the rest costs."""
    clock = Clock(study.dataset, study.device, study.threads)
    parts: list[Part] = []
    swept: list[Part] = []
    starts: set[Config] = set()  # that will be there by then
    for training in trainings:
        part, model = _training_part(study, training, clock, starts)
        parts.append(part)
        for name, tests in plan_tests(study, training).items():
            title = f"evaluate {training.name}" + (f", {len(tests)} settings of {name}" if name else "")
            (swept if name else parts).append(test_part(study, title, tests, model, clock))
    return parts + swept


def _training_part(study: Study, training: Training, clock: Clock, starts: set[Config]) -> tuple[Part, MT3Model | None]:
    """The training and, if it is finished, its model."""
    starts_here = starts_of(training)
    title = " after ".join([f"train {training.name}", *(start.config.method for start in starts_here)])
    if steps_done(training.config, training.folder) is None:
        return Part(title, 1.0, 0.0, training), load(training.folder).to(study.device)
    there = whole = left = 0.0
    for one in (training, *starts_here):
        seconds, total = clock.step(one.config), count_steps(one.config, study.dataset)[1]
        done = steps_done(one.config, one.folder)
        done = total if done is None else done
        there, whole = there + done * seconds, whole + total * seconds
        left += 0 if one in starts_here and one.config in starts else (total - done) * seconds
    starts |= {start.config for start in starts_here}
    return Part(title, min(0.99, there / whole), left, training), None


def test_part(study: Study, title: str, tests: Sequence[Test], model: MT3Model | None, clock: Clock) -> Part:
    """Evaluations of one run; without its model nothing of them can be there."""
    sources = len(study.corruptions) * len(study.severities) + 1  # and the clean images
    training, seconds, shares = tests[0].training, 0.0, []
    for test in tests:
        share = 0.0
        if model is not None:
            share = share_done(test.file, describe(protocol_of(study, test, model), model, study.images))
        if share < 1:
            image = clock.image(training.config, replace(training.config.test, **test.setting))
            seconds += (1 - share) * sources * study.count(test.sweep) * image
        shares.append(share)
    missing = [test for test, share in zip(tests, shares, strict=True) if share < 1]
    return Part(title, sum(shares) / len(shares), seconds, training, missing)


def protocol_of(study: Study, test: Test, model: MT3Model) -> Protocol:
    """What the evaluation asks of the run's model."""
    folder = test.training.folder
    adapts = model.objective is not None
    return Protocol(
        tuple(study.corruptions),
        tuple(study.severities),
        study.count(test.sweep),
        controls=adapts and not test.sweep,
        adaptation=replace(model.adaptation, **test.setting) if adapts else None,
        label=test.training.label,
        sweep=test.sweep,
        run=about_run(read_run(folder), folder),
    )


def plan_text(study: Study, parts: Sequence[Part]) -> str:
    """Every part with its state and its estimate, and the total."""
    count, sweep_count = study.count(), study.count(sweep=True)
    swept = f", {sweep_count} for the sweeps" if set(study.ablations) & set(SWEEPS) and sweep_count != count else ""
    changes = f", with {name_list(f'{k}={v}' for k, v in study.overrides.items())}" if study.overrides else ""
    lines = []
    for part in parts:
        state = "done" if part.share == 1 else f"{100 * part.share:.0f} % done" if part.share else "to do"
        lines.append(Line(part.title, (Cell(text=state), Cell(text=duration(part.seconds) if part.share < 1 else ""))))
    todo = [part for part in parts if part.share < 1]
    report = "to do" if todo or not (study.out / "report" / "report.md").exists() else "done"
    lines.append(Line("report", (Cell(text=report), Cell())))
    total = f"{len(parts) - len(todo)} of {len(parts)} parts are done"
    if todo:
        total += f"; the others take about {duration(sum(part.seconds for part in todo) / study.jobs)} on this machine"
        total += f", {study.jobs} runs at a time" if study.jobs > 1 else ""
    return "\n".join(
        [
            f"preset {study.preset} on {study.dataset.name}{changes}",
            f"seeds {name_list(range(study.seeds))}, into {study.out}",
            f"{count} test images under each of {len(study.corruptions)} corruptions, "
            f"severity {name_list(study.severities)}{swept}",
            "",
            markdown(Table("plan", "", "part", ("state", "estimate"), tuple(lines))),
            "",
            f"{total}.",
        ]
    )
