"""Choosing learning rate, steps, views or support of a method, on corruptions and images that are not reported."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from mt3.config.adaptation import TUNED, Adaptation
from mt3.corruptions import HELD_OUT
from mt3.evaluation.evaluate import evaluate
from mt3.evaluation.predict import NOT_FINITE
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.models.call import Network
from mt3.objectives.registry import get_objective
from mt3.results.facts import TUNING, Evaluation
from mt3.support.errors import InputError, name_list
from mt3.support.files import check_can_write, write_json

FACTORS = (0.1, 1.0, 10.0, 100.0)  # of the method's learning rate, which may be made for another network
STEPS = (1, 3)
VIEWS = (8, 32)
SUPPORT = (32, 128, 512)  # images whose moments count
RULE = "the highest accuracy; of equal ones the smallest learning rate times steps, then the fewest views or images"

Point = tuple[dict[str, Any], Evaluation]  # a setting, and what it gave


@dataclass(frozen=True)
class Grid:
    """What is tried of each; nothing for what the method does not have."""

    lr: tuple[float, ...] = ()
    steps: tuple[int, ...] = ()
    views: tuple[int, ...] = ()
    support: tuple[int, ...] = ()

    def points(self) -> list[dict[str, Any]]:
        tried = {name: getattr(self, name) for name in TUNED if getattr(self, name)}
        return [dict(zip(tried, values, strict=True)) for values in product(*tried.values())]


def default_grid(adaptation: Adaptation, asked: Grid) -> Grid:
    """The grid of a method, with what was asked for in place of its own; refuses one that has nothing to choose."""
    views = adaptation.objective is not None and get_objective(adaptation.objective, adaptation.variant).draws_views
    steps = adaptation.objective is not None and adaptation.rule == "step"
    own = Grid(
        tuple(factor * adaptation.lr for factor in FACTORS) if steps else (),
        STEPS if steps else (),
        VIEWS if adaptation.rule == "average" else (adaptation.views,) if views else (),
        SUPPORT if adaptation.rule == "align" else (),
    )
    if not own.points()[0]:
        raise InputError("This method has no learning rate, steps, views or support to choose; evaluate it as it is.")
    needless = [name for name in TUNED if getattr(asked, name) and not getattr(own, name)]
    if needless:
        raise InputError(f"This method has no {needless[0]} to choose; drop --{needless[0]}.")
    return Grid(*(getattr(asked, name) or getattr(own, name) for name in TUNED))


def held_out(images: TestImages) -> TestImages:
    """The last tenth of the test images, which is never reported where a choice was made on it."""
    count = len(images.labels)
    return replace(images, first=images.first + count - max(1, count // 10))


def tune(model: Network, images: TestImages, protocol: Protocol, grid: Grid, out: Path) -> dict[str, Any]:
    """Evaluate every point of the grid and write the choice with its evidence; what is there is not done again.

    The points' evaluations lie in a folder beside `out`, under its name without the ending.
    """
    reported = [name for name in protocol.corruptions if name not in HELD_OUT]
    if reported or not protocol.corruptions:
        told = f"{name_list(reported)}, which is reported" if reported else "none"
        raise InputError(f"Expected corruptions that are kept for tuning, {name_list(HELD_OUT)}, got {told}.")
    if out.suffix != ".json":
        raise InputError(f"Expected a name ending in .json for the choice, got {out}.")
    assert protocol.adaptation is not None
    check_can_write(out)
    found: list[Point] = []
    failed = []
    for point in grid.points():
        asked = replace(protocol, adaptation=replace(protocol.adaptation, **point), sweep=True, label=TUNING)
        name = "-".join(f"{field}{value:g}" for field, value in point.items())
        try:
            found.append((point, evaluate(model, images, asked, out.with_suffix("") / f"{name}.json")))
        except InputError as error:
            if str(error) != NOT_FINITE:
                raise
            failed.append(point)  # too large a step, which is a result, too
    if not found:
        raise InputError("No setting of the grid gives answers that are finite; lower --lr.")
    tuned = _tuned(found, failed)
    write_json(out, {"tuned": tuned})
    return tuned


def choose(found: Sequence[Point]) -> dict[str, Any]:
    """The setting that `RULE` names."""

    def place(one: Point) -> tuple[float, ...]:
        point, evaluation = one
        size = point.get("lr", 1.0) * point.get("steps", 1)
        return -evaluation.accuracy(), size, point.get("views", 1), point.get("support", 1), point.get("steps", 1)

    return min(found, key=place)[0]


def _tuned(found: Sequence[Point], failed: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The choice, and all that it rests on; settings that failed have no accuracy."""
    first = found[0][1].protocol
    points = []
    for point, e in found:
        gain = e.gain()
        numbers = {"accuracy": e.accuracy(), "gain": list(gain), "file": e.path.name}
        points.append({**point, **numbers})
    points += [{**point, "accuracy": None, "gain": None, "file": None} for point in failed]
    images = {name: first[name] for name in ("data", "source", "corruptions", "severities", "first", "images", "seed")}
    return {
        "method": first.get("method", "own"),
        "stream": first.get("stream", {}).get("kind"),
        "rule": RULE,
        "choice": choose(found),
        "unadapted": found[0][1].accuracy("before"),
        "images": images,
        "model_hash": first["model_hash"],
        "adaptation": {name: value for name, value in first["adaptation"].items() if name not in TUNED},
        "points": points,
    }
