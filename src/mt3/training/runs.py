"""Run directories: what belongs to a training, in what order trainings follow each other, and what run.json says."""

import hashlib
import json
import shutil
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mt3.config.config import Config, config_from_dict, departures, start_config
from mt3.data import Dataset
from mt3.models.store import (
    MODEL_FILES,
    Checkpoint,
    find_model,
    load,
    load_checkpoint,
    newest_step,
    read_run,
    tensors_hash,
)
from mt3.support import ranks
from mt3.support.errors import InputError, name_list
from mt3.support.files import (
    METRICS_FILE,
    PROGRESS_FILE,
    RUN_FILE,
    atomic_path,
    own_directory,
    parse_json,
    remove_leftovers,
)
from mt3.training.tasks import images_per_task

SNAPSHOTS = "snapshots"  # where a run keeps models from along the way
START = "start"  # where a run keeps the training that comes first, and the `init` of such a run


@dataclass(frozen=True)
class RunOptions:
    """What a training is asked besides its config: nothing here changes what is trained."""

    device: str = "cpu"
    max_steps: int | None = None  # stop after so many, counted from the first step of the first training; none: do not
    resume: bool = False  # go on with the run that is there
    init: Path | None = None  # a run whose weights it begins with, instead of its config's start
    data_dir: Path | None = None  # noted down, for evaluating later
    label: str = ""  # what a study calls this variant; the reference has none
    network: str = ""  # what the network is called, if it is not the config's
    tensorboard: bool = False
    recompute: bool = False  # activations again instead of keeping them: less memory, more time
    log_every: int = 5  # steps from one line of metrics to the next
    checkpoint_every: int = 100  # steps from one checkpoint to the next
    snapshot_every: int = 0  # steps after which the model is kept, as if it were finished, for curves; 0: never

    def __post_init__(self) -> None:
        for name in ("log_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} to be at least 1, got {getattr(self, name)}.")


class Link(NamedTuple):
    """A training of a chain: a run, or one that comes before it and gives it its weights."""

    config: Config
    out: Path
    run: dict[str, Any]  # what its run.json says while it is being trained
    found: Checkpoint | None  # with which it goes on
    before: int  # steps of the trainings that come before it
    steps_per_epoch: int
    total_steps: int

    @property
    def init(self) -> Path | None:
        """Whose weights it begins with."""
        if self.found is not None or self.run["init"] is None:
            return None
        return self.out / START if self.run["init"] == START else Path(self.run["init"])

    def progress(self, step: int, done: int) -> dict[str, Any]:
        """What run.json says after `step` steps of its own and `done` of the whole chain up to here."""
        about = self.run["about"] | {"step": done, "total_steps": self.before + self.total_steps}
        return {"step": step, "total_steps": self.total_steps, "about": about}


def count_steps(config: Config, dataset: Dataset) -> tuple[int, int]:
    """Steps of an epoch and of the whole training."""
    images_per_step = config.tasks * images_per_task(config)
    steps_per_epoch = len(dataset.train_images) // images_per_step
    if steps_per_epoch == 0:
        raise InputError(
            f"A step needs {images_per_step} images, but {dataset.name} has {len(dataset.train_images)} to train on; "
            "lower tasks or task_size."
        )
    return steps_per_epoch, max(1, round(config.epochs * steps_per_epoch))


def _count_chain(config: Config | None, dataset: Dataset) -> int:
    """Steps of a training and of those that come before it."""
    return 0 if config is None else count_steps(config, dataset)[1] + _count_chain(start_config(config), dataset)


def open_chain(held: ExitStack, config: Config, dataset: Dataset, out: Path, options: RunOptions) -> list[Link]:
    """The trainings that the run in `out` still needs, that which comes first first; `held` keeps others out of them.

    A start is finished before what follows begins: where that has steps of its own, or the start is finished, it is not
    among them. Nothing is written.
    """
    steps_per_epoch, total_steps = count_steps(config, dataset)
    held.enter_context(own_directory(out))
    run = check_run(out, config, options)
    run["images"] = _same_images(run.get("images"), dataset, out)
    found = load_checkpoint(out, owner_of(run)) if options.resume else None
    first = start_config(config) if run["init"] == START else None
    starts: list[Link] = []
    if first is not None and found is None:
        if steps_done(first, out / START) is None:
            check_start(first, dataset, out / START)
        else:
            again = RunOptions(resume=True, data_dir=options.data_dir)
            starts = open_chain(held, first, dataset, out / START, again)
    before = _count_chain(first, dataset)
    return [*starts, Link(config, out, run, found, before, steps_per_epoch, total_steps)]


def share_chain(chain: list[Link], out: Path) -> list[Link]:
    """The chain that the first rank has opened, on all ranks; the others know nothing of its files."""
    told = [[asdict(link.config), link.before, link.steps_per_epoch, link.total_steps] for link in chain]
    shared = json.loads(ranks.share(json.dumps(told).encode()))
    return chain or [Link(config_from_dict(config), out, {"init": None}, None, *steps) for config, *steps in shared]


def _same_images(before: Any, dataset: Dataset, out: Path) -> str:
    """What run.json says of the training images; other ones than a run began with are refused."""
    now = f"{len(dataset.train_images)} of {dataset.size} pixels in {dataset.num_classes} classes"
    if before not in (None, now):
        raise InputError(f"The images of the run in {out} were {before}, these are {now}; give the same ones.")
    return now


def check_start(config: Config, dataset: Dataset, out: Path) -> None:
    """Refuse a finished start whose model is not that of its last checkpoint; one without checkpoints is taken."""
    if not newest_step(out):
        return
    total_steps = count_steps(config, dataset)[1]
    found = load_checkpoint(out, owner_of(check_run(out, config, RESUMED)))
    kind = "average." if config.average else "model."
    step, tensors = (0, {}) if found is None else found[:2]
    given = {name.removeprefix(kind): t for name, t in tensors.items() if name.startswith(kind)}
    if step != total_steps or tensors_hash(given) != tensors_hash(load(out).state_dict()):
        raise InputError(
            f"The model in {out} is not what its training of {total_steps} steps gave; delete it to train it again."
        )


def owner_of(run: dict[str, Any]) -> str:
    """What a run's checkpoints are known by: how it is trained, and from what; a field's default need not be told."""
    defaults = asdict(Config())
    told = {k: v for k, v in run["config"].items() if v != defaults[k]}
    return hashlib.blake2b(json.dumps([told, run["init"]], sort_keys=True).encode(), digest_size=16).hexdigest()


def _about(config: Config, init: str | None, options: RunOptions) -> dict[str, Any]:
    """The training in the words of a protocol; `epochs` are those of the whole chain, as far as it is known."""
    epochs = [config.epochs]
    first = start_config(config) if init == START else None
    while first is not None:
        epochs, first = [first.epochs, *epochs], start_config(first)
    if init not in (None, START):
        epochs = [*read_run(find_model(str(init))).get("about", {}).get("epochs", []), *epochs]
    return {
        "data": config.data,
        "method": config.method,
        "preset": config.preset,
        "seed": config.seed,
        "label": options.label,
        "epochs": epochs,
        "network": options.network or f"resnet{config.depth}x{config.width}",
        "overrides": departures(config),
    }


def remove_run_leftovers(out: Path) -> None:
    """Delete what a training that was killed had not yet renamed; nobody else may be training in `out`."""
    remove_leftovers(out / RUN_FILE)
    remove_leftovers(out / METRICS_FILE)
    remove_leftovers(out / PROGRESS_FILE)
    for path in (out / "checkpoints").glob(".step-*.tmp"):
        path.unlink(missing_ok=True)
    for folder in (*out.glob(".model-????????"), *out.glob(f"{SNAPSHOTS}/step-*/.model-????????")):
        shutil.rmtree(folder, ignore_errors=True)


RESUMED = RunOptions(resume=True)


def steps_done(config: Config, out: Path) -> int | None:
    """After which step `out` would be resumed, or None if it is finished; a run with other settings is refused."""
    run = read_run(out)
    check_run(out, config, RESUMED)
    if run.get("step") is not None and run["step"] == run.get("total_steps"):
        load(out)  # refuses a model that is missing or damaged
        return None
    return newest_step(out)


def check_run(out: Path, config: Config, options: RunOptions) -> dict[str, Any]:
    """What run.json will say; refuses a directory that holds a run, unless it is to be resumed with its config."""
    now = asdict(config)
    given = None if options.init is None else _name_init(options.init)
    own = None if config.start is None else START
    run: dict[str, Any] = {"config": now, "init": own if given is None else given}
    old = read_run(out)
    if not old and any((out / name).exists() for name in ("checkpoints", *MODEL_FILES)):
        raise InputError(f"{out} holds a model or checkpoints but no {RUN_FILE}; choose another --out.")
    if old:
        if not options.resume:
            raise InputError(f"{out} already holds a run; pass --resume to continue it, or choose another --out.")
        before = asdict(config_from_dict(old["config"]))
        if now["precision"] == "auto":
            now["precision"] = before["precision"]
        changed = [k for k in now if before[k] != now[k]]
        if given is not None and given != old.get("init"):
            raise InputError(f"The run in {out} was started from {old.get('init')}, not from {given}; drop --init.")
        if changed:
            raise InputError(
                f"The run in {out} was started with other settings ({name_list(changed)} differ: "
                f"{name_list(f'{k}={before[k]}' for k in changed)}); give the same ones or choose another --out."
            )
        # its model, if it has one, stays as it is until there is another
        run |= {key: old[key] for key in ("init", "step", "total_steps", "about", "seconds", "images") if key in old}
    data_dir = None if options.data_dir is None else str(options.data_dir.resolve())
    job = {} if ranks.job() is None else {"job": ranks.job()}  # of torchrun, whose restarts go on with the run
    return {"about": _about(config, run["init"], options)} | run | {"data_dir": data_dir} | job


def _name_init(init: Path) -> str:
    """The run to begin with, wherever this one is resumed; a model of the package by its name."""
    return str(init.resolve()) if find_model(init) == init else str(init)


def cut_metrics(path: Path, step: int) -> None:
    """Drop the lines after `step`: those steps are run again."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            if parse_json(line)["step"] <= step:
                kept.append(line + "\n")
        except (ValueError, KeyError, TypeError):
            break  # a line cut short by a kill; nothing after it counts
    with atomic_path(path) as temporary:
        temporary.write_text("".join(kept), encoding="utf-8")


def copy_start(source: Path, target: Path) -> None:
    """Give a run the training that came first in another one, where that is the same; one that has it keeps it."""
    if (target / START).exists():
        return
    copy = target / f".{START}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source / START, copy, ignore=shutil.ignore_patterns(PROGRESS_FILE, ".*.tmp"))
    copy.rename(target / START)
