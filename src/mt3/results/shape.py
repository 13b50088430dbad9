"""The shape of an evaluation's protocol, which is checked on reading. Needs no torch."""

from typing import Any

from mt3.config.streams import STREAMS
from mt3.support.errors import NAME, shown

# of each name a value of its kind
RUN = {"data": "", "method": "", "preset": "", "seed": 0, "label": "", "step": 0, "total_steps": 0}
RUN |= {"epochs": [0.0], "network": "", "overrides": {}}
ADAPTATION = {"objective": "", "steps": 0, "lr": 0.0, "clip": 0.0, "views": 0, "layers": "", "gate": 0.0, "variant": ""}
PROTOCOL = {"run": RUN, "label": "", "sweep": False, "data": "", "split": "", "source": {}, "corruptions": [""]}
PROTOCOL |= {"severities": [0], "images": 0, "first": 0, "clean": False, "controls": False, "seed": 0}
PROTOCOL |= {"adaptation": ADAPTATION, "own_adaptation": False, "views": 0, "precision": "", "model_hash": ""}
PROTOCOL |= {"versions": {}}
CANDIDATE = {"name": "", "passes": 0.0, "seconds": {"median": 0.0}, "ratio": {"median": 0.0}}
TIMING = {"model_hash": "", "candidates": [CANDIDATE]}  # what a report takes from a benchmark of methods
STREAM = {"kind": "", "seed": 0, "order": "", "units": [{"name": "", "severity": 0, "images": 0}]}
TUNED = {"file": "", "hash": "", "rule": "", "choice": {}, "images": {}, "points": [{}]}
OPTIONAL = ("run", "data", "adaptation", "clip", "objective")  # may be null


def check_protocol(value: dict[str, Any]) -> None:
    """Refuse what is not a protocol; an evaluation along a stream, or of another method, says more."""
    check_shape(value, PROTOCOL, "protocol")
    for name, shape in {"method": "", "passes": 0.0, "stream": STREAM, "tuned": TUNED}.items():
        if name in value:
            check_shape(value[name], shape, name)
    if "stream" in value and (value["stream"]["kind"] not in STREAMS or value["adaptation"] is None):
        raise ValueError(f"a stream {shown(value['stream']['kind'])}")


def check_shape(value: Any, shape: Any, name: str) -> None:
    """Refuse what is not of the shape's kind, and text that a table cannot show."""
    kinds = (int, float) if type(shape) is float else (type(shape),)
    if type(value) not in kinds:
        raise TypeError(f"{name} is {shown(repr(value))}")
    if isinstance(shape, dict):
        for key, part in (shape or value).items():  # an empty one may hold anything
            check_shape(key, "", name)
            if not (value[key] is None and key in OPTIONAL):
                check_shape(value[key], part, key)
    elif isinstance(shape, list):
        for item in value:
            check_shape(item, item if shape is value else shape[0], name)
    if isinstance(value, str) and not (len(value) <= NAME and value.isprintable()):
        raise ValueError(f"{name} that is too long or not printable")
