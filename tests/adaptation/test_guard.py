"""The guard: a stream built to break a model, ordinary streams, and each thing that it watches."""

import copy
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mt3
from mt3.adaptation.guard import LEAST, WINDOW, Guard, Watched
from mt3.data import load_digits

ONE, NOISE, CLEAN = 96, 64, 240  # images of the three parts


@cache
def digit_reader() -> tuple[nn.Module, Tensor, Tensor]:
    """A small network that has learnt the digits, and the test images with their labels."""
    digits = load_digits()
    images = torch.from_numpy(digits.train_images).permute(0, 3, 1, 2) / 255
    labels = torch.from_numpy(np.asarray(digits.train_labels)).long()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.AvgPool2d(2),
            *(nn.Conv2d(3, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(512, 10)),
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=0.003)
        for _ in range(150):
            batch = torch.randint(len(images), (64,))
            optimizer.zero_grad()
            F.cross_entropy(net(images[batch]), labels[batch]).backward()
            optimizer.step()
    test = torch.from_numpy(digits.test_images).permute(0, 3, 1, 2) / 255
    return net.eval(), test, torch.from_numpy(np.asarray(digits.test_labels)).long()


def breaking_stream() -> tuple[Tensor, Tensor]:
    """One class only, then noise, then clean images; and the labels of the clean ones."""
    _, images, labels = digit_reader()
    ones = images[labels == 1].repeat(4, 1, 1, 1)[:ONE]
    noise = torch.rand(NOISE, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return torch.cat([ones, noise, images[:CLEAN]]), labels[:CLEAN]


def accuracy(logits: Tensor, labels: Tensor) -> float:
    """In percent, of the last images."""
    return 100 * float((logits[-len(labels) :].argmax(1) == labels).float().mean())


@pytest.mark.parametrize(("batch", "lr"), [(8, 0.3), (8, 2.0), (1, 0.05)])
def test_a_stream_built_to_break_a_model_does_not_break_a_guarded_one(batch, lr):
    net, *_ = digit_reader()
    stream, labels = breaking_stream()
    own = accuracy(net(stream), labels)
    fields = {"carry": "stream", "lr": lr, "momentum": 0.9, "batch": batch}
    broken = accuracy(mt3.Adapter(net, "tent", **fields)(stream), labels)
    adapter = mt3.Adapter(net, "tent", **fields, reset="guard")
    guarded = accuracy(adapter(stream), labels)
    assert own > 85
    assert broken < own - 10
    assert guarded > own - 2
    assert 1 <= adapter.stream.guard.returns <= 8


@pytest.mark.parametrize("shift", ["none", "darker", "noisy"])
def test_an_ordinary_stream_is_left_alone(shift):
    net, images, _ = digit_reader()
    images = images[:CLEAN]
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(1))
    images = {"none": images, "darker": 0.5 * images, "noisy": (images + 0.2 * noise).clamp(0, 1)}[shift]
    fields = {"carry": "stream", "lr": 0.002, "batch": 8}
    adapter = mt3.Adapter(net, "tent", **fields, reset="guard")
    guarded = adapter(images)
    assert adapter.stream.guard.returns == 0
    assert torch.equal(guarded, mt3.Adapter(net, "tent", **fields)(images))
    assert len(adapter.stream.guard.good) > 0


def logits_of(classes: list[int], sure: float = 9.0) -> Tensor:
    return sure * F.one_hot(torch.tensor(classes), 4).float()


MANY = [0, 1, 2, 3] * 2
MOVED = {"w": torch.ones(1)}


def test_it_watches_the_answers_their_entropy_and_the_objective():
    loss = torch.tensor(1.0)
    cases = [
        (logits_of(MANY), logits_of(MANY), (loss, loss), True),
        (logits_of([0] * 8), logits_of(MANY), None, False),  # all collapse to one class
        (logits_of([0] * 8), logits_of([0] * 8), None, True),  # the images may be of one class
        (logits_of([0, 1] * 4), logits_of(MANY), None, False),  # two classes of four
        (logits_of(MANY), logits_of([0, 1] * 4), None, True),  # more classes than before are no harm
        (logits_of(MANY, 1.0), logits_of(MANY), None, False),  # less sure
        (logits_of(MANY), logits_of(MANY, 1.0), None, True),  # surer
        (logits_of(MANY), logits_of(MANY), (loss / LEAST + 0.01, loss), False),  # the objective is higher
        (logits_of(MANY), logits_of(MANY), (loss / LEAST - 0.01, loss), True),
        (logits_of(MANY), logits_of(MANY), (loss * torch.nan, loss), True),  # no image was looked at
        (logits_of(MANY) * torch.nan, logits_of(MANY), None, False),
        (logits_of(MANY) * torch.nan, logits_of(MANY) * torch.nan, None, True),  # the images' fault
    ]
    for logits, reference, losses, fine in cases:
        assert Guard().check(Watched(logits, reference, losses), MOVED) == fine
        assert Guard().check(Watched(logits, reference, losses), {})  # there is nothing to go back from
    assert not Guard().check(Watched(logits_of(MANY), logits_of(MANY), None), {"w": torch.tensor([1.0, torch.inf])})


def test_its_averages_are_those_of_the_last_images():
    """The weight of an image falls by 1/32 with each later one."""
    guard = Guard()
    for classes in ([0] * 8, [1] * 8, [2, 3] * 4):
        guard.check(Watched(logits_of(classes), logits_of(classes), None), MOVED)
    kept = (1 - 1 / WINDOW) ** 8
    weights = np.array([kept**2, kept, 0.5, 0.5])
    assert guard.sums is not None
    shares = guard.sums[0, :4] / guard.sums[0, 5]
    np.testing.assert_allclose(shares, weights / weights.sum(), rtol=1e-5)


def test_it_goes_back_to_the_last_good_state_then_to_the_start_and_rests():
    guard, fine = Guard(), Watched(logits_of(MANY), logits_of(MANY), None)
    for number in range(9):
        assert guard.check(fine, {"w": torch.tensor(float(number))})
    assert guard.good["w"] == 7  # after 64 images
    assert guard.go_back() == {"w": torch.tensor(7.0)}
    assert (guard.left, guard.rest, guard.returns) == (32, 64, 1)
    for _ in range(3):
        assert guard.check(fine, MOVED)
    assert (guard.left, guard.good) == (8, {})  # a rest makes no state good
    assert guard.go_back() == {}  # the start
    assert (guard.left, guard.rest, guard.returns) == (64, 128, 2)
    for _ in range(8 + 16):  # the rest, and as long without a return
        guard.check(fine, MOVED)
    assert (guard.left, guard.rest) == (0, 64)


def test_what_it_goes_back_from_is_answered_by_the_model_as_it_is():
    net, stream, _ = digit_reader()
    adapter = mt3.Adapter(net, "tent", carry="stream", lr=5.0, batch=8, reset="guard")
    own, before = net(stream).detach(), copy.deepcopy(net.state_dict())
    group = 0
    while not adapter.stream.guard.returns:
        found = adapter(stream[8 * group : 8 * group + 8])
        group += 1
    torch.testing.assert_close(found, own[8 * group - 8 : 8 * group])
    assert adapter.stream.params == {}
    rested = adapter(stream[:WINDOW])  # it does not adapt while it rests
    torch.testing.assert_close(rested, own[:WINDOW])
    assert adapter.stream.params == {}
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())
