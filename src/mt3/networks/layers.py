"""Layers whose gradients of gradients are as cheap as their arithmetic, for one network or a stack of them.

PyTorch differentiates a convolution's backward pass by convolutions with kernels as large as the image, and that of
group normalisation by some forty passes over the activations. Here both are written out: a convolution's second
derivative is four convolutions of the usual kind, a norm's is five sums and two linear combinations. Activations are
kept channels-last, the layout in which these kernels are fastest. Third derivatives are refused.

With parameters that have one dimension more in front, a layer is a stack of S layers that share their shape: images
(N, S C, H, W) then hold S networks' channels side by side, so a convolution has S groups and a norm S times as many,
and rows are (S, N, features). So tasks of a meta-batch, or images to adapt to, go through every operation together.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function

Grad = Tensor | None
Layout = tuple[list[int], list[int], int]  # stride, padding, groups

LAST = torch.channels_last


class Conv2d(nn.Conv2d):
    """`nn.Conv2d` without dilation or groups, twice differentiable at the price of its arithmetic."""

    def forward(self, x: Tensor) -> Tensor:
        weight, bias, groups = self.weight, self.bias, 1
        if weight.dim() == 5:
            groups, weight, bias = len(weight), weight.flatten(0, 1), None if bias is None else bias.flatten()
        layout = (list(self.stride), [int(p) for p in self.padding], groups)
        if torch.is_autocast_enabled(x.device.type):  # cast out here, where it is differentiable twice
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        y: Tensor = _Convolution.apply(x, weight, bias, layout)  # type: ignore[no-untyped-call]
        return y


class GroupNorm(nn.GroupNorm):
    """`nn.GroupNorm` of images, twice differentiable in few passes; images of less precision stay so, sums do not."""

    def forward(self, x: Tensor) -> Tensor:
        groups = self.num_groups * (len(self.weight) if self.weight.dim() == 2 else 1)
        y: Tensor = _Norm.apply(x, self.weight.flatten(), self.bias.flatten(), groups, self.eps)  # type: ignore[no-untyped-call]
        return y


class Linear(nn.Linear):
    """`nn.Linear`, and a stack of them on rows (S, N, features)."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dim() == 2:
            return super().forward(x)
        bias: Grad = self.bias  # None with bias=False, which nn.Linear does not declare
        return torch.bmm(x, self.weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, self.weight.mT)


def _refuse_third_derivative() -> None:
    """PyTorch's `once_differentiable` would leave the third derivative out without a word where others add to it."""
    if torch.is_grad_enabled():
        raise RuntimeError("These layers have no third derivatives; leave out create_graph in the second.")


def _convolve(x: Tensor, weight: Tensor, bias: Grad, layout: Layout) -> Tensor:
    stride, padding, groups = layout
    return torch.convolution(x, weight, bias, stride, padding, [1, 1], False, [0, 0], groups)


def _convolve_backward(
    g: Tensor, x: Tensor, weight: Tensor, layout: Layout, wanted: tuple[bool, bool, bool]
) -> tuple[Grad, Grad, Grad]:
    """Gradients for the input, the weight and the bias; None for what is not wanted."""
    if not any(wanted):
        return None, None, None
    stride, padding, groups = layout
    size = [weight.shape[0]]
    gradients: tuple[Grad, Grad, Grad] = torch.ops.aten.convolution_backward(
        g, x, weight, size, stride, padding, [1, 1], False, [0, 0], groups, list(wanted)
    )
    return gradients


class _Convolution(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Grad, layout: Layout) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layout, ctx.with_bias = layout, bias is not None
        return _convolve(x.contiguous(memory_format=LAST), weight, bias, layout)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Grad, Grad, Grad, None]:
        x, weight = ctx.saved_tensors
        wanted = (ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.with_bias and ctx.needs_input_grad[2])
        return *_ConvolutionBackward.apply(g, x, weight, ctx.layout, wanted), None  # type: ignore[no-untyped-call]


class _ConvolutionBackward(Function):
    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, weight: Tensor, layout: Layout, wanted: tuple[bool, bool, bool]
    ) -> tuple[Grad, Grad, Grad]:
        ctx.save_for_backward(g, x, weight)
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        g, x = g.contiguous(memory_format=LAST), x.contiguous(memory_format=LAST)
        return _convolve_backward(g, x, weight, layout, wanted)

    @staticmethod
    def backward(ctx: Any, to_x: Grad, to_weight: Grad, to_bias: Grad) -> tuple[Grad, Grad, Grad, None, None]:
        """Both gradients are bilinear: dx in (g, weight), dweight in (g, x); so each side is a convolution again."""
        _refuse_third_derivative()
        g, x, weight = (t.contiguous(memory_format=LAST) if t.dim() == 4 else t for t in ctx.saved_tensors)
        need_g, need_x, need_weight = ctx.needs_input_grad[:3]
        for_g: Grad = None
        for_x: Grad = None
        for_weight: Grad = None
        if to_x is not None:
            to_x = to_x.contiguous(memory_format=LAST)
            if need_g:
                for_g = _convolve(to_x, weight, to_bias, ctx.layout)
            for_weight = _convolve_backward(g, to_x, weight, ctx.layout, (False, need_weight, False))[1]
        elif to_bias is not None and need_g:
            for_g = to_bias.view(1, -1, 1, 1).expand_as(g)
        if to_weight is not None:
            if need_g:
                other = _convolve(x, to_weight, None, ctx.layout)
                for_g = other if for_g is None else for_g + other
            for_x = _convolve_backward(g, x, to_weight, ctx.layout, (need_x, False, False))[0]
        return for_g, for_x, for_weight, None, None


class _Norm(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float) -> Tensor:
        last = x.to(weight.dtype, memory_format=LAST)
        size = x.shape[1:].numel() // groups  # values of a group
        mean = _of_groups(last.sum((2, 3)), groups) / size  # (N, G)
        centre = _pixels(_of_channels(mean, x))
        centred = last - centre if last is x else last.sub_(centre)
        variance = _of_groups((centred * centred).sum((2, 3)), groups) / size
        rstd = (variance + eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.groups = groups
        scale = _pixels(weight * _of_channels(rstd, x))
        return torch.addcmul(bias.view(1, -1, 1, 1), centred, scale, out=centred).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Grad, Grad, Grad, None, None]:
        x, weight, mean, rstd = ctx.saved_tensors
        return *_NormBackward.apply(g, x, weight, mean, rstd, ctx.groups), None, None  # type: ignore[no-untyped-call]


def _of_groups(of_channels: Tensor, groups: int) -> Tensor:
    """Sums (N, C) over channels to sums (N, G) over groups."""
    return of_channels.view(len(of_channels), groups, of_channels.shape[1] // groups).sum(2)


def _of_channels(of_groups: Tensor, x: Tensor) -> Tensor:
    """What is the same in a group (N, G), for each of its channels (N, C)."""
    return of_groups.repeat_interleave(x.shape[1] // of_groups.shape[1], dim=1)


def _pixels(of_channels: Tensor) -> Tensor:
    """(N, C) as (N, C, 1, 1)."""
    return of_channels[:, :, None, None]


class _NormBackward(Function):
    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, groups: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """With xhat = (x - mean) rstd, u = weight g and m() the mean over a group: rstd (u - m(u) - xhat m(u xhat))."""
        ctx.save_for_backward(g, x, weight, mean, rstd)
        ctx.groups = groups
        size = x.shape[1:].numel() // groups
        g, last = (t.to(weight.dtype, memory_format=LAST) for t in (g, x))
        centre, r = _of_channels(mean, x), _of_channels(rstd, x)
        sum_g = g.sum((2, 3))  # (N, C)
        sum_gx = r * ((g * last).sum((2, 3)) - centre * sum_g)  # of g xhat
        mean_g = _of_channels(_of_groups(weight * sum_g, groups) / size, x)
        on_x = -r * r * _of_channels(_of_groups(weight * sum_gx, groups) / size, x)
        rest = -r * mean_g - on_x * centre
        for_x = torch.addcmul(_pixels(rest), _pixels(on_x), last).addcmul_(_pixels(r * weight), g)
        return for_x.to(x.dtype), sum_gx.sum(0), sum_g.sum(0)

    @staticmethod
    def backward(ctx: Any, v: Tensor, to_weight: Tensor, to_bias: Tensor) -> tuple[Grad, ...]:
        """Differentiate dx = J (weight g), dweight = sum g xhat and dbias = sum g along v, to_weight and to_bias.

        With xhat = (x - mean) rstd and m() the mean over a group, J u = rstd (u - m(u) - xhat m(u xhat)). Everything
        below is a linear combination of v, g, x and 1 whose coefficients come from five sums over the pixels.
        """
        _refuse_third_derivative()
        g, x, weight, mean, rstd = ctx.saved_tensors
        dtype, (v, g, x) = x.dtype, (t.to(weight.dtype) for t in (v, g, x))
        size = x.shape[1:].numel() // ctx.groups

        def m(of_channels: Tensor) -> Tensor:  # sums (N, C) -> means of the groups, for each channel
            return _of_channels(_of_groups(of_channels, ctx.groups) / size, x)

        mean, r = _of_channels(mean, x), _of_channels(rstd, x)
        sum_v, sum_g = v.sum((2, 3)), g.sum((2, 3))  # (N, C)
        sum_vx = r * ((v * x).sum((2, 3)) - mean * sum_v)  # of v xhat
        sum_gx = r * ((g * x).sum((2, 3)) - mean * sum_g)  # of g xhat
        sum_vg = (v * g).sum((2, 3))
        mean_v, a, mean_g, b = m(sum_v), m(sum_vx), m(weight * sum_g), m(weight * sum_gx)
        covariance = m(weight * sum_vg) - mean_v * mean_g - a * b

        # for g: weight J v + to_weight xhat + to_bias
        on_x = r * (to_weight - weight * r * a)
        rest = to_bias - weight * r * mean_v - on_x * mean
        for_g = torch.addcmul(torch.addcmul(_pixels(rest), _pixels(on_x), x), _pixels(weight * r), v)
        # for x: what moves with rstd and xhat in <v, J (weight g)>, and J (to_weight g)
        on_x = -r * (r * r * (covariance - 2 * a * b) + r * m(to_weight * sum_gx))
        rest = r * r * (b * mean_v + a * mean_g) - r * m(to_weight * sum_g) - on_x * mean
        on_g = r * (to_weight - r * a * weight)
        for_x = torch.addcmul(torch.addcmul(_pixels(rest), _pixels(on_x), x), _pixels(-r * r * b), v)
        for_x = for_x.addcmul_(_pixels(on_g), g)
        for_weight = (r * (sum_vg - mean_v * sum_g - a * sum_gx)).sum(0)
        return for_g.to(dtype), for_x.to(dtype), for_weight, None, None, None
