"""What the commands' parsers share: kinds of arguments, groups of them, and what is set up from them."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from mt3.config.adaptation import Adaptation
from mt3.config.config import FIELDS, preset_names
from mt3.config.rivals import RIVALS
from mt3.config.streams import STREAMS
from mt3.config.words import GIVEN, describe_fields
from mt3.data import DATASETS, Dataset, load_dataset
from mt3.data.folder import KIND, SIZE, folder_name
from mt3.service.limits import Limits
from mt3.support.errors import WORD, InputError, name_list, one_of, shown, suggest
from mt3.support.processes import count_cores

ADAPTATION = {field.name: field for field in fields(Adaptation)}
ONE_STEP = ("steps", "lr", "views", "layers")  # what there is to say of the step itself
# and of images that may be a stream
NEXT_IMAGES = (*ONE_STEP, "gate", "carry", "batch", "answer", "reset", "momentum", "support")
METHOD_WORDS = f"of {name_list(RIVALS)} (default: own, the model's)"


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, and what was probably meant; the arguments it reads have it as `parser`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, **options)
        self.set_defaults(parser=self)
        self.words: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if message.startswith("the following arguments are required"):
            for word in self.words:  # perhaps one of them was misspelt
                if word.startswith("--") and word.partition("=")[0] not in self._option_string_actions:
                    self.refuse(word)
        raise InputError(f"{message[:1].upper()}{message[1:]}; see `{self.prog} --help`.")

    def refuse(self, word: str) -> NoReturn:
        """Refuse an argument that is none of this parser's options."""
        close = suggest(word.partition("=")[0], self._option_string_actions)
        raise InputError(f"Unexpected argument '{shown(word)}'{close}; see `{self.prog} --help`.")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise InputError(one_of(str(action.metavar or action.dest).lower(), value, action.choices))


def count(text: str, low: int = 0) -> int:
    if not text.isdecimal() or len(text) > 9 or int(text) < low:
        raise argparse.ArgumentTypeError(f"expected a whole number from {low} to 999999999, got '{shown(text)}'")
    return int(text)


positive = partial(count, low=1)


def number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got '{shown(text)}'") from None


def none_or_number(text: str) -> float | str:
    return text if text == "none" else number(text)


def path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty one")
    return Path(text)


def shard(text: str) -> Any:
    from mt3.evaluation.shards import parse_shard

    try:
        return parse_shard(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=path, help="where CIFAR lies (default: data)")
    parser.add_argument("--download", action="store_true", help="fetch CIFAR from its home page first, if needed")
    parser.add_argument("--size", type=count, help=f"pixels of a side of own photos (default: the model's, or {SIZE})")
    parser.add_argument("--skip-broken", action="store_true", help="leave out own photos that cannot be read")


def settle_data(args: argparse.Namespace) -> None:
    """Turn `--data folder:PATH`, if there is one, into the data set's name and its --data-dir, as a run keeps them."""
    if not str(getattr(args, "data", "")).startswith(KIND):
        return
    if args.data_dir is not None or args.data == KIND:
        raise InputError(f"Expected --data {KIND}PATH with the path of the photos, and no --data-dir beside it.")
    args.data_dir = Path(args.data.removeprefix(KIND))
    args.data = folder_name(args.data_dir)


def load_data(args: argparse.Namespace) -> Dataset:
    return load_dataset(args.data, args.data_dir, args.download, args.size, args.skip_broken)


def chosen_data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default="digits", help=f"one of {name_list(DATASETS)}, {KIND}PATH (default: digits)")
    data_arguments(parser)


def training_arguments(parser: argparse.ArgumentParser) -> None:
    """What to train on, and any field of a training, which `field_help` describes."""
    chosen_data_arguments(parser)
    told = f"one of {name_list(preset_names())} (default: demo for the digits, small for own photos, paper for CIFAR)"
    parser.add_argument("--preset", help=told)
    for name in FIELDS:
        if name not in GIVEN:
            parser.add_argument(f"--{name.replace('_', '-')}", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def given_fields(args: argparse.Namespace) -> dict[str, str]:
    """The fields of a training that the command line sets."""
    return {name: value for name, value in vars(args).items() if name in FIELDS and name not in GIVEN}


def corruption_arguments(parser: argparse.ArgumentParser, groups: str, severities: str) -> None:
    parser.add_argument("--corruptions", nargs="+", action="extend", metavar="NAME", help=f"names, or: {groups}")
    parser.add_argument("--severity", type=count, nargs="+", action="extend", help=f"1 to 5 (default: {severities})")


def adapt_arguments(parser: argparse.ArgumentParser, names: Iterable[str], seed: str = "of the views") -> None:
    """Fields of an adaptation that can be replaced, in the words beside them, and what the seed is of."""
    words = describe_fields(Adaptation).get("", {})
    kinds: dict[type, Callable[[str], Any]] = {int: count, float: number}
    for name in names:
        default = ADAPTATION[name].default
        kind = none_or_number if name == "clip" else kinds.get(type(default), str)
        told = f"{words.get(name, 'of the adaptation')} (default: the model's or method's)".replace("%", "%%")
        parser.add_argument(f"--{name}", type=kind, metavar=name.upper(), help=told)
    parser.add_argument("--seed", type=count, default=0, help=f"{seed} (default: 0)")


def method_arguments(parser: argparse.ArgumentParser, several: bool = False) -> None:
    """Which test-time method, and along which stream."""
    many: Any = {"nargs": "+", "action": "extend"} if several else {}
    usual: Any = {} if several else {"default": "own"}
    parser.add_argument("--method", **many, **usual, metavar="NAME", help=METHOD_WORDS)
    told = f"keep the steps along a stream: {name_list(STREAMS)} (default: each image by itself)"
    parser.add_argument("--stream", **many, choices=list(STREAMS), metavar="STREAM", help=told)


def limit_arguments(parser: argparse.ArgumentParser) -> None:
    """A flag for each limit of a server."""
    for each in fields(Limits):
        kind = positive if isinstance(each.default, int) else number
        words = f"{each.metadata['words']} (default: {each.default:g})"
        parser.add_argument(
            f"--{each.name.replace('_', '-')}", type=kind, default=each.default, metavar="N", help=words
        )


def compute_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... (default: cuda if there is one)")
    parser.add_argument("--threads", type=count, help="of the CPU (default: all cores)")


def set_up(args: argparse.Namespace) -> Any:
    """Apply --threads and choose the device; ranks that torchrun starts on one machine share its cores and GPUs."""
    import torch

    sharers = int(os.environ.get("LOCAL_WORLD_SIZE", 1)) if "TORCHELASTIC_RUN_ID" in os.environ else 1
    if args.threads:
        torch.set_num_threads(min(args.threads, 4 * (os.cpu_count() or 1)))
    elif sharers > 1 and os.environ.get("OMP_NUM_THREADS") == "1":  # torchrun's own choice, whatever the cores
        torch.set_num_threads(max(1, count_cores() // sharers))
    name = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if sharers > 1 and name == "cuda":
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        reason = shown(str(error).splitlines()[0].rstrip("."), WORD)
        raise InputError(f"Device '{shown(name)}' cannot be used ({reason}); give cpu or one that is there.") from None
    return device


def default_jobs(device: Any) -> int:
    """How many trainings to run at a time: small networks leave a CPU's cores idle, an accelerator is for one."""
    import torch

    return min(2, torch.get_num_threads()) if device.type == "cpu" else 1
