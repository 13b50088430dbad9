"""The network: a pre-activation ResNet with GroupNorm and the heads h, p and q.

Sun et al.'s network is the same ResNet of width 16 with `head="linear"` and `selfsup="rotation"`.
"""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from huggingface_hub import PyTorchModelHubMixin
from torch import Tensor, nn

from mt3.config.methods import SELFSUP, check_layers
from mt3.models.weightfile import read_weights
from mt3.networks.layers import Conv2d, GroupNorm, Linear
from mt3.objectives.selfsup import Outputs
from mt3.support.errors import InputError, check_number, one_of

NORM_EPS = 1e-3  # the authors' code
HEADS = ("mt3", "official", "linear")
CLIP_MODES = ("global", "tensor")
PRECISIONS = ("float32", "bfloat16")

BOUNDS: dict[str, tuple[float, float]] = {  # of every number in a model's config.json; whole numbers between whole ones
    "num_classes": (2, 100_000),
    "depth": (8, 1202),  # He et al.'s deepest
    "width": (1, 4096),
    "groups": (1, 4096),
    "hidden": (1, 65_536),
    "projection": (1, 65_536),
    "adapt_steps": (0, 10_000),
    "adapt_lr": (0.0, 1e30),
    "adapt_views": (1, 10_000),
    "adapt_clip": (1e-30, 1e30),
    "crop_max": (20, 32),
    "adapt_average": (0, 10_000),
    "adapt_gate": (0.0, 1.0),
    "learned_rates": (0, 10_000),
}
MAX_WEIGHTS = 10**9  # of a network; 4 GB


class Block(nn.Module):
    """A pre-activation residual block; the shortcut has no parameters.

    With `activated_shortcut` (the network's first block) the shortcut starts after the first norm and ReLU.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, groups: int, activated_shortcut: bool) -> None:
        super().__init__()
        self.norm1 = GroupNorm(groups, inputs, eps=NORM_EPS)
        self.conv1 = Conv2d(inputs, outputs, 3, stride, padding=1)
        self.norm2 = GroupNorm(groups, outputs, eps=NORM_EPS)
        self.conv2 = Conv2d(outputs, outputs, 3, padding=1)
        self.activated_shortcut = activated_shortcut
        self.extra_channels = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.norm1(x), inplace=True)
        shortcut = activated if self.activated_shortcut else x
        if self.extra_channels:
            stack = len(self.conv1.weight) if self.conv1.weight.dim() == 5 else 1
            shortcut = _widen(F.avg_pool2d(shortcut, 2), self.extra_channels, stack)
        residual: Tensor = self.conv2(F.relu(self.norm2(self.conv1(activated)), inplace=True))
        return shortcut + residual


def _widen(x: Tensor, extra: int, stack: int) -> Tensor:
    """Add zero channels, half on each side; in a stack to each network's channels."""
    half = extra // 2
    if stack == 1:
        return F.pad(x, (0, 0, 0, 0, half, extra - half))
    last = x.permute(0, 2, 3, 1)  # channels-last in memory, so that this is no copy
    apart = last.reshape(*last.shape[:3], stack, -1)
    return F.pad(apart, (half, extra - half)).flatten(3).permute(0, 3, 1, 2)


def _stage(blocks: int, inputs: int, outputs: int, groups: int, first: bool = False) -> nn.Sequential:
    """A stage of residual blocks; every stage but the first halves the resolution and doubles the channels."""
    stride = 1 if first else 2
    return nn.Sequential(
        Block(inputs, outputs, stride, groups, activated_shortcut=first),
        *(Block(outputs, outputs, 1, groups, activated_shortcut=False) for _ in range(blocks - 1)),
    )


def _mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(Linear(inputs, hidden), nn.ReLU(), Linear(hidden, outputs))


class MT3Model(
    nn.Module,
    PyTorchModelHubMixin,
    library_name="mt3",
    tags=["image-classification", "test-time-training", "meta-learning"],
):
    """Feature extractor f with the heads h (classes), p (projector) and q (predictor), or a rotation head.

    `model(images)` gives logits; images are uint8 or float in [0, 1], (N, 3, 32, 32). The `adapt_*` arguments do
    not change the network: they are what `Adapter` does by default with this model.
    `save_pretrained(directory)` and `MT3Model.from_pretrained(directory)` work without a network.
    """

    def __init__(
        self,
        num_classes: int,
        depth: int = 26,  # layers, 6n+2
        width: int = 32,  # filters of the first stage
        groups: int | None = None,  # of GroupNorm; None: min(16, width / 2)
        head: str = "mt3",  # "mt3": the paper's, "official": the authors' code, "linear": Sun et al.'s
        selfsup: str = "byol",  # "byol", "rotation" or "none"
        hidden: int = 256,  # neurons of the hidden layers of h, p and q
        projection: int = 128,  # dimensions of z and r
        adapt_steps: int = 1,
        adapt_lr: float = 0.1,
        adapt_views: int = 32,  # K_T: pairs of views for byol, copies for rotation
        adapt_clip: float | None = 10.0,  # gradient norm; None: no clipping
        adapt_layers: str = "all",  # "all" that feed the loss, of these the "norm" layers or the "last" stage onward
        clip_mode: str = "global",  # one norm for all tensors, or each "tensor" its own
        fresh_views: bool = True,  # new views for every step
        crop_max: int = 32,  # pixels, upper end of the crop in A
        classes: list[str] | None = None,  # names, for people
        adapt_average: int = 0,  # shifted and mirrored copies that a prediction is averaged over, besides the image
        adapt_gate: float = 1.0,  # images of which the model is this sure are not adapted to
        learned_rates: int = 0,  # inner steps for which every adapted tensor has a learned factor of adapt_lr
        precision: str = "float32",  # of the forward pass; "bfloat16" by autocast, with outputs in the weights' type
    ) -> None:
        super().__init__()
        check_bounds(
            num_classes=num_classes,
            depth=depth,
            width=width,
            hidden=hidden,
            projection=projection,
            adapt_steps=adapt_steps,
            adapt_lr=adapt_lr,
            adapt_views=adapt_views,
            crop_max=crop_max,
            adapt_average=adapt_average,
            adapt_gate=adapt_gate,
            learned_rates=learned_rates,
        )
        if groups is not None:
            check_bounds(groups=groups)
        if adapt_clip is not None:
            check_bounds(adapt_clip=adapt_clip)
        if (depth - 2) % 6:
            raise InputError(f"Expected a depth of 6n+2 layers (8, 14, 20, 26, ...), got {depth}.")
        if head not in HEADS:
            raise InputError(one_of("head", head, HEADS))
        if selfsup not in SELFSUP:
            raise InputError(one_of("self-supervised task", selfsup, SELFSUP))
        if precision not in PRECISIONS:
            raise InputError(one_of("precision", precision, PRECISIONS))
        if head == "linear" and selfsup == "byol":
            raise InputError("The byol task shares the hidden layer of h; choose head 'mt3' or 'official'.")
        groups = max(1, min(16, width // 2)) if groups is None else groups
        if width % groups:
            raise InputError(f"Expected a width that {groups} groups divide, got {width}; choose other groups.")
        if clip_mode not in CLIP_MODES:
            raise InputError(one_of("clip_mode", clip_mode, CLIP_MODES))
        check_layers(selfsup, adapt_layers)
        if classes is not None and (len(classes) != num_classes or not all(isinstance(name, str) for name in classes)):
            raise InputError(f"Expected {num_classes} names of classes, got {len(classes)} ({f'{classes!r}':.60}).")
        blocks = (depth - 2) // 6
        about = 378 * blocks * width**2 + hidden * (4 * width + hidden + 3 * projection + num_classes)
        if about > MAX_WEIGHTS:
            raise InputError(
                f"Expected a network of at most {MAX_WEIGHTS} weights, got about {about}; lower depth, width or hidden."
            )
        self.num_classes, self.selfsup, self.classes = num_classes, selfsup, classes
        self.adapt_steps, self.adapt_lr, self.adapt_views = adapt_steps, adapt_lr, adapt_views
        self.adapt_clip, self.clip_mode, self.adapt_layers = adapt_clip, clip_mode, adapt_layers
        self.fresh_views, self.crop_max = fresh_views, crop_max
        self.adapt_average, self.adapt_gate = adapt_average, adapt_gate
        self.precision = precision

        self.stem = Conv2d(3, width, 3, padding=1, bias=False)
        self.stage1 = _stage(blocks, width, width, groups, first=True)
        self.stage2 = _stage(blocks, width, 2 * width, groups)
        self.stage3 = _stage(blocks, 2 * width, 4 * width, groups)
        self.norm = GroupNorm(groups, 4 * width, eps=NORM_EPS)
        features = 4 * width
        # the hidden layer that the classifier shares with the projector
        self.hidden = None if head == "linear" else Linear(features, hidden, bias=head == "mt3")
        # the authors' baseline, a network without a task of its own, has no bias here either
        bias = head != "official" or selfsup != "none"
        self.classify = Linear(features if head == "linear" else hidden, num_classes, bias=bias)
        if selfsup == "byol":
            self.project = Linear(hidden, projection) if head == "mt3" else _mlp(hidden, hidden, projection)
            self.predict = _mlp(projection, hidden, projection)
        if selfsup == "rotation":
            self.rotate_stage = _stage(blocks, 2 * width, 4 * width, groups)
            self.rotate_norm = GroupNorm(groups, features, eps=NORM_EPS)
            self.rotate = Linear(features, 4)
        # logarithms; the last step's serve further ones
        names = self.adapted_names()
        self.rates = nn.Parameter(torch.zeros(learned_rates, len(names))) if learned_rates and names else None
        self.float()  # whatever the caller's default: `double()` and the like come after
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Glorot-uniform weights, zero biases and plain norms, as the authors' code; drawn from the generator."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.GroupNorm):
                nn.init.ones_(module.weight)
                nn.init.zeros_(module.bias)
        if self.rates is not None:
            nn.init.zeros_(self.rates)

    def forward(self, images: Tensor, full: bool = False) -> Tensor | Outputs:
        """Logits (N, classes); with `full` the outputs of all heads, from one pass.

        Called with stacked parameters (S, ...), it takes images (S, N, 3, 32, 32) and all outputs are (S, N, ...).
        """
        if self.precision == "float32":
            return self._outputs(images, full)
        with torch.autocast(images.device.type, getattr(torch, self.precision), cache_enabled=False):
            outputs = self._outputs(images, full)
        dtype = self.stem.weight.dtype  # losses are not rounded
        if isinstance(outputs, Tensor):
            return outputs.to(dtype)
        return Outputs(*(None if t is None else t.to(dtype) for t in outputs))  # type: ignore[arg-type]

    def _outputs(self, images: Tensor, full: bool) -> Tensor | Outputs:
        x = as_float(images, self.stem.weight.dtype)
        stack = len(x) if x.dim() == 5 else None
        if stack is not None:
            x = x.transpose(0, 1).flatten(1, 2)  # (N, S 3, 32, 32)
        trunk = self.stage2(self.stage1(self.stem(x)))
        features = _pool(self.norm, self.stage3(trunk), stack)
        shared = features if self.hidden is None else F.relu(self.hidden(features))
        logits: Tensor = self.classify(shared)
        if not full:
            return logits
        z = self.project(shared) if self.selfsup == "byol" else None
        r = self.predict(z) if self.selfsup == "byol" else None
        turns = None
        if self.selfsup == "rotation":
            turns = self.rotate(_pool(self.rotate_norm, self.rotate_stage(trunk), stack))
        return Outputs(logits, z, r, turns)

    def rate_factors(self, params: Mapping[str, Tensor], step: int) -> dict[str, Tensor] | None:
        """What the learning rate of an inner step is multiplied by, for every tensor that adapts."""
        if self.rates is None:
            return None
        factors = params["rates"][..., min(step, len(self.rates) - 1), :].exp()
        return dict(zip(self.adapted_names(), factors.unbind(-1), strict=True))

    @classmethod
    def _load_as_safetensor(  # type: ignore[override]
        cls, model: "MT3Model", model_file: str, map_location: str, strict: bool
    ) -> "MT3Model":
        """What the mixin calls for `from_pretrained`: weights that do not fit the config are an error."""
        model.load_state_dict(read_weights(Path(model_file), model))
        return model.to(map_location).eval()

    @classmethod
    def _load_as_pickle(  # type: ignore[override]
        cls, model: "MT3Model", model_file: str, map_location: str, strict: bool
    ) -> "MT3Model":
        raise InputError(f"Expected weights as model.safetensors, got {Path(model_file).name}, which is not unpickled.")

    def adapted_names(self, layers: str | None = None) -> tuple[str, ...]:
        """The parameters that adapt: of those that feed the self-supervised loss, what `layers` (or the model) says.

        For byol all but the class layer feed it.
        """
        if self.selfsup == "none":
            return ()
        layers = self.adapt_layers if layers is None else layers
        check_layers(self.selfsup, layers)
        early = ("stem.", "stage1.", "stage2.")
        late = {
            "byol": ("stage3.", "norm.", "hidden.", "project.", "predict."),
            "rotation": ("rotate_stage.", "rotate_norm.", "rotate."),
        }[self.selfsup]
        names = [
            name for name, _ in self.named_parameters() if name.startswith(late if layers == "last" else early + late)
        ]
        if layers == "norm":
            norms = tuple(f"{name}." for name, module in self.named_modules() if isinstance(module, nn.GroupNorm))
            names = [name for name in names if name.startswith(norms)]
        return tuple(names)


def _pool(norm: nn.GroupNorm, x: Tensor, stack: int | None) -> Tensor:
    """Features (N, C), or (S, N, C)."""
    pooled: Tensor = F.relu(norm(x), inplace=True).mean(dim=(2, 3))
    return pooled if stack is None else pooled.view(len(pooled), stack, pooled.shape[1] // stack).transpose(0, 1)


def zero_last_convolutions(model: nn.Module) -> None:
    """Let every residual block begin as the identity: its last convolution is set to zero."""
    for module in model.modules():
        if isinstance(module, Block):
            nn.init.zeros_(module.conv2.weight)


def as_float(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Scale uint8 to [0, 1]; cast floats only."""
    return images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)


def check_bounds(**numbers: float) -> None:
    """Refuse a number of a model's config that is out of its bounds."""
    for name, value in numbers.items():
        check_number(name, value, *BOUNDS[name])
        if not isinstance(value, int | float):  # JSON would leave it out
            raise InputError(f"Expected {name} to be Python's own number, got {value!r}; use int or float on it.")


def refuse_batch_norm(model: nn.Module) -> None:
    """Raise if the model has batch normalisation: its answer would depend on the batch."""
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise InputError(
                f"The model has batch normalisation ({name or type(module).__name__}): with views of a single image "
                "its statistics are that image's, and its buffers would keep a trace of it; use GroupNorm instead."
            )


def count_parameters(model: nn.Module) -> int:
    """Number of trainable values."""
    return sum(math.prod(p.shape) for p in model.parameters() if p.requires_grad)
