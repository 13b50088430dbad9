"""A network with other parameters than its own, without changing it."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn

from mt3.support.errors import InputError

Module = TypeVar("Module", bound=nn.Module)
CLOSE = 1e-2  # of what other weights change; a twin that keeps a layer's own weights is off by more


def bind(model: Module, params: Mapping[str, Tensor]) -> Module:
    """A twin of the model that has these parameters and shares the rest; tied weights stay tied.

    It computes as in `eval()`, whatever mode the model is in.
    """
    replaced = {id(p): params[name] for name, p in model.named_parameters() if name in params}
    return _twin(model, replaced, {})


def _twin(module: Module, replaced: dict[int, Tensor], made: dict[int, nn.Module]) -> Module:
    if id(module) in made:
        return made[id(module)]  # type: ignore[return-value]
    twin = made[id(module)] = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    twin.__dict__["training"] = False
    twin.__dict__["_parameters"] = {
        name: None if p is None else replaced.get(id(p), p) for name, p in module._parameters.items()
    }
    twin.__dict__["_modules"] = {
        name: None if child is None else _twin(child, replaced, made) for name, child in module._modules.items()
    }
    return twin


def refuse_what_bind_misses(module: nn.Module, images: Tensor) -> None:
    """Raise if a twin with other weights does not compute what the module would with these.

    A `forward` stored on an instance and weights in plain lists lead back to the module itself. The measure is the
    module, which gets the other weights for one pass; it is in eval mode.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        own = {name: p.data for name, p in module.named_parameters()}
        other = {name: _another(p, generator) for name, p in own.items()}
        before: Tensor = module(images)
        try:
            _set(module, other)
            wanted: Tensor = module(images)
        finally:
            _set(module, own)
        try:
            error = (bind(module, other)(images) - wanted).abs().amax()
        except (RuntimeError, AttributeError, TypeError) as problem:  # such as a compiled network's
            raise InputError(f"{REFUSED} ({str(problem).splitlines()[0]}).") from None
        if not error <= CLOSE * (wanted - before).abs().amax():
            raise InputError(f"{REFUSED}.")


def _set(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, p in module.named_parameters():
        p.data = values[name]


REFUSED = (
    "The network cannot be called with other weights than its own: some layer keeps weights or layers in a plain list, "
    "has a forward stored on the instance, or answers at random; take the plain module, without hooks and compilation, "
    "and register its layers (nn.ModuleList)"
)


def _another(p: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(p.shape, generator=generator).to(p.device, p.dtype)
    return p + 0.1 * (p.abs().mean() + 0.1) * noise
