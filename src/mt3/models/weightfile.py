"""A model's weights from a safetensors file: its header is compared with the network before anything is read."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mt3.support.errors import InputError, name_list

FLOATS = ("F64", "F32", "F16", "BF16")  # as safetensors names them


def read_weights(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """The model's weights as float32; they must have its names and shapes, be of a floating type, and finite."""
    expected = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    try:
        with safe_open(path, framework="pt") as file:
            header = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            _check_shapes(path, expected, {name: tuple(part.get_shape()) for name, part in header.items()})
            for name, part in header.items():
                if part.get_dtype() not in FLOATS:
                    raise InputError(
                        f"{path}: expected weights of type {name_list(FLOATS)}, but {name} is {part.get_dtype()}; "
                        "save the model again."
                    )
            return {name: _finite(path, name, file.get_tensor(name)) for name in header}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}); train or download it again.") from error


def _check_shapes(path: Path, expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> None:
    odd = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if odd:
        raise InputError(
            f"The weights in {path.parent} do not fit their config.json: {odd[0]} should be "
            f"{expected.get(odd[0], 'absent')} and is {found.get(odd[0], 'absent')} ({len(odd)} differ)."
        )


def _finite(path: Path, name: str, tensor: Tensor) -> Tensor:
    """The tensor in memory of its own: a view of the file would change with it."""
    weight = tensor.to(torch.float32, copy=True)
    if not weight.isfinite().all():
        raise InputError(f"{path}: {name} has weights that are not finite; train or download the model again.")
    return weight
