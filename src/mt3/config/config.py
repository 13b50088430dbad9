"""What a training run is made of: one flat frozen dataclass, filled from method, preset and command line."""

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import UnionType
from typing import Any

from mt3.config.adaptation import LAYERS, VARIANTS, Adaptation
from mt3.config.methods import HIDDEN, TRAINING, check_cell, get_method
from mt3.support.errors import InputError, one_of, shown

CHOICES = {
    "training": TRAINING,
    "variant": VARIANTS,
    "first_weights": ("glorot", "zero", "centred"),
    "order": ("second", "first"),
    "inner_target": ("meta", "ema"),
    "layers": LAYERS,
    "precision": ("auto", "float32", "bfloat16"),
}
POSITIVE = ("epochs", "lr", "tasks", "task_size", "projection", "test_views")
NOT_NEGATIVE = ("hidden", "inner_steps", "weight_decay", "gamma", "anchor", "pad", "momentum", "inner_lr", "test_lr")
SHARES = ("momentum", "average", "smoothing", "warmup")
NETWORK = ("depth", "width", "hidden", "projection", "precision", "variant")  # what a run shares with its start


@dataclass(frozen=True)
class Config:
    """Every choice of a run. The defaults are the paper's MT3 on CIFAR-10."""

    method: str = "mt3"  # a row of the grid, which gives the next three fields and `hidden` their values
    data: str = "cifar10"  # the images that are learned
    preset: str = "paper"  # the file of fields that these are taken from
    seed: int = 0  # of the first weights, of the order of the images and of the augmentation

    # the point of the grid; set by the method, open to ablations
    objective: str | None = "byol"  # what is minimised without labels: byol, rotation, marginal-entropy, ... or none
    training: str = "meta"  # ce, joint or meta
    batch_aug: bool = True  # B on x and its views
    variant: str = "paper"  # paper, or official: the authors' code where it differs

    # the network
    depth: int = 26  # layers, 6n+2
    width: int = 32  # filters of the first stage; doubled in the second and third
    hidden: int = HIDDEN  # neurons of the hidden layer of h, p and q; 0: none, as in Sun et al.'s network
    projection: int = 128  # dimensions of z and r
    first_weights: str = "glorot"  # glorot, zero (every block starts as the identity) or centred (filters of sum 0)
    precision: str = "float32"  # of forward and backward passes; auto: bfloat16 where the processor is made for it

    # the outer loop
    epochs: float = 200.0  # passes over the training images; a fraction is allowed
    tasks: int = 4  # T, the tasks of a meta-batch; 1 for ce and joint
    task_size: int = 8  # K, images of a task; the batch size for ce and joint
    task_images: int | None = None  # different images in a task, which repeats them up to K; none: K
    start: str | None = None  # a method that comes first and gives the weights; `jt:1.35` trains it for 1.35 epochs
    lr: float = 0.01  # beta, the (meta-)learning rate
    momentum: float = 0.9  # of SGD
    nesterov: bool = False  # Nesterov's momentum
    weight_decay: float = 1.5e-6  # L2, added to the gradient after clipping
    decay_norms: bool = True  # norms and biases decay, too
    warmup: float = 0.0  # share of the steps in which the learning rate rises linearly to `lr`
    schedule: str = "constant"  # then: constant, linear or cosine (`cosine:0.1` ends at 0.1 lr), `step:75,125` (epochs)
    smoothing: float = 0.0  # of the labels: share of a label that is spread over all classes
    clip: float | None = 10.0  # norm of the gradient of a step; 10 for the meta-gradient, none for ce and joint
    gamma: float = 0.1  # weight of the self-supervised loss beside the cross-entropy
    anchor: float = 0.0  # weight of the cross-entropy before the inner steps, beside the one after them
    average: float = 0.0  # decay of a moving average of the weights, which is the finished model; 0: the last weights

    # the inner loop
    inner_steps: int = 1  # M, steps on the self-supervised loss of each task, and of each image at test time
    inner_lr: float = 0.1  # alpha, the learning rate of these steps in training
    inner_clip: float | None = 10.0  # norm of the inner gradient; none: no clipping
    order: str = "second"  # exact second-order meta-gradients, or first
    inner_target: str = "meta"  # what gives z inside: the meta-model, or ema (a moving average of it)
    layers: str = "all"  # of those that feed the loss, which adapt: all, norm or last (stage)

    # what the finished model does at test time
    test_lr: float = 0.1  # the learning rate of the inner steps; 0.05 for CIFAR-100
    test_views: int = 32  # K_T, pairs of views for byol, copies for rotation

    # augmentation
    shift_group: int | None = None  # images of a batch that share a draw of B; none: all of them
    pad: int = 2  # pixels of zeros around x before its random crop, of 32; larger images have more
    flip: bool = False  # horizontal flips of x, image by image

    def __post_init__(self) -> None:
        for name in FIELDS:
            object.__setattr__(self, name, parse(name, getattr(self, name)))
        check_cell(self.objective, self.training)
        for name, valid in CHOICES.items():
            if getattr(self, name) not in valid:
                raise InputError(one_of(name, getattr(self, name), valid))
        for name in POSITIVE:
            if not getattr(self, name) > 0:
                raise InputError(f"Expected {name} to be above 0, got {getattr(self, name)}.")
        for name in NOT_NEGATIVE:
            if getattr(self, name) < 0:
                raise InputError(f"Expected {name} not to be negative, got {getattr(self, name)}.")
        for name in SHARES:
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"Expected {name} between 0 and 1, got {getattr(self, name)}.")
        for name in ("smoothing", "warmup"):
            if getattr(self, name) == 1:
                raise InputError(f"Expected {name} to be below 1, which would leave nothing to learn; lower it.")
        for name in ("clip", "inner_clip"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise InputError(f"Expected {name} to be a norm above 0 or none, got {getattr(self, name)}.")
        for name in ("task_images", "shift_group"):
            value = getattr(self, name)
            if value is not None and (value < 1 or self.task_size % value):
                raise InputError(f"Expected {name} to divide task_size {self.task_size}, got {value}.")
        if self.nesterov and not self.momentum:
            raise InputError("Nesterov's momentum needs a momentum above 0; raise momentum or drop nesterov.")
        if self.pad > 31:
            raise InputError(f"Expected pad to be up to 31 pixels, so that a crop shows something, got {self.pad}.")
        if self.training != "meta" and self.tasks != 1:
            raise InputError(f"Expected tasks=1 for {self.training} training (one batch a step), got {self.tasks}.")
        if self.training != "meta" and self.anchor:
            raise InputError(f"anchor belongs to meta training; drop it for {self.training} training.")
        read_schedule(self.schedule)
        if self.start is not None and read_start(self.start)[0] == self.method:
            raise InputError(f"Expected {self.method} to start from another method, got {self.start}.")

    @property
    def inner(self) -> Adaptation:
        """The inner loop of meta-training."""
        return Adaptation(
            self.objective, self.inner_steps, self.inner_lr, self.inner_clip, layers=self.layers, variant=self.variant
        )

    @property
    def test(self) -> Adaptation:
        """What the finished model does with an image; the authors' code does not clip there."""
        clip = None if self.variant == "official" else self.inner_clip
        return Adaptation(
            self.objective, self.inner_steps, self.test_lr, clip, self.test_views, self.layers, variant=self.variant
        )


FIELDS = {f.name: f for f in dataclasses.fields(Config)}
_TYPES: dict[str, Any] = typing.get_type_hints(Config)


def read_schedule(text: str) -> tuple[str, tuple[float, ...]]:
    """A schedule's name and numbers: `cosine:0.1` ends at that share of the rate, `step:75,125` falls there."""
    name, colon, rest = text.partition(":")
    try:
        numbers = tuple(float(number) for number in rest.split(",")) if colon else ()
    except ValueError:
        numbers = (-1.0,)
    wanted = {"constant": 0, "linear": len(numbers[:1]), "cosine": len(numbers[:1]), "step": max(1, len(numbers))}
    if wanted.get(name) != len(numbers) or any(not 0 <= n < 1e30 for n in numbers):
        raise InputError(
            f"Expected schedule to be one of constant, linear, cosine, cosine:0.1, step:75,125, got '{shown(text)}'."
        )
    if name != "step" and any(n > 1 for n in numbers):
        raise InputError(f"Expected {name} to end at a share of the rate from 0 to 1, got {numbers[0]}.")
    return name, numbers


def read_start(text: str) -> tuple[str, float | None]:
    """A start's method and, where they are not its preset's, its epochs."""
    name, colon, rest = text.partition(":")
    get_method(name)
    try:
        epochs = float(rest) if colon else None
    except ValueError:
        epochs = 0.0
    if epochs is not None and not 0 < epochs < 1e30:
        raise InputError(f"Expected start to be a method, or one and its epochs as in jt:1.35, got '{shown(text)}'.")
    return name, epochs


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
    values: dict[str, Any] = {name: getattr(cell, name) for name in ("objective", "training", "batch_aug", "hidden")}
    if cell.training != "meta":
        values |= {"tasks": 1, "task_size": 128, "clip": None}
    toml = read_preset(preset)
    by_method, by_data = toml.pop("method", {}), toml.pop("data", {})
    of_data = dict(by_data.get(data, {}))
    of_both = {k: of_data.pop(k) for k in list(of_data) if isinstance(of_data[k], dict)}
    for layer in (toml, by_method.get(method, {}), of_data, of_both.get(method, {}), overrides or {}):
        values |= {_field(key): value for key, value in layer.items()}
    return Config(**(values | {"method": method, "data": data, "preset": preset, "seed": seed}))


def start_config(config: Config) -> Config | None:
    """The training that comes before this one: its method's own, with this one's preset, seed and network."""
    if config.start is None:
        return None
    method, epochs = read_start(config.start)
    shared = {name: getattr(config, name) for name in NETWORK} | ({} if epochs is None else {"epochs": epochs})
    return make_config(method, config.data, config.preset, config.seed, shared)


def departures(config: Config) -> dict[str, Any]:
    """In what a config differs from its preset."""
    preset = make_config(config.method, config.data, config.preset, config.seed)
    settled = {"precision"} if preset.precision == "auto" else set()
    changed = [name for name in FIELDS if getattr(config, name) != getattr(preset, name) and name not in settled]
    return {name: getattr(config, name) for name in changed}


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
    if optional and (value is None or (isinstance(value, str) and value == "none")):
        return None
    try:
        if kind is bool:
            return value if isinstance(value, bool) else {"true": True, "false": False}[str(value).lower()]
        if isinstance(value, bool) or (kind is str and not isinstance(value, str)):
            raise ValueError
        result = kind(value)
        if (kind is int and isinstance(value, float) and result != value) or (kind is float and not abs(result) < 1e30):
            raise ValueError
        return result
    except (ValueError, KeyError, TypeError, OverflowError):
        words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
        wanted = words[kind] + (" or none" if optional else "")
        raise InputError(f"Expected {wanted} for {name}, got '{shown(value)}'.") from None


def config_from_dict(values: Any) -> Config:
    """Read back what `dataclasses.asdict` gave; an unknown key is an error that lists the valid ones."""
    if not isinstance(values, Mapping):
        raise InputError("Expected a run's config to be an object of fields; the file is damaged.")
    return Config(**{_field(key): value for key, value in values.items()})
