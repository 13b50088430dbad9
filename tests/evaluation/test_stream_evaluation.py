"""Evaluations along a stream: their answers, what they write down, and that a kill changes no bit."""

import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import mt3
import mt3.evaluation.evaluate as module
from evaluating import CORRUPTED as NAMES
from evaluating import TENT, answer, follow_slowly, make_model, start
from evaluating import stream_protocol as asked
from mt3 import corruptions
from mt3.config.streams import STREAMS
from mt3.corruptions.write import write_folders
from mt3.evaluation.evaluate import evaluate, evaluate_shard
from mt3.evaluation.pieces import folder_of
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.evaluation.settle import passes, settle
from mt3.evaluation.shards import Shard
from mt3.evaluation.streams import make_stream
from mt3.results.facts import Evaluation
from mt3.support.errors import InputError
from mt3.support.files import read_json


def follow(out: Path, images: TestImages, protocol: Protocol) -> Evaluation:
    return evaluate(make_model(), images, protocol, out)


def files(out: Path) -> tuple[bytes, bytes]:
    return out.read_bytes(), out.with_suffix(".npz").read_bytes()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr("mt3.evaluation.pieces.PIECE", 4)


@pytest.mark.parametrize("stream", STREAMS)
def test_answers_are_those_of_an_adapter_that_sees_the_stream(tmp_path, images, digits, stream):
    found = follow(tmp_path / "r.json", images, asked(stream))
    with np.load(tmp_path / "r.npz") as file:
        arrays = dict(file)
    model, labels = make_model(), digits.test_labels[:10]
    sources = [(name, 5) for name in NAMES]
    pictures = {
        s: torch.from_numpy(corruptions.apply(digits.test_images[:10], *s)).permute(0, 3, 1, 2) for s in sources
    }
    start = 0
    for order in make_stream(stream, dict.fromkeys(sources, labels), 0).units.values():
        adapter = mt3.Adapter(model, "tent", carry="stream", **TENT)
        logits = adapter(torch.stack([pictures[sources[s]][i] for s, i in order.tolist()]))
        for place, ((s, i), want) in enumerate(zip(order.tolist(), logits.softmax(1), strict=True)):
            name = NAMES[s]
            np.testing.assert_allclose(arrays[f"{name}-5/after"][i], want, atol=1e-6)
            before = model(pictures[sources[s]][i : i + 1]).softmax(1)[0].detach()
            np.testing.assert_allclose(arrays[f"{name}-5/before"][i], before, atol=1e-6)
            assert found.positions(name)[0][i] == start + place
        start += len(order)
    np.testing.assert_array_equal(arrays["labels"], labels)
    assert found.accuracy("after", "fog") == pytest.approx(100 * (arrays["fog-5/after"].argmax(1) == labels).mean())
    gain = found.gain()
    assert gain.mean == pytest.approx(found.accuracy("after") - found.accuracy("before"))


def test_streams_differ_in_what_an_image_finds(tmp_path, images):
    rows = {}
    for stream in STREAMS:
        follow(tmp_path / f"{stream}.json", images, asked(stream))
        with np.load(tmp_path / f"{stream}.npz") as file:
            rows[stream] = {name: file[f"{name}-5/after"] for name in NAMES}
    np.testing.assert_array_equal(rows["shift"]["contrast"], rows["continual"]["contrast"])  # the first corruption
    assert np.abs(rows["shift"]["fog"] - rows["continual"]["fog"]).max() > 1e-6
    assert np.abs(rows["mixed"]["fog"] - rows["continual"]["fog"]).max() > 1e-6
    assert np.abs(rows["correlated"]["contrast"] - rows["shift"]["contrast"]).max() > 1e-6


def test_the_protocol_names_the_stream(tmp_path, images):
    protocol = asked("continual", answer="first", reset="every 4")
    told = follow(tmp_path / "r.json", images, protocol).protocol
    assert told["method"] == "tent"
    assert told["stream"] == {
        "kind": "continual",
        "seed": 0,
        "order": "one corruption after the other without a reset, the images of each shuffled",
        "units": [{"name": "continual", "severity": 0, "images": 20}],
    }
    named = ("carry", "batch", "answer", "reset", "momentum", "lr")
    assert [told["adaptation"][name] for name in named] == ["stream", 2, "first", "every 4", 0.9, 0.2]
    assert (told["passes"], told["clean"], told["own_adaptation"]) == (3.0, False, False)
    units = follow(tmp_path / "s.json", images, asked("shift")).protocol["stream"]["units"]
    assert units == [{"name": name, "severity": 5, "images": 10} for name in NAMES]


def stop_in_the_middle(monkeypatch, answers: int) -> None:
    """Let the adapter fail when it has answered so many images."""
    original, seen = mt3.Adapter.forward, [0]

    def forward(self, batch):
        if seen[0] + len(batch) > answers:
            original(self, batch[: answers - seen[0]])  # it has gone on, and nobody kept that
            raise KeyboardInterrupt
        seen[0] += len(batch)
        return original(self, batch)

    monkeypatch.setattr(mt3.Adapter, "forward", forward)


@pytest.mark.parametrize(("stream", "method"), [("continual", "tent"), ("shift", "tent"), ("mixed", "own")])
def test_a_stream_stopped_at_any_image_goes_on_bit_for_bit(tmp_path, images, monkeypatch, stream, method):
    fields = {"views": 2, "momentum": 0.5} if method == "own" else {"answer": "first"}
    protocol = asked(stream, method, limit=6, **fields)
    follow(tmp_path / "whole.json", images, protocol)
    want = files(tmp_path / "whole.json")
    for answers in range(0, 12, 3 if method == "own" else 1):
        out = tmp_path / f"{answers}.json"
        with monkeypatch.context() as patch:
            stop_in_the_middle(patch, answers)
            with pytest.raises(KeyboardInterrupt):
                follow(out, images, protocol)
        assert not out.exists()
        follow(out, images, protocol)
        assert files(out) == want
        assert not folder_of(out).exists()


def test_a_stream_does_not_begin_again(tmp_path, images, monkeypatch):
    out, protocol = tmp_path / "r.json", asked("continual")
    with monkeypatch.context() as patch:
        stop_in_the_middle(patch, 13)
        with pytest.raises(KeyboardInterrupt):
            follow(out, images, protocol)
    states = sorted(path.name for path in folder_of(out).glob("*.safetensors"))
    assert states == ["000012-continual-0.safetensors"]  # one is enough
    seen: list[int] = []
    original = module._predict_along
    monkeypatch.setattr(
        module, "_predict_along", lambda j, s, piece: (seen.append(piece.start), original(j, s, piece))[1]
    )
    follow(out, images, protocol)
    assert seen == [12, 16]


def test_methods_that_compare_images_get_no_single_one(tmp_path, images):
    protocol = asked("shift", "lame", limit=5, batch=2)  # in pieces of 4, the fifth image would be alone
    found = follow(tmp_path / "r.json", images, protocol)
    assert found.accuracy("after", "fog") in [20.0 * right for right in range(6)]


@pytest.mark.parametrize("damage", ["state", "piece"])
def test_a_damaged_file_costs_time_and_no_answer(tmp_path, images, monkeypatch, damage):
    out, protocol = tmp_path / "r.json", asked("continual")
    follow(tmp_path / "whole.json", images, protocol)
    with monkeypatch.context() as patch:
        stop_in_the_middle(patch, 13)
        with pytest.raises(KeyboardInterrupt):
            follow(out, images, protocol)
    pattern = "*.safetensors" if damage == "state" else "000004-*.npz"
    (path,) = folder_of(out).glob(pattern)
    path.write_bytes(path.read_bytes()[:-7])
    follow(out, images, protocol)
    assert files(out) == files(tmp_path / "whole.json")


def test_a_killed_process_loses_no_bit(tmp_path):
    whole, out = tmp_path / "whole.json", tmp_path / "r.json"
    assert answer(start(follow_slowly, whole, 0.0)) is True
    victim, _ = start(follow_slowly, out, 0.2)
    deadline = time.monotonic() + 60
    while len(list(folder_of(out).glob("0*.npz"))) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    victim.kill()
    victim.join()
    assert victim.exitcode == -signal.SIGKILL
    assert not out.exists()
    assert 2 <= len(list(folder_of(out).glob("0*.npz"))) < 5
    assert answer(start(follow_slowly, out, 0.0)) is True
    assert files(out) == files(whole)


@pytest.mark.parametrize("stream", ["shift", "mixed"])
def test_shards_do_whole_units(tmp_path, images, stream):
    out, protocol = tmp_path / "r.json", asked(stream)
    follow(tmp_path / "whole.json", images, protocol)
    assert not evaluate_shard(make_model(), images, protocol, out, Shard(1, 2))
    assert evaluate_shard(make_model(), images, protocol, out, Shard(0, 2))
    assert files(out) == files(tmp_path / "whole.json")


def test_a_stream_of_clean_images(tmp_path, images, digits):
    adaptation = settle(make_model(), "tent", "shift", TENT)
    found = follow(
        tmp_path / "r.json", images, Protocol((), limit=6, adaptation=adaptation, method="tent", stream="shift")
    )
    assert found.has("after", severity=0)
    assert sorted(found.positions(None, 0)[0].tolist()) == list(range(6))
    assert found.gain("gain", None, 0).mean == found.accuracy("after", None, 0) - found.accuracy("before", None, 0)


class Brightest(nn.Module):
    """Ten classes by a linear map of the colours, with a norm to adapt."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.classes = nn.GroupNorm(1, 3), nn.Linear(3 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classes(nn.functional.adaptive_avg_pool2d(self.norm(x), 4).flatten(1))
        return logits


def test_any_classifier_along_a_stream_from_python(tmp_path, digits):
    net, given = Brightest(), {"limit": 8, "lr": 0.1, "batch": 4, "seed": 3}
    found = mt3.evaluate(net, digits, NAMES, "tent", stream="continual", normalisation=([0.5] * 3, [0.25] * 3), **given)
    adapter = mt3.Adapter(net, "tent", carry="stream", lr=0.1, batch=4, normalisation=([0.5] * 3, [0.25] * 3))
    sources = [(name, 5) for name in NAMES]
    (order,) = make_stream("continual", dict.fromkeys(sources, digits.test_labels[:8]), 3).units.values()
    pictures = [corruptions.apply(digits.test_images[:8], *s) for s in sources]
    batch = torch.from_numpy(np.stack([pictures[s][i] for s, i in order.tolist()])).permute(0, 3, 1, 2)
    right = adapter(batch).argmax(1).numpy() == digits.test_labels[order[:, 1]]
    assert found.accuracy("after") == pytest.approx(100 * right.mean())
    assert found.protocol["run"] is None
    assert (found.rival, found.way, found.batch) == ("tent", "continual", 4)
    alone = mt3.evaluate(net, digits, ["fog"], "tent", limit=4)
    assert (alone.way, alone.protocol["adaptation"]["answer"]) == ("per image", "after")
    assert mt3.evaluate(net, digits, ["fog"], adapt=False, limit=4).accuracy("before") == alone.accuracy("before")


@pytest.mark.parametrize(
    ("fields", "asked_too", "sentence"),
    [
        ({}, {"stream": "river"}, "Unknown stream 'river': expected one of shift, continual, mixed, correlated"),
        ({}, {"controls": True}, "Along a stream there is no --controls"),
        ({}, {"confidence": True}, "Along a stream there is no --confidence"),
        ({"reset": "shift"}, {}, "In a continual stream no shift is known; give --stream shift, or another --reset"),
        ({"carry": "image"}, {}, "A step that is kept needs --carry stream"),
    ],
)
def test_what_a_stream_cannot_be_asked(images, digits, tmp_path, fields, asked_too, sentence):
    given = {"stream": "continual", "limit": 4, "out": tmp_path / "r.json"} | fields | asked_too
    with pytest.raises(InputError, match=sentence):
        mt3.evaluate(make_model(), digits, ["fog"], "tent", **given)
    assert list(tmp_path.iterdir()) == []


def test_other_refusals(digits):
    with pytest.raises(InputError, match="nothing adapts here; drop --stream"):
        mt3.evaluate(make_model(), digits, ["fog"], stream="shift", adapt=False)
    with pytest.raises(InputError, match="LAME has nothing to do for a single image; give --stream"):
        mt3.evaluate(make_model(), digits, ["fog"], "lame", limit=4)
    with pytest.raises(InputError, match="A step that is kept needs a stream's order"):
        mt3.evaluate(make_model(), digits, ["fog"], "tent", carry="stream", limit=4)


class Counted(nn.Module):
    """A classifier that counts the images of its forward and backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.forward_passes, self.backward_passes = nn.GroupNorm(1, 3), 0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.forward_passes += len(x)
        out: torch.Tensor = self.layer(x).mean((2, 3))
        if out.requires_grad:
            out.register_hook(self._count)
        return out

    def _count(self, gradient: torch.Tensor) -> None:
        self.backward_passes += len(gradient)


@pytest.mark.parametrize(
    ("method", "stream", "fields", "want"),
    [
        ("tent", None, {}, 4),
        ("tent", None, {"steps": 3}, 10),
        ("tent", "shift", {"batch": 2}, 3),
        ("tent", "shift", {"batch": 2, "answer": "after", "steps": 2}, 7),
        ("tent", "shift", {"batch": 2, "reset": "guard", "statistics": 0.0}, 4),
        ("memo", "shift", {"views": 5, "reset": "guard"}, 22),
        ("sar", "shift", {"batch": 2, "reset": "never"}, 6),
        ("memo", None, {"views": 5}, 16),
        ("memo", "shift", {"views": 5}, 16),
        ("average", None, {"views": 5}, 5),
    ],
)
def test_passes_are_those_that_are_made(monkeypatch, method, stream, fields, want):
    adaptation = settle(None, method, stream, fields)
    assert passes(adaptation) == want
    net, images = Counted(), torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    adapter = mt3.Adapter(net, adaptation)
    twin = {"forward_passes": 0, "backward_passes": 0}
    monkeypatch.setattr(Counted, "forward", lambda self, x: _counted(self, x, twin))
    adapter(images)
    assert (twin["forward_passes"] + 2 * twin["backward_passes"]) / len(images) == want


def _counted(net: Counted, x: torch.Tensor, counts: dict[str, int]) -> torch.Tensor:
    """The model is called through twins of itself, so that counts are kept outside."""
    counts["forward_passes"] += len(x)
    out: torch.Tensor = net.layer(x).mean((2, 3))
    if out.requires_grad:
        out.register_hook(lambda g: counts.update(backward_passes=counts["backward_passes"] + len(g)))
    return out


def test_costs_of_the_model_s_own_way():
    assert passes(settle(make_model(), "own", None, {"views": 32})) == 193  # 32 pairs, forward and backward, and one
    assert passes(settle(make_model(), "own", "shift", {"views": 8, "steps": 2})) == 97
    assert passes(settle(make_model(), "sar", "shift", {})) == 6
    assert [passes(settle(make_model(), name, "shift", {})) for name in ("norm", "t3a", "lame")] == [1, 1, 1]


def test_confidence_before_and_after(tmp_path, images):
    model = make_model()
    protocol = Protocol(("fog",), limit=12, adaptation=model.adaptation, confidence=True)
    found = evaluate(model, images, protocol, tmp_path / "r.json")
    with np.load(tmp_path / "r.npz") as file:
        before, after, first, both = (file[f"fog-5/{row}"] for row in ("before", "after", "copies_before", "copies"))
        labels = file["labels"]
    batch = torch.from_numpy(images.take(("fog", 5), 0, 12)).permute(0, 3, 1, 2)
    confidence = mt3.Adapter(model).confidence(batch).numpy()
    np.testing.assert_allclose(both[np.arange(12), after.argmax(1)], confidence, atol=1e-4)
    told = read_json(tmp_path / "r.json")["corruptions"][0]["rows"]
    rows = {"before": (before, first[np.arange(12), before.argmax(1)]), "after": (after, confidence)}
    for row, (p, agreed) in rows.items():
        correct = p.argmax(1) == labels
        for name, value in (("softmax", p.max(1)), ("copies", agreed)):
            pairs = [(a > b) + (a == b) / 2 for a in value[correct] for b in value[~correct]]
            assert told[row]["confidence"][name]["auroc"] == pytest.approx(100 * np.mean(pairs))
    assert found.protocol["confidence"] == "copies"
    assert "confidence" not in told["view_average"]
    without_views = mt3.evaluate(model, images.dataset, ["fog"], "tent", confidence=True, limit=4)
    assert without_views.answers("after", "fog")[0].confidence is not None


def test_shifts_with_images_of_their_own_along_a_stream(tmp_path, digits):
    """Three images of one shift and two of another, in one unit."""
    write_folders(digits, tmp_path / "shifts", ["fog", "contrast"], [5], limit=3)
    first = min((tmp_path / "shifts" / "contrast" / "5").iterdir())
    assert len(list(first.iterdir())) == 1
    shutil.rmtree(first)
    shifts = mt3.data.open_shifts(tmp_path / "shifts", mt3.data.Asked(digits.classes, 32))
    found = mt3.evaluate(make_model(), None, shifts, "tent", stream="continual", batch=2)
    counts = {name: len(found.positions(name)[0]) for name in found.corruptions}
    assert counts == {"fog": 3, "contrast": 2}
    assert found.protocol["stream"]["units"][0]["images"] == 5
    assert sorted(np.concatenate(found.positions()).tolist()) == list(range(5))
    means = [found.accuracy("after", name) - found.accuracy("before", name) for name in counts]
    assert found.gain().mean == pytest.approx(np.mean(means))


def test_plus_compares_with_training_images_of_the_data_set(tmp_path, images):
    model = make_model()
    found = mt3.evaluate(model, images.dataset, ["fog"], "plus", stream="shift", limit=12, out=tmp_path / "plus.json")
    assert found.protocol["moments"] == "1000 training images"
    assert found.protocol["passes"] == 1
    assert [passes(settle(model, "plus", "shift", {"answer": a})) for a in ("first", "after")] == [1, 1]
    rows = np.linspace(0, len(images.dataset.train_images) - 1, 1000).astype(int)
    source = torch.from_numpy(images.dataset.train_images[rows]).permute(0, 3, 1, 2)
    order = found.positions("fog")[0]
    batch = torch.from_numpy(images.take(("fog", 5), 0, 12)).permute(0, 3, 1, 2)[torch.from_numpy(order.argsort())]
    by_hand = mt3.Adapter(model, "plus", source=source)(batch).argmax(1).numpy()
    assert (by_hand == images.labels[:12][order.argsort()]).mean() * 100 == pytest.approx(
        found.accuracy("after", "fog")
    )
    bare = replace(images.dataset, train_images=images.dataset.train_images[:0])
    with pytest.raises(InputError, match="compares with training images, and there are none"):
        mt3.evaluate(model, bare, ["fog"], "plus", stream="shift", limit=4)
