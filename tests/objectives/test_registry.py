"""An objective is a file and a line of the registry: a toy one is trained and adapted with, and no file knows names."""

import ast
import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mt3
from mt3.config.config import make_config
from mt3.data import load_digits
from mt3.networks.backbone import Backbone
from mt3.networks.layers import Linear
from mt3.objectives.augment import make_views
from mt3.objectives.objective import Outputs, Views
from mt3.objectives.registry import OBJECTIVES, get_objective
from mt3.training.loop import train
from mt3.training.runs import RunOptions
from mt3.training.state import build_model

SOURCE = Path(__file__).parents[2] / "src" / "mt3"
SMALL = {"depth": 8, "width": 4, "task_size": 4, "test_lr": 0.02, "test_views": 6}


class Head(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.colour = Linear(features, 3)

    def forward(self, trunk: Tensor, shared: Tensor) -> dict[str, Tensor]:
        return {"colour": self.colour(shared)}


class Toy:
    """Tell the mean colour of a view."""

    feeds: tuple[str, ...] = ("early", "late", "hidden", "heads")
    images_per_view = 1
    draws_views = True
    has_target = False
    shows_images = False
    of_one_image = False

    def __init__(self, variant: str) -> None:
        self.variant = variant

    def heads(self, backbone: Backbone, hidden: int, projection: int) -> nn.Module:
        return Head(hidden or backbone.features)

    def train_views(
        self, raw: Tensor, x: Tensor, shift: Callable[[Tensor], Tensor], generator: torch.Generator
    ) -> tuple[Tensor, Views]:
        both = shift(torch.cat([x, make_views(raw, generator)]))
        views = both[len(x) :]
        return both[: len(x)], Views(views, views.mean((2, 3)))

    def test_views(self, image: Tensor, count: int, generator: torch.Generator) -> Views:
        views = make_views(image.expand(count, -1, -1, -1), generator)[:count]
        return Views(views, views.mean((2, 3)))

    def target(self, outputs: Outputs) -> None:
        return None

    def loss(self, outputs: Outputs, views: Views, target: Tensor | None) -> Tensor:
        assert views.labels is not None
        return (outputs.heads["colour"] - views.labels).square().mean((-2, -1))


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.colour = nn.Linear(8, 3)  # of the small network's trunk; PyTorch's layer, which knows no stacks

    def forward(self, trunk: Tensor, shared: Tensor) -> dict[str, Tensor]:
        return {"colour": self.colour(trunk.mean((2, 3)))}


class Branching(Toy):
    """The same from the trunk, so that no later layer adapts."""

    feeds = ("early", "heads")

    def heads(self, backbone: Backbone, hidden: int, projection: int) -> nn.Module:
        return Branch()


@pytest.fixture(autouse=True)
def _toys(monkeypatch):
    monkeypatch.setitem(OBJECTIVES, "toy", Toy)
    monkeypatch.setitem(OBJECTIVES, "branching", Branching)


@pytest.mark.parametrize(("objective", "hidden"), [("toy", 8), ("toy", 0), ("branching", 8)])
@pytest.mark.parametrize("method", ["jt", "mt3"])
def test_a_new_objective_is_trained_and_adapted_with(tmp_path, method, objective, hidden):
    """Jointly and meta, in a few steps; what comes back from the disk adapts, too."""
    config = make_config(method, "digits", "paper", overrides=SMALL | {"objective": objective, "hidden": hidden})
    digits = load_digits()
    train(config, digits, tmp_path, RunOptions(max_steps=3, log_every=1))
    metrics = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(metrics) == 3
    for line in metrics:
        assert torch.tensor([line[name] for name in ("loss", "ce", "selfsup", "grad_norm")]).isfinite().all()
        assert line["loss"] == pytest.approx(line["ce"] + config.gamma * line["selfsup"], rel=1e-5)
    model, fresh = mt3.load(tmp_path), build_model(config, digits).state_dict()
    assert model.adaptation == mt3.Adaptation(objective, lr=0.02, views=6)
    changed = {name for name, p in model.state_dict().items() if not torch.equal(p, fresh[name])}
    assert changed == fresh.keys()

    images = torch.from_numpy(digits.test_images[:5]).permute(0, 3, 1, 2)
    found = mt3.Adapter(model).compare(images)
    torch.testing.assert_close(found.before, model(images).detach(), atol=1e-5, rtol=0)
    assert torch.equal(found.after, mt3.Adapter(model)(images))
    assert (found.after - found.before).abs().max() > 1e-4
    assert (found.loss_after < found.loss_before).all()
    torch.testing.assert_close(found.view_average.sum(1), torch.ones(5))


@pytest.mark.parametrize("clip", [None, 0.01])
@pytest.mark.parametrize("objective", ["toy", "branching"])
def test_its_inner_step_is_a_gradient_step_by_hand(objective, clip):
    model = mt3.MT3Model("resnet8x4g2", 10, objective, hidden=8).double()
    assert model.stacks == (objective == "toy")
    images = torch.from_numpy(load_digits().test_images[:3]).permute(0, 3, 1, 2)
    for adapted in mt3.Adapter(model, lr=0.3, clip=clip, views=5).adapt(images):
        by_hand, views = copy.deepcopy(model), adapted.views.images
        assert views.shape == (5, 3, 32, 32)
        if objective == "toy":
            told = by_hand.heads.colour(torch.relu(by_hand.hidden(by_hand.backbone(views))))
        else:
            told = by_hand.heads.colour(by_hand.backbone.early(views).mean((2, 3)))
        loss = ((told - views.mean((2, 3))) ** 2).sum() / 15
        loss.backward()
        assert adapted.inner.loss.item() == pytest.approx(loss.item(), rel=1e-10)
        gradients = {n: p.grad for n, p in by_hand.named_parameters() if p.grad is not None}
        still = "classify" if objective == "toy" else ("classify", "hidden", "backbone.late")
        assert gradients.keys() == {n for n, _ in model.named_parameters() if not n.startswith(still)}
        norm = torch.cat([g.flatten() for g in gradients.values()]).norm()
        assert adapted.inner.grad_norm.item() == pytest.approx(norm.item(), rel=1e-10)
        assert norm > 0.01
        scale = 1 if clip is None else clip / norm
        for name, p in model.named_parameters():
            want = p.detach() - 0.3 * scale * gradients[name] if name in gradients else p.detach()
            torch.testing.assert_close(adapted.params[name], want, rtol=1e-10, atol=1e-12)


def test_an_unknown_objective_is_refused_with_all_that_there_are():
    with pytest.raises(
        mt3.InputError,
        match=r"Unknown objective 'colour': expected one of byol, rotation, entropy, .*, toy, branching, none",
    ):
        get_objective("colour")
    assert isinstance(get_objective("toy", "official"), Toy)


def comparisons(text: str, names: set[str]) -> list[int]:
    """The lines of a file that compare something with one of the names, or look one up."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare | ast.match_case | ast.Subscript):
            where = node.pattern if isinstance(node, ast.match_case) else node
            if any(isinstance(part, ast.Constant) and part.value in names for part in ast.walk(where)):
                found.append(node.body[0].lineno if isinstance(node, ast.match_case) else node.lineno)
    return found


def test_no_other_file_decides_by_an_objectives_name():
    own = {SOURCE / "config" / "methods.py", SOURCE / "studies" / "ablations.py"}
    files = [p for p in SOURCE.rglob("*.py") if p not in own and p.parent.name != "objectives"]
    assert len(files) > 50
    names = set(OBJECTIVES)
    assert {"byol", "rotation", "entropy", "marginal-entropy"} < names
    found = {str(path.relative_to(SOURCE)): comparisons(path.read_text(), names) for path in files}
    assert {path: lines for path, lines in found.items() if lines} == {}


def test_a_decision_by_name_is_found():
    assert comparisons('if config.objective == "byol":\n    pass', {"byol"}) == [1]
    assert comparisons('x = 1 if name in ("byol", "rotation") else 2', {"rotation"}) == [1]
    assert comparisons('match name:\n    case "byol":\n        pass', {"byol"}) == [3]
    assert comparisons('x = {"byol": 1}["byol"]', {"byol"}) == [1]
    assert comparisons('objective: str = "byol"  # byol or none\nf("byol")', {"byol"}) == []
