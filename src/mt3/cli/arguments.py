"""What the commands' parsers share: kinds of arguments, groups of them, and what is set up from them."""

import argparse
import math
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

from mt3.data import DATASETS, Dataset, load_dataset
from mt3.data.folder import KIND, SIZE, folder_name
from mt3.support.errors import WORD, InputError, name_list, one_of, shown, suggest

DATA_HELP = f"one of {name_list(DATASETS)}, {KIND}PATH (default: digits)"
PRESET_DEFAULTS = "demo for the digits, small for own photos, paper for CIFAR"


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, and what was probably meant; the arguments it reads have it as `parser`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.set_defaults(parser=self)
        self._words: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if message.startswith("the following arguments are required"):
            self._refuse_misspelt_required()
        raise InputError(f"{message[:1].upper()}{message[1:]}; see `{self.prog} --help`.")

    def refuse(self, word: str, others: Iterable[str] = ()) -> NoReturn:
        """Refuse an argument that is none of this parser's options, nor of the others that the command takes."""
        close = suggest(word.partition("=")[0], [*self._option_string_actions, *others])
        raise InputError(f"Unexpected argument '{shown(word)}'{close}; see `{self.prog} --help`.")

    def _refuse_misspelt_required(self) -> None:
        """Where an option that is needed was given under a name like its own, say so rather than that it is missing."""
        needed = [option for action in self._actions if action.required for option in action.option_strings]
        missing = [option for option in needed if option not in self._words]
        for word in self._words:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in self._option_string_actions and suggest(name, missing):
                self.refuse(word)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            raise InputError(one_of(str(action.metavar or action.dest).lower(), value, action.choices))


def count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"expected a whole number from 0 to 999999999, got '{shown(text)}'")
    return int(text)


def path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got an empty one")
    return Path(text)


def rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number from 0 on, got '{shown(text)}'")
    return value


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


def default_preset(data: str) -> str:
    return "demo" if data == "digits" else "small" if data.startswith(KIND) else "paper"


def compute_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="auto", help="cpu, cuda, ... (default: cuda if there is one)")
    parser.add_argument("--threads", type=count, help="of the CPU (default: all cores)")


def set_up(args: argparse.Namespace) -> Any:
    """Apply --threads and choose the device."""
    import torch

    if args.threads:
        torch.set_num_threads(min(args.threads, 4 * (os.cpu_count() or 1)))
    name = args.device if args.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
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
