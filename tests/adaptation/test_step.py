"""The inner step and its meta-gradient against hand-written unrolls and finite differences."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mt3
import reference
from mt3.adaptation.step import clip_gradients, inner_loop, inner_step
from mt3.config.config import make_config
from mt3.models.call import call
from mt3.objectives.objective import Views
from mt3.training.losses import meta_loss
from mt3.training.state import State
from mt3.training.tasks import Task
from small import small_model

GROUPS = 2  # of the small models' norms


def small_task(k: int = 2) -> Task:
    generator = torch.Generator().manual_seed(2)
    images = torch.rand(3 * k, 3, 8, 8, generator=generator, dtype=torch.float64)
    return Task(images[:k], torch.tensor([0, 2] * (k // 2)), Views(images[k:]))


def meta_gradient(model: mt3.MT3Model, task: Task, **fields) -> dict[str, Tensor]:
    """The package's gradient of one task's outer loss."""
    config = make_config("mt3", "digits", "paper", overrides=fields)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.zero_grad()
    meta_loss(State(model, optimizer, None), task, config, log=False).total.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def by_hand(model: mt3.MT3Model, task: Task, **settings) -> dict[str, Tensor]:
    theta = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    assert task.views is not None
    loss = reference.outer_loss(theta, task.images, task.labels, task.views.images, groups=GROUPS, **settings)
    gradients = torch.autograd.grad(loss, list(theta.values()))
    return dict(zip(theta, gradients, strict=True))


def relative_error(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    assert got.keys() == want.keys()
    a, b = (torch.cat([g[n].flatten() for n in want]) for g in (got, want))
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize(
    ("variant", "mode", "inner_target", "outer_target"),
    [("paper", "global", "meta", "meta"), ("official", "tensor", "previous", "adapted")],
)
def test_meta_gradient_equals_hand_written_unroll(steps, clip, variant, mode, inner_target, outer_target):
    model, task = small_model(variant), small_task()
    got = meta_gradient(model, task, inner_steps=steps, inner_lr=0.2, inner_clip=clip, gamma=0.3, variant=variant)
    settings = {"steps": steps, "lr": 0.2, "gamma": 0.3, "norm": clip, "mode": mode}
    want = by_hand(model, task, **settings, inner_target=inner_target, outer_target=outer_target)
    assert relative_error(got, want) < 1e-9
    unclipped = by_hand(
        model, task, **(settings | {"norm": None}), inner_target=inner_target, outer_target=outer_target
    )
    bites = relative_error(unclipped, want) > 1e-3
    assert bites == (clip is not None)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("variant", ["paper", "official"])
def test_meta_gradient_equals_finite_differences(monkeypatch, steps, clip, variant):
    """Softplus for ReLU, which has kinks, and targets frozen at the unperturbed parameters."""

    def smooth(x: Tensor, inplace: bool = False) -> Tensor:
        return F.softplus(x)

    monkeypatch.setattr(F, "relu", smooth)
    model, task = small_model(variant), small_task()
    assert task.views is not None
    views = task.views.images
    got = meta_gradient(model, task, inner_steps=steps, inner_lr=0.2, inner_clip=clip, gamma=0.3)
    theta = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    frozen = [reference.network(theta, views, GROUPS, F.softplus)[1].detach()] * (steps + 1)
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        direction = {n: torch.randn(p.shape, generator=generator, dtype=p.dtype) for n, p in theta.items()}

        def loss_at(h: float, direction=direction) -> float:
            moved = {n: (p.detach() + h * direction[n]).requires_grad_() for n, p in theta.items()}
            return reference.outer_loss(
                moved,
                task.images,
                task.labels,
                views,
                groups=GROUPS,
                steps=steps,
                lr=0.2,
                gamma=0.3,
                norm=clip,
                activation=F.softplus,
                frozen=frozen,
            ).item()

        h = 1e-4  # fourth-order central difference
        slope = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h)
        want = sum(float((got[n] * direction[n]).sum()) for n in theta)
        assert slope == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize("steps", [1, 3])
def test_first_order_matches_its_own_unroll_and_differs_from_second(steps):
    model, task = small_model(), small_task()
    settings = {"steps": steps, "lr": 0.2, "gamma": 0.3, "norm": 0.05}
    fields = {"inner_steps": steps, "inner_lr": 0.2, "inner_clip": 0.05, "gamma": 0.3}
    first = meta_gradient(model, task, order="first", **fields)
    assert relative_error(first, by_hand(model, task, first_order=True, **settings)) < 1e-9
    assert relative_error(first, meta_gradient(model, task, **fields)) > 1e-3


@pytest.mark.parametrize("layers", ["all", "last"])
def test_without_gamma_the_views_need_no_second_pass(layers):
    """Equal to the same loss with a weight that is next to nothing, which has that pass."""
    model, task = small_model(), small_task()
    fields = {"inner_lr": 0.5, "inner_clip": 0.05, "layers": layers}
    got, near = (meta_gradient(model, task, gamma=gamma, **fields) for gamma in (0.0, 1e-13))
    assert relative_error(got, {name: near[name] for name in got}) < 1e-9
    if layers == "all":
        want = by_hand(model, task, steps=1, lr=0.5, gamma=0.0, norm=0.05)
        assert relative_error(got, {name: want[name] for name in got}) < 1e-9


def test_an_anchor_adds_the_cross_entropy_before_the_step():
    model, task = small_model(), small_task()
    settings = {"inner_lr": 0.5, "gamma": 0.1, "inner_clip": None}
    got = meta_gradient(model, task, anchor=0.25, **settings)
    want = meta_gradient(model, task, **settings)
    before = F.cross_entropy(model(task.images), task.labels)
    gradients = torch.autograd.grad(before, list(model.parameters()), allow_unused=True)
    for (name, _), g in zip(model.named_parameters(), gradients, strict=True):
        want[name] = want[name] if g is None else want[name] + 0.25 * g
    assert relative_error(got, want) < 1e-9


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_only_the_class_layer_gets_no_inner_update(variant):
    model, task = small_model(variant), small_task()
    assert task.views is not None
    theta = dict(model.named_parameters())
    inner = inner_loop(model, theta, lambda step: task.views, mt3.Adaptation(steps=1, lr=0.1, clip=None))
    unmoved = {n for n in theta if torch.equal(inner.params[n], theta[n])}
    assert unmoved == {"classify.weight", "classify.bias"}


def test_rotation_adapts_trunk_and_rotation_head_only():
    model = small_model(objective="rotation", hidden=0)
    views = Views(small_task().images, torch.tensor([1, 3]))
    theta = dict(model.named_parameters())
    inner = inner_loop(model, theta, lambda step: views, mt3.Adaptation("rotation", steps=2, lr=0.1, clip=None))

    def part(name: str) -> str:
        return ".".join(name.split(".")[:3]) if name.startswith(("backbone", "heads.branch")) else name.split(".")[0]

    moved = {part(n) for n in theta if not torch.equal(inner.params[n], theta[n])}
    early = {f"backbone.early.{n}" for n in ("stem", "stage1", "stage2")}
    assert moved == {*early, "heads.branch.stage", "heads.branch.norm", "heads"}
    unmoved = {part(n) for n in theta} - moved
    assert unmoved == {"backbone.late.stage", "backbone.late.norm", "classify"}


def test_targets_carry_no_gradient():
    """A target that moved with theta would change the gradient: compare with targets that are constants."""
    model, task = small_model(), small_task()
    assert task.views is not None
    theta = dict(model.named_parameters())
    z = call(model, theta, task.views.images).heads["z"]
    constants = [z.detach().clone()] * 2
    got = meta_gradient(model, task, inner_lr=0.2, inner_clip=None, gamma=0.3)
    want = by_hand(model, task, steps=1, lr=0.2, gamma=0.3, norm=None, frozen=constants)
    assert relative_error(got, want) < 1e-9


def test_fresh_views_meet_targets_of_the_meta_model():
    """Two steps on different views, by hand: the second step's targets come from theta on the second views."""
    model = small_model()
    generator = torch.Generator().manual_seed(5)
    sets = [torch.rand(4, 3, 8, 8, generator=generator, dtype=torch.float64) for _ in range(2)]
    theta = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    adaptation = mt3.Adaptation(steps=2, lr=0.3, clip=None)
    got = inner_loop(model, theta, [Views(v) for v in sets].__getitem__, adaptation).params
    phi = dict(theta)
    for views in sets:
        target = reference.network(theta, views, GROUPS, torch.relu)[1].detach()
        loss = reference.byol(reference.network(phi, views, GROUPS, torch.relu)[2], target)
        names = [n for n in theta if not n.startswith("classify")]
        gradients = torch.autograd.grad(loss, [phi[n] for n in names])
        phi = phi | {n: phi[n] - 0.3 * g for n, g in zip(names, gradients, strict=True)}
    assert relative_error(got, phi) < 1e-12


def test_inner_step_descends_by_lr_times_clipped_gradient():
    w = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    b = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    params = {"w": w, "b": b, "other": torch.ones(1)}
    new, norm = inner_step((w**2).sum() / 2 + 12 * b.sum(), params, ["w", "b"], mt3.Adaptation(lr=0.5, clip=6.5))
    assert norm.item() == pytest.approx(13.0)  # |(3, 4, 12)|
    np.testing.assert_allclose(new["w"].detach(), [3 - 0.5 * 1.5, 4 - 0.5 * 2.0])
    np.testing.assert_allclose(new["b"].detach(), [1 - 0.5 * 6.0])
    assert new["other"] is params["other"]


def test_one_norm_clips_all_or_each_its_own():
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([12.0]), torch.tensor([0.0])]
    for_all, total = clip_gradients(gradients, 6.5)
    assert total.item() == 13.0
    assert [g.tolist() for g in for_all] == [[1.5, 2.0], [6.0], [0.0]]
    each, _ = clip_gradients(gradients, 6.0, each=True)
    assert [g.tolist() for g in each] == [[3.0, 4.0], [6.0], [0.0]]
    assert clip_gradients(gradients, None)[0][1] is gradients[1]
