"""What the ablations change: which layers adapt, and where the inner targets come from, against plain formulas."""

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mt3
import reference
from mt3.adaptation.adapter import Adapter, inner_loop
from mt3.config.config import Config, make_config
from mt3.data import Dataset, load_digits
from mt3.models.store import load_checkpoint, tensors_hash
from mt3.objectives.selfsup import Views
from mt3.studies.ablations import ABLATIONS, TRAINED, label, resolve_ablations
from mt3.support.errors import InputError
from mt3.training.loop import apply_gradient, gradient_of_step, train
from mt3.training.losses import Task, draw_task, meta_loss
from mt3.training.state import State, make_state

GROUPS = 2
# written out by hand: the network of 8 layers has one block in each stage
BLOCK = ("norm1.weight", "norm1.bias", "conv1.weight", "conv1.bias", "norm2.weight", "norm2.bias")
STAGE3 = [f"stage3.0.{n}" for n in (*BLOCK, "conv2.weight", "conv2.bias")]
HEADS = [f"{n}.{p}" for n in ("hidden", "project", "predict.0", "predict.2") for p in ("weight", "bias")]
LAST = {*STAGE3, "norm.weight", "norm.bias", *HEADS}
NORMS = {f"stage{s}.0.norm{i}.{p}" for s in (1, 2, 3) for i in (1, 2) for p in ("weight", "bias")}
BYOL_NORMS = NORMS | {"norm.weight", "norm.bias"}
ROTATION_NORMS = {n for n in NORMS if not n.startswith("stage3")} | {
    f"{n}.{p}" for n in ("rotate_stage.0.norm1", "rotate_stage.0.norm2", "rotate_norm") for p in ("weight", "bias")
}


def make_model(dtype: torch.dtype = torch.float64, **more) -> mt3.MT3Model:
    model = mt3.MT3Model(3, depth=8, width=4, groups=GROUPS, hidden=6, projection=5, adapt_views=3, **more).to(dtype)
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
    model, task = make_model(adapt_layers=layers), make_task()
    got = meta_gradient(state_of(model), task, inner_steps=steps, inner_clip=clip)
    want = by_hand(model, task, steps=steps, norm=clip, adapted=sorted(names))
    assert relative_error(got, want) < 1e-9
    assert relative_error(got, by_hand(model, task, steps=steps, norm=clip)) > 1e-4  # as all layers would


@pytest.mark.parametrize(
    ("selfsup", "layers", "names"),
    [("byol", "norm", BYOL_NORMS), ("byol", "last", LAST), ("rotation", "norm", ROTATION_NORMS)],
)
def test_exactly_these_parameters_adapt(selfsup, layers, names):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2, 3, 32, 32), generator=generator, dtype=torch.uint8)
    model = make_model(torch.float32, selfsup=selfsup, adapt_layers=layers)
    assert set(model.adapted_names()) == names
    theta = dict(model.named_parameters())
    for adapted in Adapter(model, steps=2, lr=0.5).adapt(images):
        assert {n for n in theta if not torch.equal(adapted.params[n], theta[n])} == names
    other = make_model(torch.float32, selfsup=selfsup)
    assert set(other.adapted_names()) > names
    assert torch.equal(Adapter(other, adapt_layers=layers)(images), Adapter(model)(images))
    assert not torch.equal(Adapter(other)(images), Adapter(model)(images))
    assert torch.equal(Adapter(model, adapt_layers="all")(images), Adapter(other)(images))


def test_the_choice_of_layers_is_saved_and_older_models_load(tmp_path):
    make_model(torch.float32, adapt_layers="norm").save_pretrained(tmp_path)
    assert mt3.load(tmp_path).adapt_layers == "norm"
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    assert config.pop("adapt_layers") == "norm"
    path.write_text(json.dumps(config))  # as it was before there was a choice
    old = mt3.load(tmp_path)
    assert (old.adapt_layers, len(old.adapted_names())) == ("all", len(list(old.parameters())) - 2)


def test_layers_that_cannot_help_are_refused():
    for refused in (
        lambda: make_model(selfsup="rotation", adapt_layers="last"),
        lambda: Adapter(make_model(selfsup="rotation"), adapt_layers="last"),
        lambda: make_config("mt3", "digits", "paper", overrides={"selfsup": "rotation", "adapt_layers": "last"}),
    ):
        with pytest.raises(InputError, match=r"no class depends on.*adapt all or norm"):
            refused()
    with pytest.raises(InputError, match="Unknown choice of adapted layers 'first': expected one of all, norm, last"):
        Adapter(make_model(), adapt_layers="first")
    with pytest.raises(InputError, match="Unknown adapt_layers 'first': expected one of all, norm, last"):
        make_config("mt3", "digits", "paper", overrides={"adapt_layers": "first"})
    with pytest.raises(InputError, match="Expected the byol task for inner_target=ema, got rotation"):
        make_config("mt3", "digits", "paper", overrides={"selfsup": "rotation", "inner_target": "ema"})


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


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits()


def small_config(**fields) -> Config:
    small = {"depth": 8, "width": 4, "groups": 2, "hidden": 8, "projection": 6, "epochs": 50, "checkpoint_every": 2}
    return make_config("mt3", "digits", "paper", 0, small | {"tasks": 2, "task_size": 4} | fields)


def test_the_average_is_of_the_meta_model(digits):
    config = small_config(inner_target="ema", ema_momentum=0.9)
    state = make_state(config, digits, torch.device("cpu"))
    assert state.ema is not None
    images = torch.from_numpy(digits.train_images).permute(0, 3, 1, 2)
    want = {n: p.detach().clone() for n, p in state.model.named_parameters()}
    for step in range(4):
        gradient_of_step(state, images, torch.from_numpy(digits.train_labels), config, step, 10, log=False)
        apply_gradient(state, config, step, 100, 10)
        want = {n: 0.9 * want[n] + 0.1 * p.detach() for n, p in state.model.named_parameters()}
    for name, value in state.ema.items():
        torch.testing.assert_close(value, want[name])
    moved = [n for n, p in state.model.named_parameters() if not torch.equal(p, state.ema[n])]
    assert "stem.weight" in moved
    assert make_state(small_config(), digits, torch.device("cpu")).ema is None


def test_resumed_training_with_the_average_is_bit_identical(tmp_path, digits):
    config = small_config(inner_target="ema", ema_momentum=0.5)
    train(config, digits, tmp_path / "whole", max_steps=5)
    whole = load_checkpoint(tmp_path / "whole")
    for stop in (1, 4):
        out = tmp_path / f"cut{stop}"
        train(config, digits, out, max_steps=stop)
        train(config, digits, out, max_steps=5, resume=True)
        cut = load_checkpoint(out)
        assert whole is not None
        assert cut is not None
        assert tensors_hash(cut[1]) == tensors_hash(whole[1])
        assert any(name.startswith("ema.") for name in cut[1])
        assert (out / "model.safetensors").read_bytes() == (tmp_path / "whole" / "model.safetensors").read_bytes()
    train(small_config(), digits, tmp_path / "plain", max_steps=5)
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
    inner = inner_loop(model, theta, lambda step: views, model.adapted_names(), 1, 0.1, second_order=True)
    loss = F.cross_entropy(model(views.images, full=True).rotation, views.quarters)
    names = model.adapted_names()
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


def test_evaluations_from_before_the_choice_of_layers_are_kept(tmp_path, digits):
    from mt3.evaluation.evaluate import TestImages, evaluate

    model = mt3.MT3Model(10, depth=8, width=4, hidden=8, projection=6, adapt_views=1)
    words = (model, TestImages(digits), ["contrast"], [5], tmp_path / "r.json")
    result = evaluate(*words, limit=2)
    assert result["protocol"].pop("adapt_layers") == "all"
    (tmp_path / "r.json").write_text(json.dumps(result))
    assert evaluate(*words, limit=2) == result
    with pytest.raises(InputError, match=r"another protocol \(ablation, adapt_layers differ\)"):
        evaluate(*words, limit=2, adapt_layers="norm")
    other = evaluate(*words[:4], tmp_path / "other.json", limit=2, adapt_layers="norm", lr=5.0)
    assert other["protocol"]["adapt_layers"] == "norm"
    with np.load(tmp_path / "other.npz") as file:
        image = torch.from_numpy(mt3.corruptions.apply(digits.test_images[:1], "contrast", 5)).permute(0, 3, 1, 2)
        want = Adapter(model, lr=5.0, adapt_layers="norm")(image).softmax(1)[0]
        np.testing.assert_allclose(file["contrast-5/after"][0], want, atol=1e-5)
