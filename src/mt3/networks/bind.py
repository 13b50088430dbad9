"""A network with other parameters than its own, without changing it."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

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

    A `forward` stored on an instance and weights in plain lists lead back to the module itself. PyTorch's
    `functional_call`, which swaps the weights inside the module, serves as the measure; the module is in eval mode.
    """
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        other = {name: _another(p, generator) for name, p in module.named_parameters()}
        wanted: Tensor = functional_call(module, other, (images,))
        moved = (wanted - module(images)).abs().amax()
        try:
            error = (bind(module, other)(images) - wanted).abs().amax()
        except (RuntimeError, AttributeError, TypeError) as problem:  # such as a compiled network's
            raise InputError(f"{REFUSED} ({str(problem).splitlines()[0]}).") from None
        if not error <= CLOSE * moved:
            raise InputError(f"{REFUSED}.")


REFUSED = (
    "The network cannot be called with other weights than its own: some layer keeps its weights in a list, as "
    "recurrent layers do, has a forward stored on the instance, or answers at random; take the plain module, without "
    "hooks and compilation, and use other layers there"
)


def _another(p: Tensor, generator: torch.Generator) -> Tensor:
    noise = torch.randn(p.shape, generator=generator).to(p.device, p.dtype)
    return p + 0.1 * (p.abs().mean() + 0.1) * noise
