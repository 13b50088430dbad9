"""Data sets by name, and how little it takes to import them."""

import subprocess
import sys

import pytest

from mt3.data import DATASETS, load_dataset
from mt3.support.errors import InputError


def test_unknown_name_lists_the_valid_ones() -> None:
    assert DATASETS == ("digits", "photos", "cifar10", "cifar100")
    wanted = r"^Unknown data set 'mnist': expected one of digits, photos, cifar10, cifar100, folder:PATH\.$"
    with pytest.raises(InputError, match=wanted):
        load_dataset("mnist")


@pytest.mark.parametrize("room", ["data", "corruptions"])
def test_importing_a_room_of_images_imports_neither_torch_nor_scipy(room: str) -> None:
    code = f"import sys, mt3.{room}; print('torch' in sys.modules or 'scipy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
