"""The classifier: a backbone f with the heads h (classes) and those of its objective."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

import torch
import torch.nn.functional as F
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from mt3.config.adaptation import Adaptation, adaptation_from_dict
from mt3.models.weightfile import read_weights
from mt3.networks.align import Source
from mt3.networks.backbone import MAX_WEIGHTS, as_backbone
from mt3.networks.foreign import Pooled
from mt3.networks.layers import Conv2d, GroupNorm, Linear
from mt3.objectives.augment import as_float
from mt3.objectives.objective import Objective, Outputs
from mt3.objectives.registry import get_objective
from mt3.support.errors import InputError, check_number, one_of

PRECISIONS = ("float32", "bfloat16")
NORMS = (nn.GroupNorm, nn.LayerNorm, nn.modules.batchnorm._BatchNorm)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
PARTS = {  # of a model, by the beginning of their parameters' names; the features of a class depend on the first three
    "early": "backbone.early.",
    "late": "backbone.late.",
    "hidden": "hidden.",
    "heads": "heads.",
    "classify": "classify.",
}


class MT3Model(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="mt3",
    tags=["image-classification", "test-time-training", "meta-learning"],
    coders={Adaptation: (Adaptation.to_dict, adaptation_from_dict)},  # huggingface-hub below 0.30 saves no dataclass
):
    """Backbone f, hidden layer and class layer h, and the heads of an objective.

    `model(images)` gives logits; images are uint8 or float in [0, 1], (N, 3, size, size). `adaptation` does not change
    the network, but for its variant: it is what `Adapter` does by default with this model.
    `save_pretrained(directory)` and `MT3Model.from_pretrained(directory)` work without a network.
    """

    LIMITS: ClassVar[dict[str, tuple[int, int]]] = {
        "num_classes": (2, 100_000),
        "hidden": (0, 65_536),
        "projection": (1, 65_536),
        "size": (16, 512),
    }

    def __init__(
        self,
        backbone: str | nn.Module = "resnet26x32",  # 26 layers of 32 filters and more; or a module that gives features
        num_classes: int = 10,
        objective: str | None = "byol",  # what it learns and adapts with without labels; none: nothing
        hidden: int = 256,  # neurons of the hidden layer that h and p share; 0: no such layer
        projection: int = 128,  # dimensions of z and r
        size: int | None = None,  # pixels of a side; none: any
        classes: list[str] | None = None,  # names, for people
        adaptation: Adaptation | None = None,  # none: the paper's
        precision: str = "float32",  # of the forward pass; "bfloat16" by autocast, with outputs in the weights' type
        normalisation: Sequence[Sequence[float]] | None = None,  # means and deviations of channels, applied after views
    ) -> None:
        super().__init__()
        adaptation = Adaptation(objective) if adaptation is None else adaptation
        given = {"num_classes": num_classes, "hidden": hidden, "projection": projection}
        for name, value in (given if size is None else given | {"size": size}).items():
            check_number(name, value, *self.LIMITS[name])
            if not isinstance(value, int):  # JSON would leave it out
                raise InputError(f"Expected {name} to be Python's own number, got {value!r}; use int on it.")
        if precision not in PRECISIONS:
            raise InputError(one_of("precision", precision, PRECISIONS))
        if classes is not None and (len(classes) != num_classes or not all(isinstance(name, str) for name in classes)):
            raise InputError(f"Expected {num_classes} names of classes, got {len(classes)} ({f'{classes!r}':.60}).")
        if adaptation.objective != objective:
            raise InputError(f"Expected the model's objective {objective} to adapt with, got {adaptation.objective}.")
        self.num_classes, self.size, self.classes = num_classes, size, classes
        self.moments: Source | None = None  # behind its norms on training images, where they are known
        self.adaptation, self.precision = adaptation, precision
        self.objective = None if objective is None else get_objective(objective, adaptation.variant)
        self.normalisation = None if normalisation is None else check_normalisation(normalisation)
        self.backbone = as_backbone(backbone, size)
        features = self.backbone.features
        if hidden * (features + hidden + 3 * projection + num_classes) > MAX_WEIGHTS:
            raise InputError(f"Expected at most {MAX_WEIGHTS} weights in the heads; lower hidden or projection.")
        paper = adaptation.variant == "paper"
        self.hidden = Linear(features, hidden, bias=paper) if hidden else None
        # the authors' baseline, a network without an objective, has no bias here either
        self.classify = Linear(hidden or features, num_classes, bias=paper or self.objective is not None)
        self.heads = None if self.objective is None else self.objective.heads(self.backbone, hidden, projection)
        self.adapted_names(adaptation.layers)  # refuses what could not change an answer
        ours = (Conv2d, GroupNorm, Linear)
        self.stacks = self.backbone.stacks and all(isinstance(m, ours) for m in self.modules() if m._parameters)
        if isinstance(backbone, str):
            self.float()  # whatever the caller's default: `double()` and the like come after
            self.reset_parameters()
        else:
            for part in (self.hidden, self.classify, self.heads):
                self._reset([] if part is None else part.modules())
            self.to(next(backbone.parameters(), torch.zeros(())))
            self._note(backbone=None)  # to be given again when loading

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Glorot-uniform weights, zero biases and plain norms, as the authors' code; drawn from the generator."""
        self._reset(self.modules(), generator)

    @staticmethod
    def _reset(modules: Iterable[nn.Module], generator: torch.Generator | None = None) -> None:
        for module in modules:
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.GroupNorm):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (N, classes)."""
        return self.outputs(images, heads=False).logits

    def outputs(self, images: Tensor, heads: bool = True) -> Outputs:
        """Logits and what the objective's heads give, from one pass; without `heads` the logits alone."""
        dtype = self.dtype
        x = self.normalise(as_float(images, dtype))
        if self.precision == "float32":
            return self._pass(x, heads)
        with torch.autocast(x.device.type, getattr(torch, self.precision), cache_enabled=False):
            logits, found = self._pass(x, heads)
        return Outputs(logits.to(dtype), {name: t.to(dtype) for name, t in found.items()})  # losses are not rounded

    def normalise(self, x: Tensor) -> Tensor:
        """Take the mean off and divide by the deviation."""
        return normalise(x, self.normalisation)

    def features(self, images: Tensor) -> Tensor:
        """What the class layer sees (N, F)."""
        x = self.normalise(as_float(images, self.dtype))
        with torch.autocast(x.device.type, torch.bfloat16, self.precision == "bfloat16", cache_enabled=False):
            features = self.backbone(x)
            shared = features if self.hidden is None else F.relu(self.hidden(features))
        return shared.to(self.dtype)

    def _pass(self, x: Tensor, heads: bool) -> Outputs:
        trunk = self.backbone.early(x)
        features = self.backbone.late(trunk)
        shared = features if self.hidden is None else F.relu(self.hidden(features))
        found = self.heads(trunk, shared) if heads and self.heads is not None else {}
        return Outputs(self.classify(shared), found)

    @property
    def name(self) -> str:
        """What a report calls the network."""
        return type(self.backbone if self.foreign is None else self.foreign).__name__

    @property
    def foreign(self) -> nn.Module | None:
        """The module that was given as a backbone; none for one of ours."""
        early = self.backbone.early
        return early.module if isinstance(early, Pooled) else None

    @property
    def dtype(self) -> torch.dtype:
        return self.classify.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.classify.weight.device

    def set_adaptation(self, adaptation: Adaptation) -> None:
        """Change how the model adapts by itself; it is saved with the model."""
        if adaptation.objective != self.adaptation.objective or adaptation.variant != self.adaptation.variant:
            raise InputError(
                f"Expected an adaptation with the model's objective {self.adaptation.objective} and variant "
                f"{self.adaptation.variant}, got {adaptation.objective} and {adaptation.variant}."
            )
        self.adapted_names(adaptation.layers)  # refuses what could not change an answer
        self.adaptation = adaptation
        self._note(adaptation=adaptation.to_dict())

    def _note(self, **values: Any) -> None:
        """What config.json will say."""
        told: Any = self._hub_mixin_config
        self._hub_mixin_config = dict(told or {}) | values

    def adapted_names(self, layers: str, objective: Objective | None = None) -> tuple[str, ...]:
        """The parameters that adapt: of those that feed the objective's loss, what `layers` says; none: its own."""
        objective = self.objective if objective is None else objective
        if objective is None:
            return ()
        parts = [part for part in objective.feeds if layers != "last" or part != "early"]
        if not {"early", "late", "hidden", "classify"} & set(parts):
            raise InputError(
                "This objective has a last stage of its own, which no class depends on, so that adapting it alone "
                "would change nothing; adapt all or norm."
            )
        fed = tuple(PARTS[part] for part in parts)
        return names_to_adapt(self, [name for name, _ in self.named_parameters() if name.startswith(fed)], layers)

    def check_images(self, images: Tensor) -> Tensor:
        """Require a tensor (N, 3, size, size), uint8 or float in [0, 1]."""
        return check_images(images, self.size)

    @classmethod
    def _decode_arg(cls, expected_type: Any, value: Any) -> Any:
        """What the mixin calls for a value of config.json; its own way passes over fields that it does not know."""
        is_adaptation = value is not None and Adaptation in get_args(expected_type)
        return adaptation_from_dict(value) if is_adaptation else value

    @classmethod
    def _load_as_safetensor(  # type: ignore[override]
        cls, model: "MT3Model", model_file: str, map_location: str, strict: bool
    ) -> "MT3Model":
        """What the mixin calls for `from_pretrained`: weights that do not fit the config are an error."""
        model.load_state_dict(read_weights(Path(model_file), model))
        return model.to(map_location).eval()

    @classmethod
    def _load_as_pickle(cls, model: "MT3Model", model_file: str, *_: Any) -> "MT3Model":  # type: ignore[override]
        raise InputError(f"Expected weights as model.safetensors, got {Path(model_file).name}, which is not unpickled.")


def check_images(images: Tensor, size: int | None, bounded: bool = True) -> Tensor:
    """Require a tensor (N, 3, size, size), uint8 or float in [0, 1].

    Where values are not bounded, any finite ones will do, and so will any height and width.
    """
    if not isinstance(images, Tensor):
        raise InputError(f"Expected images as a torch tensor, got {type(images).__name__}; use torch.from_numpy.")
    side = size or (images.shape[-1] if images.ndim == 4 else "H")
    shaped = images.ndim == 4 and images.shape[1] == 3
    if not shaped or ((bounded or size) and tuple(images.shape[2:]) != (side, side)):
        raise InputError(
            f"Expected images of shape (N, 3, {side}, {side}), got {tuple(images.shape)}; resize or permute them."
        )
    if images.dtype == torch.uint8:
        return images
    if images.dtype not in FLOATS:
        raise InputError(f"Expected uint8 images or floats in [0, 1], got {images.dtype}.")
    if len(images):
        low, high = images.aminmax()
        if not (low >= 0 and high <= 1) and (bounded or not (low - high).isfinite()):
            told = "float images in [0, 1]" if bounded else "finite images"
            raise InputError(f"Expected {told}, got values from {low:.4g} to {high:.4g}; scale them.")
    return images


def names_to_adapt(model: nn.Module, names: list[str], layers: str) -> tuple[str, ...]:
    """Of these parameters the ones that adapt: all of them or the norms'."""
    if layers == "norm":
        norms = tuple(f"{name}." for name, module in model.named_modules() if isinstance(module, NORMS))
        names = [name for name in names if name.startswith(norms)]
    own = dict(model.named_parameters())
    # frozen weights stay as they are, unless all are frozen: then the model just is not to be trained
    return tuple([name for name in names if own[name].requires_grad] or names)


def normalise(x: Tensor, normalisation: Sequence[Sequence[float]] | None) -> Tensor:
    """Take the mean off and divide by the deviation; in a stack, of each network's channels."""
    if normalisation is None:
        return x
    mean, deviation = (x.new_tensor(v).repeat(x.shape[1] // 3).view(1, -1, 1, 1) for v in normalisation)
    return (x - mean) / deviation


def check_normalisation(given: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Three means and three deviations above 0, of images in [0, 1]."""
    try:
        mean, deviation = (tuple(float(v) for v in part) for part in given)
        within = all(abs(v) < 1e3 for v in mean) and all(0 < v < 1e3 for v in deviation)
        fits = len(mean) == len(deviation) == 3 and within
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise InputError(
            "Expected a normalisation of three means and three deviations above 0, of images in [0, 1], such as "
            f"((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)), got {f'{given!r}':.60}."
        )
    return mean, deviation


def count_parameters(model: nn.Module) -> int:
    """Number of trainable values."""
    return sum(math.prod(p.shape) for p in model.parameters() if p.requires_grad)
