"""The built wheel: it carries its data, and works outside the checkout."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """The wheel's contents, built without a network and laid out as an installer would."""
    pytest.importorskip("setuptools", reason="building the wheel offline needs setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    files = ["pyproject.toml", "README.md", "LICENSE"]
    source.mkdir()
    for name in files:
        (source / name).write_bytes((ROOT / name).read_bytes())
    for path in (ROOT / "src").rglob("*"):
        if path.is_file() and "egg-info" not in str(path) and "__pycache__" not in str(path):
            target = source / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", folder, source]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("mt3-*.whl")
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder / "site")
    return folder / "site"


def test_wheel_carries_presets_digits_weights_and_types(unpacked):
    names = {str(p.relative_to(unpacked)) for p in unpacked.rglob("*")}
    for wanted in ("mt3/config/presets/paper.toml", "mt3/config/presets/official.toml", "mt3/config/presets/demo.toml"):
        assert wanted in names
    assert {"mt3/data/digits.npz", "mt3/py.typed"} <= names
    assert {"mt3/reporting/published/tables.json", "mt3/reporting/published/mt3_training_curve.csv"} <= names
    assert {
        f"mt3/weights/cifar10-mt3/{name}"
        for name in ("config.json", "model.safetensors", "moments.safetensors", "README.md")
    } <= names
    assert {
        f"mt3/service/page/{name}" for name in ("index.html", "style.css", "page.js", "examples/cat-1.png")
    } <= names
    assert not any(n.startswith(("tests", "benchmarks")) for n in names)


def test_wheel_trains_outside_the_checkout(unpacked, tmp_path):
    words = ["train", "--method", "mt3", "--data", "digits", "--preset", "demo", "--out", "run"]
    words += ["--start", "supervised:0.02", "--max-steps", "2", "--width", "4", "--tasks", "1"]
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    where = subprocess.run(
        [sys.executable, "-c", "import mt3; print(mt3.__file__)"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(unpacked))
    subprocess.run(
        [sys.executable, "-m", "mt3", *words], cwd=tmp_path, env=environment, check=True, capture_output=True
    )
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["step"], run["config"]["preset"]) == (1, "demo")  # after one of its start
