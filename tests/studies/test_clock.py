"""How long a step takes, by a few of them."""

import torch

from mt3.config.config import make_config
from mt3.studies.clock import time_step


def test_a_slow_step_is_taken_once(digits, monkeypatch):
    taken = []
    monkeypatch.setattr("mt3.studies.clock.gradient_of_step", lambda *words, **_: taken.append(words[4]))
    monkeypatch.setattr("mt3.studies.clock.apply_gradient", lambda *_: None)
    config = make_config("baseline", "digits", "demo", overrides={"width": 4})
    monkeypatch.setattr("mt3.studies.clock.SLOW", 0.0)
    time_step(config, digits, torch.device("cpu"))
    assert taken == [0]
    monkeypatch.setattr("mt3.studies.clock.SLOW", 60.0)
    monkeypatch.setattr("mt3.studies.clock.TIMED", 0.0)
    time_step(config, digits, torch.device("cpu"))
    assert taken == [0, 0, 1]
