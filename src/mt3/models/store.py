"""Weights and run state on disk: safetensors and JSON, written atomically, read strictly, never unpickled."""

import hashlib
import inspect
import json
import os
import sys
import tempfile
import typing
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from mt3.config.adaptation import adaptation_from_dict
from mt3.models.classifier import MT3Model
from mt3.models.moments import read_moments
from mt3.models.weightfile import read_weights
from mt3.support.errors import InputError, name_list
from mt3.support.files import RUN_FILE, atomic_path, read_json

MODEL_FILES = ("config.json", "model.safetensors")
MOMENTS_FILE = "moments.safetensors"  # beside them, where `mt3 moments` wrote them
KEPT = 2  # checkpoints: the newest and, should it be damaged, the one before


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """A hash of names, shapes, types and bits, independent of the device and of the order."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}\n".encode())
        digest.update(value.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _checkpoint_path(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08d}.safetensors"


def _checkpoints(run: Path, strict: bool = True) -> dict[int, Path]:
    """The checkpoints by their step, in rising order; `strict` refuses a file that only looks like one."""
    found = {}
    for path in (run / "checkpoints").glob("step-*.safetensors"):
        number = path.stem.removeprefix("step-")
        if number.isascii() and number.isdecimal() and path == _checkpoint_path(run, int(number)):
            found[int(number)] = path
        elif strict:
            raise InputError(f"{path} is not named as a checkpoint is (step-00000010.safetensors); move it away.")
    return dict(sorted(found.items()))


def newest_step(run: Path) -> int:
    """The step of the newest checkpoint, whole or not; 0 if there is none."""
    return max(_checkpoints(run), default=0)


def save_checkpoint(run: Path, step: int, tensors: Mapping[str, Tensor], seconds: float, owner: str = "") -> None:
    """Write the state after `step` steps of the run `owner`, and drop all but the newest checkpoints."""
    path = _checkpoint_path(run, step)
    metadata = {"step": str(step), "seconds": f"{seconds:.3f}", "run": owner}
    metadata["hash"] = _checkpoint_hash(tensors, metadata)
    with atomic_path(path) as temporary:
        try:
            save_file({name: t.detach().contiguous() for name, t in tensors.items()}, temporary, metadata)
        except SafetensorError as error:  # how it words a full disk
            raise OSError(str(error)) from error
    found = _checkpoints(run, strict=False)
    later = [n for n in found if n > step]  # damaged ones that were passed over: these steps were run again
    for number in (*later, *[n for n in found if n <= step][:-KEPT]):
        found[number].unlink()


Checkpoint = tuple[int, dict[str, Tensor], float]  # step, tensors, seconds


def load_checkpoint(run: Path, owner: str | None = None) -> Checkpoint | None:
    """The newest whole checkpoint, or None; a damaged one is passed over, and said; another run's is refused."""
    found = _checkpoints(run)
    for step in reversed(found):
        try:
            tensors, metadata = _read(found[step])
            if _checkpoint_hash(tensors, metadata) != metadata.get("hash"):
                raise ValueError("its contents do not match their hash")
            if int(metadata["step"]) != step:
                raise ValueError(f"its name says step {step}, its contents step {metadata['step']}")
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            print(f"Checkpoint {found[step]} is damaged ({error}); trying the one before.", file=sys.stderr)
            continue
        if owner is not None and metadata["run"] != owner:
            raise InputError(
                f"{found[step]} belongs to another run (other settings, or another start); delete it, or put back the "
                "checkpoints of this one."
            )
        return step, tensors, float(metadata["seconds"])
    if found:
        print(f"No checkpoint in {run} is whole; starting from the first step.", file=sys.stderr)
    return None


def _checkpoint_hash(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Of all that the file holds, but for the hash."""
    told = sorted((key, value) for key, value in metadata.items() if key != "hash")
    return hashlib.blake2b(json.dumps([told, tensors_hash(tensors)]).encode(), digest_size=16).hexdigest()


def read_run(directory: Path) -> dict[str, Any]:
    """What a run's `run.json` says, or an empty dict where there is none."""
    path = directory / RUN_FILE
    if not path.exists():
        return {}
    run = read_json(path)
    if not isinstance(run.get("config"), dict):
        raise InputError(f"{path} does not hold a run's config; it is damaged: delete the directory or restore it.")
    if not isinstance(run.get("data_dir"), str | None) or not isinstance(run.get("init"), str | None):
        raise InputError(f"{path} is damaged: expected data_dir and init to be paths or null.")
    if not isinstance(run.get("about", {}), dict):
        raise InputError(f"{path} is damaged: expected about to be an object.")
    return run


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118


def save_model(model: MT3Model, directory: Path) -> None:
    """Save `config.json` and `model.safetensors` into the directory, each by rename."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".model-") as temporary:
            model.save_pretrained(temporary)
            (directory / MOMENTS_FILE).unlink(missing_ok=True)  # of other weights
            for name in reversed(MODEL_FILES):  # the weights first: a config without weights would look complete
                os.replace(Path(temporary) / name, directory / name)
    except (OSError, SafetensorError) as error:
        raise InputError(f"Cannot write the model into {directory}: {error}.") from error


def shipped_models() -> dict[str, Path]:
    """The models that come with the package, by name."""
    folder = Path(str(resources.files("mt3"))) / "weights"
    return {path.parent.name: path.parent for path in sorted(folder.glob("*/config.json"))}


def find_model(path: str | Path) -> Path:
    """The directory: the path itself if there is a model or run, or where the package keeps a model of this name."""
    if not isinstance(path, str | Path) or not str(path):
        raise InputError(f"Expected the path of a run or model, or a shipped model's name, got {path!r}.")
    own = Path(path)
    try:
        if any((own / name).exists() for name in (*MODEL_FILES, RUN_FILE)):
            return own
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise InputError(f"Cannot look into {own}: {error.strerror}; give the path of a run or model.") from error
    return shipped_models().get(str(path), own)


def load(path: str | Path, backbone: nn.Module | None = None) -> MT3Model:
    """The model of a finished run: a run's directory, one written by `save_pretrained`, or a shipped model's name.

    A model with a backbone of your own is loaded with that module given again, whose weights are set.
    """
    directory = find_model(path)
    if not directory.is_dir():
        names = "".join(f" or {name}" for name in shipped_models())
        raise InputError(
            f"Expected a run or model directory{names}, but {directory} is not there; train one with `mt3 train`."
        )
    missing = [name for name in MODEL_FILES if not (directory / name).is_file()]
    if missing:
        hint = "the run is not finished, continue it with --resume" if (directory / RUN_FILE).exists() else "no model"
        raise InputError(f"{directory} has no {name_list(missing)}: {hint}.")
    config = _model_config(directory / "config.json")
    foreign = "backbone" in config and config["backbone"] is None
    if foreign and backbone is None:
        raise InputError(
            f"The model in {directory} has a backbone of your own; give the module as mt3.load(path, backbone=...)."
        )
    if backbone is not None:
        if not foreign:
            raise InputError(
                f"The model in {directory} has one of our backbones, {config.get('backbone')}; leave out backbone."
            )
        model = MT3Model(**(config | {"backbone": backbone}))
        model.load_state_dict(read_weights(directory / "model.safetensors", model))
        model.moments = read_moments(directory / MOMENTS_FILE)
        return model.eval()
    try:
        with torch.device("meta"):  # shapes alone, until they are known to be those of the weights
            model = MT3Model(**config)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{directory / 'config.json'} does not describe a model: {error}") from error
    model.load_state_dict(read_weights(directory / "model.safetensors", model), assign=True)
    model.moments = read_moments(directory / MOMENTS_FILE)
    return model.to(torch.get_default_device()).eval()


def _model_config(path: Path) -> dict[str, Any]:
    config = read_json(path)
    valid = inspect.signature(MT3Model.__init__).parameters.keys() - {"self"}
    if "num_classes" not in config:
        raise InputError(f"{path} is not a model's config: expected an object with num_classes.")
    unknown = sorted(config.keys() - valid)
    if unknown:
        raise InputError(f"{path} has the unknown key '{unknown[0]}': expected one of {name_list(sorted(valid))}.")
    hints = typing.get_type_hints(MT3Model.__init__)
    if config.get("adaptation") is not None:
        try:
            config["adaptation"] = adaptation_from_dict(config["adaptation"])
        except InputError as error:
            raise InputError(f"{path} does not describe a model: {error}") from error
    for key, value in config.items():
        foreign = key == "backbone" and value is None
        if not foreign and not _fits(value, hints[key]):
            raise InputError(f"{path}: expected {key} to be {hints[key]}, got {value!r}; the file is damaged.")
    return config


def _fits(value: Any, hint: Any) -> bool:
    """Whether a JSON value is of an annotated type; a whole number will do for a float."""
    kinds = [typing.get_origin(k) or k for k in (typing.get_args(hint) if isinstance(hint, UnionType) else (hint,))]
    if isinstance(value, bool):
        return bool in kinds
    return any(isinstance(value, k) or (k is float and isinstance(value, int)) for k in kinds)
