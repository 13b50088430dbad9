"""What a training run is made of: one flat frozen dataclass, filled from method, preset and command line."""

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import UnionType
from typing import Any

from mt3.config.methods import LAYERS, SELFSUP, TRAINING, check_cell, check_layers, get_method
from mt3.support.errors import InputError, name_list, one_of, shown

CHOICES = {
    "selfsup": SELFSUP,
    "training": TRAINING,
    "head": ("mt3", "official", "linear"),
    "order": ("second", "first"),
    "clip_mode": ("global", "tensor"),
    "inner_target": ("meta", "previous", "ema"),
    "adapt_layers": LAYERS,
    "outer_target": ("meta", "adapted"),
    "schedule": ("constant", "linear", "cosine", "step"),
    "warm_schedule": ("constant", "linear", "cosine", "step"),
    "ema_schedule": ("constant", "cosine"),
    "ema_start": ("online", "random"),
    "precision": ("auto", "float32", "bfloat16"),
}
BOOKKEEPING = ("log_every", "checkpoint_every", "snapshot_every")  # fields that do not change what is trained


@dataclass(frozen=True)
class Config:
    """Every choice of a run. The defaults are the paper's MT3 on CIFAR-10."""

    method: str = "mt3"  # a row of the grid, which gives the four fields below their values
    data: str = "cifar10"  # the images that are learned
    preset: str = "paper"  # the file of fields that these are taken from
    seed: int = 0  # of the first weights, of the order of the images and of the augmentation

    # the point of the grid; set by the method, open to ablations
    selfsup: str = "byol"  # none, rotation or byol
    training: str = "meta"  # ce, joint or meta
    batch_aug: bool = True  # B on x and its views
    head: str = "mt3"  # mt3 (the paper's), official (the authors' code) or linear (Sun et al.)

    # the network
    depth: int = 26  # layers, 6n+2
    width: int = 32  # filters of the first stage; doubled in the second and third
    groups: int | None = None  # of GroupNorm; none: min(16, width / 2)
    hidden: int = 256  # neurons of the hidden layer of h, p and q
    projection: int = 128  # dimensions of z and r
    zero_init: bool = False  # the last convolution of every block starts at zero, so that the block starts as identity
    precision: str = "float32"  # of forward and backward passes; auto: bfloat16 where the processor is made for it

    # the outer loop
    epochs: float = 200.0  # passes over the training images; a fraction is allowed
    tasks: int = 4  # T, the tasks of a meta-batch; 1 for ce and joint
    task_size: int = 8  # K, images of a task; the batch size for ce and joint
    task_images: int | None = None  # different images in a task, which repeats them up to K; none: K
    view_images: int | None = None  # of these, how many have views; the others are only classified; none: all
    lr: float = 0.01  # beta, the (meta-)learning rate
    momentum: float = 0.9  # of SGD
    nesterov: bool = False  # Nesterov's momentum
    weight_decay: float = 1.5e-6  # L2, added to the gradient after clipping
    decay_norms: bool = True  # norms and biases decay, too
    warmup: float = 0.0  # share of the steps in which the learning rate rises linearly to `lr`
    schedule: str = "constant"  # of the learning rate, after the warm-up: constant, linear, cosine or step
    final_lr: float = 0.0  # share of `lr` that linear and cosine end at
    milestones: tuple[float, ...] = ()  # epochs after which the step schedule multiplies by 0.1
    smoothing: float = 0.0  # of the labels: share of a label that is spread over all classes
    clip: float | None = 10.0  # norm of the gradient of a step; 10 for the meta-gradient, none for ce and joint
    clip_mode: str = "global"  # one norm over all tensors, or each tensor by its own
    gamma: float = 0.1  # weight of the self-supervised loss beside the cross-entropy
    anchor: float = 0.0  # weight of the cross-entropy before the inner steps, beside the one after them
    average: float = 0.0  # decay of a moving average of the weights, which is the finished model; 0: the last weights
    warm_method: str | None = None  # a training that comes first and gives the weights to start from
    warm_epochs: float | None = None  # of a short one, without an average; none: it is as its method has it
    warm_schedule: str = "constant"  # of the short one's learning rate, as `schedule`

    # the inner loop
    inner_steps: int = 1  # M, steps on the self-supervised loss of each task
    inner_lr: float = 0.1  # alpha, the learning rate of these steps
    inner_clip: float | None = 10.0  # norm of the inner gradient; none: no clipping
    order: str = "second"  # exact second-order meta-gradients, or first
    inner_target: str = (
        "meta"  # what gives z inside: the meta-model, the previous step's parameters or a moving average
    )
    outer_target: str = "meta"  # parameters that give z in the outer loss: the meta-model's or the adapted ones
    learn_rates: bool = False  # every adapted tensor has a factor of alpha for each inner step, trained with the rest
    adapt_layers: str = "all"  # of those that feed the loss, which adapt, at test time too: all, norm or last (stage)

    # the moving average that is the target of joint BYOL training, and of the inner loss with inner_target ema
    ema_momentum: float = 0.996  # share of the old average that a step keeps
    ema_schedule: str = "constant"  # constant, or cosine to 1
    ema_start: str = "online"  # the online weights, or random ones of its own

    # augmentation
    shift_group: int | None = None  # images of a batch that share a draw of B; none: all of them
    crop_max: int = 32  # pixels; A crops a square of 20 to this many
    pad: int = 2  # pixels of zeros around x before its random crop
    flip: bool = False  # horizontal flips of x, image by image
    vertical_flip: bool = False  # B flips vertically, too
    negative: float = 0.0  # probability that B turns a task's images into their negatives
    cast: float = 0.0  # strength of B's colour cast: every channel's range shrinks by up to this share

    # what the finished model does at test time
    test_steps: int = 1  # inner steps on each single image
    test_lr: float = 0.1  # the learning rate of these steps; 0.05 for CIFAR-100
    test_views: int = 32  # K_T, pairs of views for byol, copies for rotation
    test_clip: float | None = 10.0  # norm; none: no clipping
    test_fresh_views: bool = True  # new views for every step
    test_average: int = 0  # shifted and mirrored copies that the prediction is averaged over; 0: the image alone
    test_gate: float = 1.0  # images of which the model is this sure are not adapted to; 1: all are

    # bookkeeping
    log_every: int = 1  # steps from one line of metrics to the next
    checkpoint_every: int = 200  # steps from one checkpoint to the next
    snapshot_every: int = 0  # steps after which the model is kept, as if it were finished, for curves; 0: never

    def __post_init__(self) -> None:
        check_cell(self.selfsup, self.training)
        for name, valid in CHOICES.items():
            if getattr(self, name) not in valid:
                raise InputError(one_of(name, getattr(self, name), valid))
        check_layers(self.selfsup, self.adapt_layers)
        if self.training == "meta" and self.inner_target == "ema" and self.selfsup != "byol":
            raise InputError(f"Expected the byol task for inner_target=ema, got {self.selfsup}, which has no targets.")
        for name in ("tasks", "task_size", "log_every", "checkpoint_every", "hidden", "projection", "test_views"):
            if getattr(self, name) < 1:
                raise InputError(f"Expected {name} to be at least 1, got {getattr(self, name)}.")
        for name in ("epochs", "lr"):
            if not getattr(self, name) > 0:
                raise InputError(f"Expected {name} to be above 0, got {getattr(self, name)}.")
        for name in (
            "inner_steps",
            "test_steps",
            "weight_decay",
            "gamma",
            "anchor",
            "pad",
            "momentum",
            "inner_lr",
            "test_lr",
            "test_average",
            "snapshot_every",
        ):
            if getattr(self, name) < 0:
                raise InputError(f"Expected {name} not to be negative, got {getattr(self, name)}.")
        for name in ("clip", "inner_clip", "test_clip"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise InputError(f"Expected {name} to be a norm above 0 or none, got {getattr(self, name)}.")
        if self.task_images is not None and (self.task_images < 1 or self.task_size % self.task_images):
            raise InputError(f"Expected task_images to divide task_size {self.task_size}, got {self.task_images}.")
        if self.view_images is not None and not 1 <= self.view_images <= self.task_size:
            raise InputError(f"Expected view_images from 1 to task_size {self.task_size}, got {self.view_images}.")
        if self.view_images is not None and self.selfsup != "byol":
            raise InputError(f"view_images belongs to the byol task; drop it for {self.selfsup}.")
        if self.warm_method is not None:
            get_method(self.warm_method)
            if self.warm_epochs is not None and not self.warm_epochs > 0:
                raise InputError(f"Expected warm_epochs to be above 0, got {self.warm_epochs}; or drop warm_method.")
        for name in ("momentum", "ema_momentum", "final_lr", "average", "negative", "cast", "test_gate", "smoothing"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"Expected {name} between 0 and 1, got {getattr(self, name)}.")
        if not 0 <= self.warmup < 1:
            raise InputError(f"Expected warmup to be a share of the steps from 0 to below 1, got {self.warmup}.")
        if self.smoothing == 1:
            raise InputError("With smoothing 1 a label says nothing; lower it.")
        if self.nesterov and not self.momentum:
            raise InputError("Nesterov's momentum needs a momentum above 0; raise momentum or drop nesterov.")
        if self.shift_group is not None and (self.shift_group < 1 or self.task_size % self.shift_group):
            raise InputError(f"Expected shift_group to divide task_size {self.task_size}, got {self.shift_group}.")
        if any(m < 0 for m in self.milestones):
            raise InputError(f"Expected milestones not to be negative, got {name_list(self.milestones)}.")
        if self.pad > 31:
            raise InputError(f"Expected pad to be up to 31 pixels, so that a crop shows something, got {self.pad}.")
        if not 20 <= self.crop_max <= 32:
            raise InputError(f"Expected crop_max between 20 and 32 pixels, got {self.crop_max}.")
        if self.training != "meta" and self.tasks != 1:
            raise InputError(f"Expected tasks=1 for {self.training} training (one batch a step), got {self.tasks}.")
        if self.training != "meta" and (self.anchor or self.learn_rates):
            raise InputError(f"anchor and learn_rates belong to meta training; drop them for {self.training} training.")


FIELDS = {f.name: f for f in dataclasses.fields(Config)}
_TYPES: dict[str, Any] = typing.get_type_hints(Config)


def preset_names() -> list[str]:
    """The presets that the package ships."""
    folder = resources.files("mt3.config") / "presets"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith(".toml"))


def read_preset(name: str) -> dict[str, Any]:
    """The preset's TOML: fields at the top level, then tables `[method.NAME]`, `[data.NAME]`, `[data.NAME.NAME]`."""
    if name not in preset_names():
        raise InputError(one_of("preset", name, preset_names()))
    return tomllib.loads((resources.files("mt3.config") / "presets" / f"{name}.toml").read_text(encoding="utf-8"))


def make_config(
    method: str, data: str, preset: str, seed: int = 0, overrides: Mapping[str, str | Any] | None = None
) -> Config:
    """Fill a config: the paper's defaults, then the method's cell, the preset's tables and the overrides."""
    cell = get_method(method)
    values: dict[str, Any] = {
        "selfsup": cell.selfsup,
        "training": cell.training,
        "batch_aug": cell.batch_aug,
        "head": cell.head,
    }
    if cell.training != "meta":
        values |= {"tasks": 1, "task_size": 128, "clip": None}
    toml = read_preset(preset)
    by_method, by_data = toml.pop("method", {}), toml.pop("data", {})
    of_data = dict(by_data.get(data, {}))
    of_both = {k: of_data.pop(k) for k in list(of_data) if isinstance(of_data[k], dict)}
    for layer in (toml, by_method.get(method, {}), of_data, of_both.get(method, {}), overrides or {}):
        values |= {_field(key): parse(_field(key), value) for key, value in layer.items()}
    return Config(**(values | {"method": method, "data": data, "preset": preset, "seed": seed}))


def warm_config(config: Config) -> Config | None:
    """The training that comes before this one.

    It has this one's preset, seed, network and augmentation of x; all else is its method's, a start of its own included
    unless that is by the same method. With `warm_epochs` it is a short one of so many epochs.
    """
    if config.warm_method is None:
        return None
    network = ("depth", "width", "groups", "hidden", "projection", "precision")
    augmentation = ("batch_aug", "pad", "flip", "vertical_flip", "negative", "cast")
    shared = (*network, *BOOKKEEPING, *(augmentation if config.warm_epochs is not None else ()))
    overrides = {name: getattr(config, name) for name in shared}
    if config.warm_epochs is not None:
        overrides |= {"epochs": config.warm_epochs, "schedule": config.warm_schedule, "average": 0.0}
    first = make_config(config.warm_method, config.data, config.preset, config.seed, overrides)
    return dataclasses.replace(first, warm_method=None) if first.warm_method == first.method else first


def _field(key: str) -> str:
    name = key.replace("-", "_")
    if name in FIELDS:
        return name
    raise InputError(one_of("field", key, FIELDS))


def parse(name: str, value: Any) -> Any:
    """Turn a command-line string or a TOML value into the field's type, or say what was expected."""
    kind, optional = _TYPES[name], False
    if isinstance(kind, UnionType):
        kind, optional = next(k for k in kind.__args__ if k is not type(None)), True
    if optional and (value is None or value == "none"):
        return None
    try:
        if typing.get_origin(kind) is tuple:
            items = value.replace(",", " ").split() if isinstance(value, str) else value
            return tuple(float(item) for item in items)
        if kind is bool:
            return value if isinstance(value, bool) else {"true": True, "false": False}[str(value).lower()]
        if kind is int and (isinstance(value, bool) or (isinstance(value, float) and not value.is_integer())):
            raise ValueError
        result = kind(value)
        if kind is float and not -1e30 < result < 1e30:
            raise ValueError
        return result
    except (ValueError, KeyError, TypeError, AttributeError):
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        wanted = words.get(kind, "numbers separated by commas") + (" or none" if optional else "")
        raise InputError(f"Expected {wanted} for {name}, got '{shown(value)}'.") from None


def config_to_dict(config: Config) -> dict[str, Any]:
    """Plain values, as JSON keeps them."""
    return dataclasses.asdict(config) | {"milestones": list(config.milestones)}


def config_from_dict(values: Mapping[str, Any]) -> Config:
    """Read back what `config_to_dict` gave; an unknown key is an error that lists the valid ones."""
    if not isinstance(values, Mapping):
        raise InputError("Expected a run's config to be an object of fields; the file is damaged.")
    return Config(**{_field(key): parse(_field(key), value) for key, value in values.items()})
