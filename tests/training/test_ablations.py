"""What the ablations change: which layers adapt, and where the inner targets come from, against plain formulas."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mt3
import reference
from mt3.adaptation.adapter import Adapter
from mt3.adaptation.step import inner_loop
from mt3.config.adaptation import Adaptation
from mt3.config.config import Config, make_config
from mt3.models.store import load_checkpoint, tensors_hash
from mt3.objectives.objective import Views
from mt3.studies.ablations import ABLATIONS, TRAINED, label, resolve_ablations
from mt3.support.errors import InputError
from mt3.training.loop import apply_gradient, gradient_of_step
from mt3.training.losses import meta_loss
from mt3.training.state import State, build_model, make_state
from mt3.training.tasks import Task, draw_task
from trainings import small_config, train_small

GROUPS = 2
# written out by hand: the network of 8 layers has one block in each stage
BLOCK = ("norm1.weight", "norm1.bias", "conv1.weight", "conv1.bias", "norm2.weight", "norm2.bias")
STAGE3 = [f"backbone.late.stage.0.{n}" for n in (*BLOCK, "conv2.weight", "conv2.bias")]
HEADS = [
    f"{n}.{p}" for n in ("hidden", "heads.project", "heads.predict.0", "heads.predict.2") for p in ("weight", "bias")
]
LAST = {*STAGE3, "backbone.late.norm.weight", "backbone.late.norm.bias", *HEADS}
STAGES = ("backbone.early.stage1", "backbone.early.stage2", "backbone.late.stage")
NORMS = {f"{s}.0.norm{i}.{p}" for s in STAGES for i in (1, 2) for p in ("weight", "bias")}
BYOL_NORMS = NORMS | {"backbone.late.norm.weight", "backbone.late.norm.bias"}
ROTATION_NORMS = {n for n in NORMS if not n.startswith("backbone.late")} | {
    f"heads.branch.{n}.{p}" for n in ("stage.0.norm1", "stage.0.norm2", "norm") for p in ("weight", "bias")
}


def make_model(dtype: torch.dtype = torch.float64, objective: str = "byol", layers: str = "all") -> mt3.MT3Model:
    adaptation = Adaptation(objective, views=3, layers=layers)
    model = mt3.MT3Model(f"resnet8x4g{GROUPS}", 3, objective, 6, 5, adaptation=adaptation).to(dtype)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():  # biases and norms away from their special initial values
            p.copy_(0.3 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


def make_task() -> Task:
    images = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return Task(images[:2], torch.tensor([0, 2]), Views(images[2:]))


def meta_gradient(state: State, task: Task, **fields) -> dict[str, Tensor]:
    config = make_config("mt3", "digits", "paper", overrides={"inner_lr": 0.2, "gamma": 0.3} | fields)
    state.model.zero_grad()
    meta_loss(state, task, config, log=False).total.backward()
    return {n: p.grad.clone() for n, p in state.model.named_parameters() if p.grad is not None}


def by_hand(model: mt3.MT3Model, task: Task, **settings) -> dict[str, Tensor]:
    theta = {n: p.detach().clone().requires_grad_() for n, p in model.named_parameters()}
    assert task.views is not None
    loss = reference.outer_loss(
        theta, task.images, task.labels, task.views.images, groups=GROUPS, lr=0.2, gamma=0.3, **settings
    )
    return dict(zip(theta, torch.autograd.grad(loss, list(theta.values())), strict=True))


def relative_error(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    assert got.keys() == want.keys()
    a, b = (torch.cat([g[n].flatten() for n in want]) for g in (got, want))
    return ((a - b).norm() / b.norm()).item()


def state_of(model: mt3.MT3Model, ema: dict[str, Tensor] | None = None) -> State:
    return State(model, torch.optim.SGD(model.parameters(), lr=0.1), ema)


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize(("layers", "names"), [("norm", BYOL_NORMS), ("last", LAST)])
def test_meta_gradient_with_some_layers_equals_a_plain_unroll(steps, clip, layers, names):
    model, task = make_model(), make_task()
    got = meta_gradient(state_of(model), task, inner_steps=steps, inner_clip=clip, layers=layers)
    want = by_hand(model, task, steps=steps, norm=clip, adapted=sorted(names))
    assert relative_error(got, want) < 1e-9
    assert relative_error(got, by_hand(model, task, steps=steps, norm=clip)) > 1e-4  # as all layers would


@pytest.mark.parametrize(
    ("objective", "layers", "names"),
    [("byol", "norm", BYOL_NORMS), ("byol", "last", LAST), ("rotation", "norm", ROTATION_NORMS)],
)
def test_exactly_these_parameters_adapt(objective, layers, names):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, 3, 32, 32), generator=generator, dtype=torch.uint8)
    model = make_model(torch.float32, objective=objective, layers=layers)
    assert set(model.adapted_names(layers)) == names
    theta = dict(model.named_parameters())
    for adapted in Adapter(model, steps=2, lr=0.5).adapt(images):
        assert {n for n in theta if not torch.equal(adapted.params[n], theta[n])} == names
    other = make_model(torch.float32, objective=objective)
    assert set(other.adapted_names("all")) > names
    assert torch.equal(Adapter(other, layers=layers)(images), Adapter(model)(images))
    assert not torch.equal(Adapter(other)(images), Adapter(model)(images))
    assert torch.equal(Adapter(model, layers="all")(images), Adapter(other)(images))


def test_the_choice_of_layers_is_saved(tmp_path):
    make_model(torch.float32, layers="norm").save_pretrained(tmp_path)
    assert mt3.load(tmp_path).adaptation.layers == "norm"
    other = make_model(torch.float32)
    assert len(other.adapted_names(other.adaptation.layers)) == len(list(other.parameters())) - 2


def test_layers_that_cannot_help_are_refused(digits):
    for refused in (
        lambda: make_model(objective="rotation", layers="last"),
        lambda: Adapter(make_model(objective="rotation"), layers="last"),
        lambda: build_model(small_config(objective="rotation", layers="last"), digits),
    ):
        with pytest.raises(InputError, match=r"no class depends on.*adapt all or norm"):
            refused()
    with pytest.raises(InputError, match="Unknown layers 'first': expected one of all, norm, last"):
        Adapter(make_model(), layers="first")
    with pytest.raises(InputError, match="Unknown layers 'first': expected one of all, norm, last"):
        small_config(layers="first")
    with pytest.raises(InputError, match="The objective rotation has no targets, which inner_target=ema would give"):
        make_state(small_config(objective="rotation", inner_target="ema"), digits, torch.device("cpu"))


@pytest.mark.parametrize("steps", [1, 3])
def test_inner_targets_from_the_moving_average(steps):
    """The inner targets come from the average's weights, those of the outer loss from the meta-model, all constants."""
    model, task = make_model(), make_task()
    assert task.views is not None
    generator = torch.Generator().manual_seed(4)
    ema = {
        n: p.detach() + 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
        for n, p in model.named_parameters()
    }
    got = meta_gradient(state_of(model, ema), task, inner_steps=steps, inner_clip=None, inner_target="ema")
    theta = {n: p.detach() for n, p in model.named_parameters()}
    inside, outside = (reference.network(p, task.views.images, GROUPS, torch.relu)[1] for p in (ema, theta))
    want = by_hand(model, task, steps=steps, norm=None, frozen=[inside] * steps + [outside])
    assert relative_error(got, want) < 1e-9
    assert relative_error(got, by_hand(model, task, steps=steps, norm=None)) > 1e-3  # as the meta-model's would


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_the_moving_average_gives_the_inner_targets_of_either_variant(digits, variant):
    """The authors' code has its own targets inside, those of the step before; the ablation replaces them."""
    config = small_config(inner_target="ema", variant=variant, inner_steps=2, inner_clip=None)
    state = make_state(config, digits, torch.device("cpu"))
    images = torch.from_numpy(digits.train_images[:4]).permute(0, 3, 1, 2)
    task = draw_task(images, torch.from_numpy(digits.train_labels[:4]), config, torch.Generator().manual_seed(0))
    assert task.views is not None
    assert state.ema is not None
    with torch.no_grad():
        for p in state.ema.values():
            p.add_(0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1)))
        z = reference.network(state.ema, task.views.images, GROUPS, torch.relu)[1]
        r = reference.network(dict(state.model.named_parameters()), task.views.images, GROUPS, torch.relu)[2]
        want = reference.byol(r, z)
    assert meta_loss(state, task, config, log=False).metrics["inner_loss"].item() == pytest.approx(want.item())


def test_the_average_is_of_the_meta_model(digits, monkeypatch):
    monkeypatch.setattr("mt3.training.loop.EMA_MOMENTUM", 0.9)
    config = small_config(inner_target="ema")
    state = make_state(config, digits, torch.device("cpu"))
    assert state.ema is not None
    images = torch.from_numpy(digits.train_images).permute(0, 3, 1, 2)
    want = {n: p.detach().clone() for n, p in state.model.named_parameters()}
    for step in range(4):
        gradient_of_step(state, images, torch.from_numpy(digits.train_labels), config, step, log=False)
        apply_gradient(state, config, step, 100, 10)
        want = {n: 0.9 * want[n] + 0.1 * p.detach() for n, p in state.model.named_parameters()}
    for name, value in state.ema.items():
        torch.testing.assert_close(value, want[name])
    moved = [n for n, p in state.model.named_parameters() if not torch.equal(p, state.ema[n])]
    assert "backbone.early.stem.weight" in moved
    assert make_state(small_config(), digits, torch.device("cpu")).ema is None


def test_resumed_training_with_the_average_is_bit_identical(tmp_path, digits, monkeypatch):
    monkeypatch.setattr("mt3.training.loop.EMA_MOMENTUM", 0.5)
    config = small_config(inner_target="ema")
    train_small(config, digits, tmp_path / "whole", max_steps=5, checkpoint_every=2)
    whole = load_checkpoint(tmp_path / "whole")
    for stop in (1, 4):
        out = tmp_path / f"cut{stop}"
        train_small(config, digits, out, max_steps=stop, checkpoint_every=2)
        train_small(config, digits, out, max_steps=5, resume=True, checkpoint_every=2)
        cut = load_checkpoint(out)
        assert whole is not None
        assert cut is not None
        assert tensors_hash(cut[1]) == tensors_hash(whole[1])
        assert any(name.startswith("ema.") for name in cut[1])
        assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    train_small(small_config(), digits, tmp_path / "plain", max_steps=5)
    assert (tmp_path / "plain" / "model.safetensors").read_bytes() != (out / "model.safetensors").read_bytes()


def test_meta_trained_rotation_steps_on_the_rotation_loss(digits):
    config = small_config(**TRAINED["rotation"], inner_clip=None)
    state = make_state(config, digits, torch.device("cpu"))
    model = state.model
    assert model.hidden is not None  # the head of MT3
    images = torch.from_numpy(digits.train_images[:4]).permute(0, 3, 1, 2)
    task = draw_task(images, torch.from_numpy(digits.train_labels[:4]), config, torch.Generator().manual_seed(0))
    views = task.views
    assert views is not None
    theta = dict(model.named_parameters())
    inner = inner_loop(model, theta, lambda step: views, config.inner, second_order=True)
    assert (config.inner.steps, config.inner.lr, config.inner.clip) == (1, 0.1, None)
    loss = F.cross_entropy(model.outputs(views.images).heads["turn"], views.labels)
    names = model.adapted_names("all")
    for name, g in zip(names, torch.autograd.grad(loss, [theta[n] for n in names]), strict=True):
        torch.testing.assert_close(inner.params[name], theta[name] - 0.1 * g)
    assert meta_loss(state, task, config, log=False).metrics["inner_loss"].item() == pytest.approx(loss.item())


def test_names_of_ablations():
    assert resolve_ablations(["all"]) == list(ABLATIONS)
    assert resolve_ablations(["lr", "no-b"]) == ["no-b", "lr"]
    assert label("no-b") == "no-b (batch_aug=false)"
    with pytest.raises(InputError, match=r"Unknown ablation 'no-c' \(did you mean 'no-b'\?\): expected one of no-b"):
        resolve_ablations(["no-c"])
    for fields in TRAINED.values():  # each changes what it says, of the paper's MT3
        config = make_config("mt3", "cifar10", "paper", overrides=fields)
        assert all(getattr(Config(), name) != getattr(config, name) == value for name, value in fields.items())
