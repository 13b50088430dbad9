"""Hand-written versions of the network and of the algorithms, for comparing with the package.

Nothing here uses the package's network, loss, clipping or inner step: parameters come as a dict of tensors.
"""

import torch
from torch import Tensor

Params = dict[str, Tensor]


def group_norm(x: Tensor, weight: Tensor, bias: Tensor, groups: int) -> Tensor:
    n, c, h, w = x.shape
    grouped = x.reshape(n, groups, -1)
    mean = grouped.mean(2, keepdim=True)
    variance = ((grouped - mean) ** 2).mean(2, keepdim=True)
    normal = ((grouped - mean) / torch.sqrt(variance + 1e-3)).reshape(n, c, h, w)
    return normal * weight.reshape(1, c, 1, 1) + bias.reshape(1, c, 1, 1)


def conv(x: Tensor, weight: Tensor, bias: Tensor | None, stride: int = 1) -> Tensor:
    """A 3x3 convolution as a sum of nine shifted products."""
    n, _, h, w = x.shape
    padded = torch.zeros(n, x.shape[1], h + 2, w + 2, dtype=x.dtype)
    padded[:, :, 1:-1, 1:-1] = x
    out = sum(
        torch.einsum("nchw,oc->nohw", padded[:, :, i : i + h : stride, j : j + w : stride], weight[:, :, i, j])
        for i in range(3)
        for j in range(3)
    )
    assert isinstance(out, Tensor)
    return out if bias is None else out + bias.reshape(1, -1, 1, 1)


def linear(p: Params, name: str, x: Tensor) -> Tensor:
    out = x @ p[f"{name}.weight"].T
    return out + p[f"{name}.bias"] if f"{name}.bias" in p else out


def network(p: Params, x: Tensor, groups: int, activation) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, projection and prediction of an MT3 network of depth 8, the paper's or the authors'."""

    def block(x: Tensor, name: str, stride: int, first: bool) -> Tensor:
        act = activation(group_norm(x, p[f"{name}.norm1.weight"], p[f"{name}.norm1.bias"], groups))
        shortcut = act if first else x
        if stride == 2:
            pooled = (
                shortcut[:, :, ::2, ::2]
                + shortcut[:, :, 1::2, ::2]
                + shortcut[:, :, ::2, 1::2]
                + shortcut[:, :, 1::2, 1::2]
            ) / 4
            zeros = torch.zeros_like(pooled)[:, : pooled.shape[1] // 2]
            shortcut = torch.cat([zeros, pooled, zeros], dim=1)
        h = conv(act, p[f"{name}.conv1.weight"], p[f"{name}.conv1.bias"], stride)
        h = activation(group_norm(h, p[f"{name}.norm2.weight"], p[f"{name}.norm2.bias"], groups))
        return shortcut + conv(h, p[f"{name}.conv2.weight"], p[f"{name}.conv2.bias"])

    h = conv(x, p["backbone.early.stem.weight"], None)
    for stage in ("early.stage1", "early.stage2", "late.stage"):
        first = stage == "early.stage1"
        h = block(h, f"backbone.{stage}.0", 1 if first else 2, first)
    last = group_norm(h, p["backbone.late.norm.weight"], p["backbone.late.norm.bias"], groups)
    features = activation(last).mean((2, 3))
    shared = activation(linear(p, "hidden", features))
    if "heads.project.weight" in p:
        z = linear(p, "heads.project", shared)
    else:
        z = linear(p, "heads.project.2", activation(linear(p, "heads.project.0", shared)))
    r = linear(p, "heads.predict.2", activation(linear(p, "heads.predict.0", z)))
    return linear(p, "classify", shared), z, r


def byol(r: Tensor, z: Tensor) -> Tensor:
    """Equation 1, written out pair by pair."""
    k = len(r) // 2
    total = torch.zeros((), dtype=r.dtype)
    for i in range(k):
        for a, b in ((r[i], z[k + i]), (r[k + i], z[i])):
            total = total + 2 - 2 * (a @ b) / (a.norm() * b.norm())
    return total / k


def clip(gradients: list[Tensor], norm: float | None, mode: str) -> list[Tensor]:
    if norm is None:
        return gradients
    if mode == "tensor":
        return [g * (norm / g.norm()) if g.norm() > norm else g for g in gradients]
    total = torch.sqrt(sum((g**2).sum() for g in gradients))  # type: ignore[arg-type]
    return [g * (norm / total) for g in gradients] if total > norm else gradients


def outer_loss(
    theta: Params,
    x: Tensor,
    y: Tensor,
    views: Tensor,
    *,
    groups: int,
    steps: int,
    lr: float,
    gamma: float,
    norm: float | None,
    mode: str = "global",
    inner_target: str = "meta",
    outer_target: str = "meta",
    first_order: bool = False,
    activation=torch.relu,
    frozen: list[Tensor] | None = None,
    adapted: list[str] | None = None,
) -> Tensor:
    """Cross-entropy plus gamma times BYOL after the inner steps, as Algorithm 1 has it for one task.

    `frozen` gives the targets of each inner step and of the outer loss, instead of computing them; `adapted` the
    parameters that the inner steps change, instead of all but the class layer.
    """
    names = [n for n in theta if not n.startswith("classify")] if adapted is None else adapted
    phi = dict(theta)
    meta_target = network(theta, views, groups, activation)[1].detach()
    for step in range(steps):
        _, z, r = network(phi, views, groups, activation)
        target = meta_target if inner_target == "meta" else z.detach()
        if frozen is not None:
            target = frozen[step]
        gradients = torch.autograd.grad(byol(r, target), [phi[n] for n in names], create_graph=True, retain_graph=True)
        stepped = clip(list(gradients), norm, mode)
        for n, g in zip(names, stepped, strict=True):
            phi[n] = phi[n] - lr * (g.detach() if first_order else g)
    logits = network(phi, x, groups, activation)[0]
    _, z, r = network(phi, views, groups, activation)
    target = meta_target if outer_target == "meta" else z.detach()
    if frozen is not None:
        target = frozen[steps]
    ce = (torch.logsumexp(logits, 1) - logits[torch.arange(len(y)), y]).mean()
    return ce + gamma * byol(r, target)
