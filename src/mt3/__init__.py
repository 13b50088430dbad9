"""mt3: meta test-time training. A classifier that adapts to each single unlabeled image before it answers.

    model = mt3.load("runs/demo")
    logits = mt3.Adapter(model)(images)

Names are imported when they are first used, so that `import mt3` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mt3.support.errors import InputError
from mt3.support.version import __version__

if TYPE_CHECKING:
    from mt3.adaptation.adapter import Adapter, Comparison
    from mt3.config.adaptation import Adaptation
    from mt3.models.classifier import MT3Model
    from mt3.models.store import load

__all__ = ["Adaptation", "Adapter", "Comparison", "InputError", "MT3Model", "__version__", "corruptions", "load"]

_HOMES = {
    "Adaptation": "mt3.config.adaptation",
    "Adapter": "mt3.adaptation.adapter",
    "Comparison": "mt3.adaptation.adapter",
    "MT3Model": "mt3.models.classifier",
    "load": "mt3.models.store",
}


def __getattr__(name: str) -> Any:
    if name == "corruptions":
        return import_module("mt3.corruptions")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mt3' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
