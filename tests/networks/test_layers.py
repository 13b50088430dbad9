"""The written-out derivatives against PyTorch's own layers and against finite differences."""

import pytest
import torch
from torch import nn
from torch.func import functional_call

from mt3.networks.layers import Conv2d, GroupNorm


def pair(kind: str) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """Our layer, PyTorch's with the same weights, and an input, in float64."""
    torch.manual_seed(0)
    if kind == "norm":
        ours, theirs = GroupNorm(3, 6, eps=1e-3), nn.GroupNorm(3, 6, eps=1e-3)
        for p in ours.parameters():
            nn.init.normal_(p)
    else:
        stride, bias = {"conv": (1, True), "strided": (2, True), "without bias": (1, False)}[kind]
        ours, theirs = Conv2d(6, 4, 3, stride, 1, bias=bias), nn.Conv2d(6, 4, 3, stride, 1, bias=bias)
    theirs.load_state_dict(ours.state_dict())
    return ours.double(), theirs.double(), torch.randn(2, 6, 6, 4, dtype=torch.float64, requires_grad=True)


KINDS = ["conv", "strided", "without bias", "norm"]


@pytest.mark.parametrize("kind", KINDS)
def test_derivatives_are_those_of_finite_differences(kind):
    ours, _, x = pair(kind)
    names = [name for name, _ in ours.named_parameters()]

    def apply(x, *parameters):
        return functional_call(ours, dict(zip(names, parameters, strict=True)), (x,))

    assert torch.autograd.gradcheck(apply, (x, *ours.parameters()))
    assert torch.autograd.gradgradcheck(apply, (x, *ours.parameters()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_values_and_second_derivatives_are_pytorchs(kind, memory_format):
    results = []
    for layer, x in ((pair(kind)[i], pair(kind)[2].detach().contiguous(memory_format=memory_format)) for i in (0, 1)):
        x.requires_grad_()
        y = layer(x)
        inputs = (x, *layer.parameters())
        gradients = torch.autograd.grad((y**3).sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in gradients), inputs)
        results.append((y, *gradients, *second))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_is_asked_for_is_differentiated(kind):
    """A frozen weight, or an input that needs no gradient, gets none, and the others' second derivatives stay."""
    for frozen in range(2):
        results = []
        for i in (0, 1):
            layer, x = pair(kind)[i], pair(kind)[2]
            tensors = [x, layer.weight]
            tensors[frozen].requires_grad_(False)
            (gradient,) = torch.autograd.grad((layer(x) ** 3).sum(), tensors[1 - frozen], create_graph=True)
            results.append(torch.autograd.grad((gradient**2).sum(), tensors[1 - frozen])[0])
        torch.testing.assert_close(*results, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_third_derivative_is_refused(kind):
    ours, _, x = pair(kind)
    (gradient,) = torch.autograd.grad((ours(x) ** 3).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="no third derivatives"):
        torch.autograd.grad((gradient**2).sum(), x, create_graph=True)


@pytest.mark.parametrize("kind", KINDS)
def test_under_autocast_derivatives_stay_close_and_leave_no_trace(kind):
    layer, _, x = pair(kind)
    layer, x = layer.float(), x.detach().float().requires_grad_()

    def derivatives(enabled: bool) -> list[torch.Tensor]:
        inputs = (x, *layer.parameters())
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y = layer(x)
        assert y.dtype == (torch.bfloat16 if enabled and kind != "norm" else torch.float32)
        gradients = torch.autograd.grad((y.float() ** 3).sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in gradients), inputs)
        return [y.detach(), *(g.detach() for g in gradients), *second]

    exact, rounded, again = derivatives(False), derivatives(True), derivatives(False)
    for a, b in zip(exact, rounded, strict=True):
        assert (a - b).norm() < 0.05 * a.norm()
    assert all(torch.equal(a, b) for a, b in zip(exact, again, strict=True))
