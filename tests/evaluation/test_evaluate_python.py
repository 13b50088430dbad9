"""`mt3.evaluate`: a model from Python, its table and its data frame."""

import sys
import tempfile

import pytest
import torch

import mt3
from foreign import ConvNet, coloured
from mt3.corruptions.write import write_corrupted, write_folders


@pytest.fixture(scope="module")
def found() -> mt3.Evaluation:
    torch.manual_seed(0)
    model = mt3.MT3Model(ConvNet(), 2)
    return mt3.evaluate(model, coloured(size=32), ["contrast", "fog"], severities=(1, 5), limit=4, controls=True)


def test_accuracies_are_those_of_the_model(found):
    torch.manual_seed(0)
    model, data = mt3.MT3Model(ConvNet(), 2), mt3.data.as_dataset(coloured(size=32))
    foggy = mt3.corruptions.apply(data.test_images[:4], "fog", severity=5, seed=0)
    answers = mt3.Adapter(model)(torch.from_numpy(foggy).permute(0, 3, 1, 2)).argmax(1).numpy()
    assert found.accuracy("after", "fog", 5) == 100 * (answers == data.test_labels[:4]).mean()
    assert found.protocol["run"] is None


def test_the_table_has_a_column_for_each_row(found):
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in found.table().splitlines()]
    assert lines[0] == ["corruption", "before", "view average", "clean other", "same corruption", "after"]
    assert [line[0] for line in lines[2:]] == ["contrast 1", "fog 1", "contrast 5", "fog 5", "average", "clean"]
    assert lines[5][5] == f"{found.accuracy('after', 'fog', 5):.1f}"
    assert lines[-1][3] == "-"  # the controls have no clean images


def test_a_data_frame_has_a_line_for_each_corruption_severity_and_row(found, monkeypatch):
    frame = found.to_pandas()
    assert len(frame) == 4 * 5 + 3
    names = ["corruption", "severity", "row", "accuracy", "low", "high", "nll", "calibration_error", "images"]
    assert list(frame.columns) == names
    line = frame.set_index(["corruption", "severity", "row"]).loc["fog", 5, "after"]
    assert line["accuracy"] == found.accuracy("after", "fog", 5)
    assert line["low"] <= line["accuracy"] <= line["high"]
    assert (line["nll"], line["images"]) == (found.mean("nll", "after", "fog", 5), 4)
    assert frame[frame.severity == 0].row.tolist() == ["before", "view_average", "after"]
    assert set(frame[frame.severity == 0].corruption) == {"clean"}
    means = frame[frame.severity > 0].groupby("row").accuracy.mean()
    assert means["after"] == pytest.approx(found.accuracy("after"))
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(mt3.InputError, match="pandas is not installed; pip install pandas"):
        found.to_pandas()


def test_nothing_is_written_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = mt3.MT3Model(ConvNet(), 2)
    clean = mt3.evaluate(model, coloured(size=32), ["none"], adapt=False, limit=3)
    assert list(tmp_path.iterdir()) == []
    assert not clean.has("after")
    kept = mt3.evaluate(model, coloured(size=32), ["none"], out=tmp_path / "found.json", limit=3)
    assert {"found.json", "found.npz"} <= {path.name for path in tmp_path.iterdir()}
    assert kept.accuracy("before", severity=0) == clean.accuracy("before", severity=0)
    with pytest.raises(mt3.InputError, match="Unknown field of an evaluation 'nonsense'"):
        mt3.evaluate(model, coloured(size=32), ["none"], nonsense=1)
    with pytest.raises(
        mt3.InputError, match="no way of its own to adapt; give a method, such as 'tent', or adapt=False"
    ):
        mt3.evaluate(ConvNet(), coloured(size=32))
    with pytest.raises(mt3.InputError, match="Expected a classifier as a torch module, got a str"):
        mt3.evaluate("resnet", coloured(size=32))


def test_images_that_were_opened_take_the_place_of_corruptions(tmp_path):
    torch.manual_seed(0)
    model, data = mt3.MT3Model(ConvNet(), 2), mt3.data.as_dataset(coloured(size=32))
    write_folders(data, tmp_path / "shifts", ["fog"], [5], limit=3)
    write_corrupted(data, tmp_path / "arrays", ["fog"], [5], limit=3)
    generated = mt3.evaluate(model, data, "fog", limit=3)
    shifts = mt3.data.open_shifts(tmp_path / "shifts", mt3.data.Asked(data.classes, 32))
    for opened in (shifts, mt3.data.open_corrupted(tmp_path / "arrays")):
        for clean in (data, None):
            found = mt3.evaluate(model, clean, opened, limit=3)
            assert found.accuracy("after", "fog", 5) == generated.accuracy("after", "fog", 5)
            assert found.protocol["clean"] == (clean is not None)
