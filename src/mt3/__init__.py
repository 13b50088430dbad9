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
    from mt3 import corruptions, data
    from mt3.adaptation.adapter import Adapter, Comparison
    from mt3.config.adaptation import Adaptation
    from mt3.config.rivals import RIVALS, adaptation_named
    from mt3.evaluation.python import evaluate
    from mt3.models.classifier import MT3Model
    from mt3.models.store import load
    from mt3.models.wrap import add_objective, features_of
    from mt3.networks.norms import convert_batchnorm
    from mt3.results import Evaluation
    from mt3.training.python import train
    from mt3.training.runs import RunOptions

_HOMES = {
    "Adaptation": "mt3.config.adaptation",
    "Adapter": "mt3.adaptation.adapter",
    "Comparison": "mt3.adaptation.adapter",
    "Evaluation": "mt3.results",
    "MT3Model": "mt3.models.classifier",
    "RIVALS": "mt3.config.rivals",
    "RunOptions": "mt3.training.runs",
    "adaptation_named": "mt3.config.rivals",
    "add_objective": "mt3.models.wrap",
    "convert_batchnorm": "mt3.networks.norms",
    "evaluate": "mt3.evaluation.python",
    "features_of": "mt3.models.wrap",
    "load": "mt3.models.store",
    "train": "mt3.training.python",
}
_ROOMS = ("corruptions", "data")

__all__ = [
    "RIVALS",
    "Adaptation",
    "Adapter",
    "Comparison",
    "Evaluation",
    "InputError",
    "MT3Model",
    "RunOptions",
    "__version__",
    "adaptation_named",
    "add_objective",
    "convert_batchnorm",
    "corruptions",
    "data",
    "evaluate",
    "features_of",
    "load",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"mt3.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mt3' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
