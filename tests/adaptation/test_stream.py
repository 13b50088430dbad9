"""Adapting along a stream: TENT against its published algorithm, states, resets and refusals."""

import copy

import pytest
import torch
from torch import Tensor, nn

import mt3
from rivals import Net, make_images, make_net


def published_tent(net: Net, images: Tensor, batch: int, lr: float, momentum: float, steps: int = 1) -> list[Tensor]:
    """TENT as its paper has it, on the network itself: the logits of each batch come from the pass before the step."""
    net = copy.deepcopy(net).train()
    net.requires_grad_(False)
    weights = []
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = None
        if isinstance(module, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
            weights += [module.weight.requires_grad_(), module.bias.requires_grad_()]
    optimizer = torch.optim.SGD(weights, lr=lr, momentum=momentum)
    found = []
    for start in range(0, len(images), batch):
        for _ in range(steps):
            logits = net(images[start : start + batch])
            p = logits.softmax(1)
            loss = -(p * logits.log_softmax(1)).sum(1).mean(0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.append(logits.detach())
    return found


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("norm", ["batch", "group", "layer"])
def test_tent_is_the_published_algorithm(norm, momentum):
    net, images = make_net(norm), make_images(30)
    want = torch.cat(published_tent(net, images, 8, 0.05, momentum))
    for size in (30, 16, 8):  # whatever the calls, for the same groups
        adapter = mt3.Adapter(net, "tent", carry="stream", lr=0.05, batch=8, momentum=momentum)
        got = torch.cat([adapter(part) for part in torch.split(images, size)])
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    still = mt3.Adapter(net, "tent", carry="stream", lr=0.0, batch=8)(images)
    assert (got - still).abs().max() > 0.05


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_tent_works_with_a_batch_of_one(norm):
    net, images = make_net(norm), make_images(6)
    want = torch.cat(published_tent(net, images, 1, 0.05, 0.9))
    got = mt3.Adapter(net, "tent", carry="stream", lr=0.05, batch=1)(images)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
