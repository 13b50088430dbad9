"""A model's weights from a safetensors file: its header is compared with the network before anything is read."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mt3.support.errors import InputError, name_list

FLOATS = ("F64", "F32", "F16", "BF16")  # as safetensors names them


def read_weights(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """The model's weights and buffers; they must have its names and shapes, fit its types, and be finite.

    Of tied weights a file holds one.
    """
    own = model.state_dict(keep_vars=True)
    try:
        with safe_open(path, framework="pt") as file:
            header = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            held = {id(own[name]): name for name in header if name in own}
            source = {name: name if name in header else held.get(id(t), name) for name, t in own.items()}
            expected = {source[name]: tuple(t.shape) for name, t in own.items()}
            _check_shapes(path, expected, {name: tuple(part.get_shape()) for name, part in header.items()})
            for name, part in header.items():
                if (part.get_dtype() in FLOATS) != own[name].is_floating_point():
                    raise InputError(
                        f"{path}: expected weights of type {name_list(FLOATS)}, but {name} is {part.get_dtype()}; "
                        "save the model again."
                    )
            read = {name: _finite(path, name, file.get_tensor(name), own[name].dtype) for name in header}
            return {name: read[source[name]] for name in own}
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}); train or download it again.") from error


def _check_shapes(path: Path, expected: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> None:
    odd = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if odd:
        raise InputError(
            f"The weights in {path.parent} do not fit their config.json or backbone: {odd[0]} should be "
            f"{expected.get(odd[0], 'absent')} and is {found.get(odd[0], 'absent')} ({len(odd)} differ)."
        )


def _finite(path: Path, name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in memory of its own: a view of the file would change with it."""
    weight = tensor.to(dtype, copy=True)
    if not weight.isfinite().all():
        raise InputError(f"{path}: {name} has weights that are not finite; train or download the model again.")
    return weight
