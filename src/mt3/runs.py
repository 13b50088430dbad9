"""Run directories: what they hold, how far they are, whether they may be continued."""

import shutil
from pathlib import Path
from typing import Any

from mt3.checkpoint import MODEL_FILES, load, newest_step, read_run
from mt3.config import BOOKKEEPING, Config, config_from_dict, config_to_dict
from mt3.data import Dataset
from mt3.errors import InputError, name_list
from mt3.files import RUN_FILE, atomic_path, parse_json

WARM = "warm"  # where a run keeps the training that comes first


def images_per_task(config: Config) -> int:
    """How many different images a task is made of."""
    return config.task_images or config.task_size


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


def steps_done(config: Config, out: Path) -> int | None:
    """After which step `out` would be resumed, or None if it is finished; a run with other settings is refused."""
    run = read_run(out)
    check_run(out, config, resume=True, init=None)
    if run.get("step") is not None and run["step"] == run.get("total_steps"):
        load(out)  # refuses a model that is missing or damaged
        return None
    return newest_step(out)


def check_run(out: Path, config: Config, resume: bool, init: Path | None) -> dict[str, Any]:
    """What run.json will say; refuses a directory that holds a run, unless it is to be resumed with its config."""
    now = config_to_dict(config)
    run: dict[str, Any] = {"config": now, "init": None if init is None else str(init)}
    old = read_run(out)
    if not old and any((out / name).exists() for name in ("checkpoints", *MODEL_FILES)):
        raise InputError(f"{out} holds a model or checkpoints but no {RUN_FILE}; choose another --out.")
    if old:
        if not resume:
            raise InputError(f"{out} already holds a run; pass --resume to continue it, or choose another --out.")
        before = config_to_dict(config_from_dict(old["config"]))
        if now["precision"] == "auto":
            now["precision"] = before["precision"]
        changed = [k for k in now if before[k] != now[k] and k not in BOOKKEEPING]
        own = init == out / WARM and Path(old.get("init") or "").name == WARM  # wherever the run has been moved
        if init is not None and run["init"] != old.get("init") and not own:
            raise InputError(f"The run in {out} was started from {old.get('init')}, not from {init}; drop --init.")
        if changed:
            raise InputError(
                f"The run in {out} was started with other settings ({name_list(changed)} differ: "
                f"{name_list(f'{k}={before[k]}' for k in changed)}); give the same ones or choose another --out."
            )
        run["init"] = run["init"] if own else old.get("init")
    return run


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
    if (target / WARM).exists():
        return
    copy = target / f".{WARM}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source / WARM, copy)
    copy.rename(target / WARM)
