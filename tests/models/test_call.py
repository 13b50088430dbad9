"""Networks with other parameters than their own: a stack against its members, twins, threads."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

import mt3
from mt3.models.call import Params, bind, call, parameters_of, stack_params
from mt3.objectives.objective import Outputs
from small import small_model

STACK, IMAGES = 3, 4


def stacked_inputs(model: mt3.MT3Model, size: int) -> tuple[Params, Tensor]:
    """Parameters that differ from member to member, and images of their own."""
    generator = torch.Generator().manual_seed(4)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    params = {n: (p.detach() + 0.2 * draw(STACK, *p.shape) - 0.1) for n, p in model.named_parameters()}
    return {n: p.requires_grad_() for n, p in params.items()}, draw(STACK, IMAGES, 3, size, size).requires_grad_()


def derivatives(outputs: Outputs, params: Params, images: Tensor) -> list[Tensor]:
    """The gradients of a sum over all outputs, and the gradients of their squares."""
    inputs = [*params.values(), images]
    found = [outputs.logits, *outputs.heads.values()]
    total = sum(((t + i) ** 3).sum() for i, t in enumerate(found, 1))
    first = torch.autograd.grad(total, inputs, create_graph=True, allow_unused=True)
    used = [g for g in first if g is not None]
    second = torch.autograd.grad(sum((g**2).sum() for g in used) / len(used), inputs, allow_unused=True)
    return [torch.zeros(()) if g is None else g.detach() / (1 + g.detach().abs().max()) for g in (*first, *second)]


@pytest.mark.parametrize("heads", [True, False])
@pytest.mark.parametrize("size", [8, 11])
@pytest.mark.parametrize(
    ("variant", "objective", "hidden"),
    [("paper", "byol", 6), ("official", "byol", 6), ("paper", "rotation", 0), ("official", "rotation", 6)],
)
def test_a_stack_equals_the_loop_over_its_members(variant, objective, hidden, size, heads):
    model = small_model(variant, objective, hidden)
    one_by_one = copy.deepcopy(model)
    assert model.stacks
    one_by_one.stacks = False
    params, images = stacked_inputs(model, size)
    together, alone = (call(m, params, images, heads) for m in (model, one_by_one))
    assert together.logits.shape == (STACK, IMAGES, 3)
    names = {"byol": ["z", "r"], "rotation": ["turn"]}[objective] if heads else []
    assert list(together.heads) == list(alone.heads) == names
    tight = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(together.logits, alone.logits, **tight)
    for name in names:
        assert together.heads[name].shape[:2] == (STACK, IMAGES)
        torch.testing.assert_close(together.heads[name], alone.heads[name], **tight)
    for a, b in zip(*(derivatives(outputs, params, images) for outputs in (together, alone)), strict=True):
        torch.testing.assert_close(a, b, **tight)
    for i in range(STACK):
        own = call(model, {n: p[i] for n, p in params.items()}, images[i], heads)
        torch.testing.assert_close(own.logits, together.logits[i], **tight)


def test_other_layers_are_called_one_by_one():
    """A layer that is not ours knows nothing of stacks."""
    model = small_model()
    model.classify = nn.Linear(6, 3).double()  # type: ignore[assignment]
    model.stacks = False
    params, images = stacked_inputs(model, 8)
    outputs = call(model, params, images)
    for i in range(STACK):
        own = call(model, {n: p[i] for n, p in params.items()}, images[i])
        assert torch.equal(own.logits, outputs.logits[i])
        assert all(torch.equal(own.heads[n], outputs.heads[n][i]) for n in own.heads)


def test_a_models_own_parameters_give_its_own_outputs():
    model, images = small_model(), torch.rand(2, 3, 8, 8, dtype=torch.float64)
    own = call(model, parameters_of(model), images)
    assert torch.equal(own.logits, model(images))
    assert all(torch.equal(own.heads[n], t) for n, t in model.outputs(images).heads.items())
    assert torch.equal(call(model, {}, images).logits, own.logits)  # what is not given stays
    stack = call(model, stack_params(parameters_of(model), 2), torch.stack([images, images]))
    torch.testing.assert_close(stack.logits, torch.stack([own.logits, own.logits]), rtol=1e-12, atol=1e-12)


class Tied(nn.Module):
    """One matrix under two names, one layer in two places, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.again = self.first
        self.missing = None
        self.register_buffer("scale", torch.tensor(2.0))
        self.register_parameter("none", None)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.again(self.second(self.first(x))) * self.scale
        return out


def test_a_twin_leaves_the_model_as_it_was():
    model = Tied()
    before = {name: (p, p.detach().clone()) for name, p in model.named_parameters()}
    modules, x = dict(model.named_modules()), torch.rand(2, 4)
    answer = model(x)
    params = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    twin = bind(model, params)
    assert type(twin) is Tied
    assert not torch.equal(twin(x), answer)
    assert torch.equal(model(x), answer)
    assert {name: id(m) for name, m in model.named_modules()} == {name: id(m) for name, m in modules.items()}
    assert not {id(m) for m in twin.modules()} & {id(m) for m in modules.values()}
    for name, p in model.named_parameters():
        assert p is before[name][0]
        assert torch.equal(p, before[name][1])


def test_tied_weights_stay_tied():
    model = Tied()
    params = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    assert "second.weight" not in params  # named once
    twin, x = bind(model, params), torch.rand(2, 4)
    assert twin.second.weight is twin.first.weight is params["first.weight"]
    assert twin.again is twin.first
    weight, bias, other = (params[name] for name in ("first.weight", "first.bias", "second.bias"))
    step = ((x @ weight.T + bias) @ weight.T + other) @ weight.T + bias
    torch.testing.assert_close(twin(x), 2 * step)


def test_a_twin_shares_the_buffers_and_what_is_not_replaced():
    model = Tied()
    twin = bind(model, {"first.bias": torch.zeros(4)})
    assert twin.scale is model.scale
    assert twin.first.weight is model.first.weight
    assert twin.first.bias is not model.first.bias
    assert twin.missing is None
    assert twin.none is None


def test_a_gradient_flows_to_the_parameters_that_were_given():
    model, x = Tied(), torch.rand(2, 4)
    params = {name: torch.randn_like(p).requires_grad_() for name, p in model.named_parameters()}
    bind(model, params)(x).sum().backward()
    assert all(p.grad is not None for p in params.values())
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("stacked", [False, True])
def test_threads_that_call_one_model_get_their_own_answers(stacked):
    """Eight threads at a time, each with parameters of its own, again and again."""
    model, threads = small_model(), 8
    images = torch.rand(2, 3, 8, 8, dtype=torch.float64)
    images = images.expand(2, -1, -1, -1, -1) if stacked else images
    given = []
    for number in range(threads):
        torch.manual_seed(number)
        own = {n: p.detach() + 0.1 * torch.randn_like(p) for n, p in model.named_parameters()}
        given.append(stack_params(own, 2) if stacked else own)
    with torch.no_grad():
        wanted = [call(model, params, images).logits for params in given]
    assert len({float(logits.sum()) for logits in wanted}) == threads
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    barrier = threading.Barrier(threads, timeout=20)

    def work(number: int) -> list[Tensor]:
        barrier.wait()
        with torch.no_grad():
            return [call(model, given[number], images).logits for _ in range(10)]

    with ThreadPoolExecutor(threads) as pool:
        for found, logits in zip(pool.map(work, range(threads)), wanted, strict=True):
            for answer in found:
                torch.testing.assert_close(answer, logits, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
