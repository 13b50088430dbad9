"""The how-to says what is true: its Python and its curl run as printed, against a server here."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from mt3.service.describe import EXAMPLES
from serving import CLASSES

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """With the photos that the page speaks of."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.png").write_bytes(EXAMPLES[0][1].read_bytes())
    Image.open(EXAMPLES[1][1]).save("other.jpg")
    return tmp_path


def test_python_runs_as_printed(url, capsys):
    (block,) = re.findall(r"```py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(block.replace(ADDRESS, url), {})
    before, after, probability = capsys.readouterr().out.split()
    assert before in CLASSES
    assert after in CLASSES
    assert 0 < float(probability) <= 1


def test_curl_runs_as_printed(url, folder):
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("curl ")]
    assert len(lines) == 2
    answers = [
        subprocess.run(line.replace(ADDRESS, url), shell=True, check=True, capture_output=True, text=True).stdout
        for line in lines
    ]
    assert [answer["image"] for answer in json.loads(answers[0])["answers"]] == ["photo.png", "other.jpg"]
    assert Image.open(folder / "foggy.png").size == (32, 32)


def test_every_path_is_named(url):
    from mt3.service.app import PATHS

    told = PAGE.read_text().replace("ID", "{stream}")
    for path, (method, _) in PATHS.items():
        assert f"`{method} {path}`" in told or f"`{path}`" in told, path
