"""The test environment: what `.ci/run` installs, what `make` runs, and that every version is pinned."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
TOOLS = ("bash", "dirname", "timeout")
MAKE = 'echo "make $*"; wc -c'  # and how much there is to read
IMPOSTOR = 'echo "ImageMagick is not installed here" >&2; exit 1'
GENUINE = 'echo "Version: ImageMagick 6.9.11-60 Q16 x86_64"'
PRESENT = {"convert": GENUINE, "pdflatex": "", "kpsewhich": 'echo "/texmf/$1"'} | dict.fromkeys(
    ("chromium", "chromedriver", "ip"), ""
)
ROOTLESS = "is not here, and installing it takes root and apt-get; its tests will skip"
FAILED = "could not be installed; its tests will skip"


def run_ci(folder: Path, **programs: str) -> tuple[int, list[str], list[str]]:
    """Exit code, lines and calls of apt-get, with these programs alone."""
    if not all(map(shutil.which, (*TOOLS, "wc"))):
        pytest.skip(f"needs {', '.join(TOOLS)} and wc")
    for name in (*TOOLS, "wc"):
        (folder / name).symlink_to(str(shutil.which(name)))
    log = folder / "log"
    log.touch()
    for name, body in ({"make": MAKE, "id": "echo 0", "apt-get": ""} | programs).items():
        noted = f'echo "$*" >> {log}\n' if name == "apt-get" else ""
        (folder / name).write_text(f"#!/bin/sh\n{noted}{body}\n")
        (folder / name).chmod(0o755)
    done = subprocess.run(
        [folder / "bash", ROOT / ".ci" / "run"],
        env={"PATH": str(folder)},
        input="y\n",  # which nothing may read
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines(), log.read_text().splitlines()


@pytest.mark.parametrize("convert", [IMPOSTOR, 'echo "GraphicsMagick 1.4"', "exit 0"])
def test_what_is_missing_is_installed_before_the_tests(tmp_path, convert):
    code, lines, calls = run_ci(tmp_path, convert=convert)
    assert (code, lines) == (0, ["make test", "0"])
    installed = [call.split(" --no-install-recommends ")[1] for call in calls if " install -y " in call]
    latex, browser = "texlive-latex-base texlive-latex-recommended", "chromium chromium-driver"
    assert installed == ["imagemagick", latex, browser, "iproute2"]


def test_what_is_there_is_not_installed(tmp_path):
    assert run_ci(tmp_path, **PRESENT) == (0, ["make test", "0"], [])


def test_a_latex_without_its_packages_is_completed(tmp_path):
    _, _, calls = run_ci(tmp_path, **(PRESENT | {"kpsewhich": "exit 1"}))
    assert [call.split()[-1] for call in calls] == ["update", "texlive-latex-recommended"]


@pytest.mark.parametrize(
    ("programs", "sentence"),
    [({"id": "echo 1000"}, ROOTLESS), ({"apt-get": "echo E: no network >&2; exit 100"}, FAILED)],
)
def test_tests_run_without_what_cannot_be_installed(tmp_path, programs, sentence):
    code, lines, calls = run_ci(tmp_path, **programs)
    missing = [f"{name} {sentence}" for name in ("ImageMagick", "LaTeX", "Chromium", "iproute2")]
    assert (code, lines) == (0, [*missing, "make test", "0"])
    assert bool(calls) == ("apt-get" in programs)


def test_failing_tests_fail_the_whole(tmp_path):
    assert run_ci(tmp_path, **PRESENT, make="exit 2") == (2, [], [])


@pytest.mark.parametrize(("target", "wanted"), [("test", "-m 'not slow'"), ("test-slow", "-m slow")])
def test_slow_tests_have_a_target_of_their_own(target, wanted):
    make = shutil.which("make")
    if make is None:
        pytest.skip("needs make")
    done = subprocess.run([make, "-n", target], cwd=ROOT, capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if "pytest" in line]
    assert "-m pytest " in line
    assert line.endswith(f" {wanted}")


def test_every_requirement_is_pinned_within_its_range():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    texts = [*project["dependencies"], *(text for name in extras if name != "frost" for text in extras[name])]
    wanted = [r for r in map(Requirement, texts) if r.name != "mt3"]
    for requirement in wanted:
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), requirement
    assert {"opencv-python-headless", "scikit-learn"} <= {r.name for r in wanted}
    assert not {"opencv-python", "torchvision"} & pinned.keys()  # not beside the headless one, and not with this torch


def test_no_file_of_the_set_up_names_a_registry():
    for name in (".ci/run", "Makefile", "constraints.txt", "pyproject.toml"):
        assert not re.search(r"https?://|index-url|find-links", (ROOT / name).read_text()), name
