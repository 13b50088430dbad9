"""The augmentations: A (per sample), B (one draw per task) and the plain crop and flip.

Images are float (N, 3, H, W) in [0, 1] on any device. All randomness comes from the generator that is passed;
numbers are drawn on its device and moved to the images', so that the same generator gives the same views anywhere.
"""

import hashlib
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CROP_MIN = 20 / 32  # of the side, "uniform between 20 and 32 pixels"
JITTER = 0.2  # "the adapted strength of 0.2 compared to 1.0 for ImageNet"
JITTER_SHARE = 0.8  # "applied with a probability of 80 %"
GREY_SHARE = 0.2  # "color dropping with a probability of 20 %"
GREY = (0.2989, 0.5870, 0.1140)  # ITU-R BT.601 luma weights

FLIP_SHARE = 0.5  # "random horizontal flipping (50 % probability)"
BLUR_SHARE = 0.2  # "Gaussian blurring (20 % probability) with a 3x3 filter with a standard deviation of 1.0"
BRIGHTNESS = 0.2  # "uniformly distributed delta between -0.2 and 0.2"
NOISE_STD = 0.02  # "Gaussian noise with a uniformly distributed standard deviation between 0 and 0.02"

SIDE = 32  # pixels of the paper's images, for which paddings are given
DRAWN = torch.float32  # whatever the caller's default: other types give other numbers

# columns of the uniform numbers that one view of A is made from
_SIZE, _TOP, _LEFT, _FLIP, _JITTER, _BRIGHTNESS, _CONTRAST, _SATURATION, _HUE, _GREY = range(10)


def seeded_generator(*parts: int | str | bytes) -> torch.Generator:
    """A generator whose stream depends on the parts alone, such as (seed, step, task)."""
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        piece = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(piece).to_bytes(8, "little") + piece)
    return torch.Generator().manual_seed(int.from_bytes(digest.digest(), "little", signed=True))


def as_float(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Scale uint8 to [0, 1]; cast floats only."""
    return images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)


def draw_views(count: int, generator: torch.Generator) -> Tensor:
    """Draw the randomness of `count` views of A: uniform numbers (count, 10), all that `apply_views` needs."""
    return torch.rand(count, 10, generator=generator, device=generator.device, dtype=DRAWN)


def apply_views(images: Tensor, draws: Tensor, whole: bool = True) -> Tensor:
    """Apply A: square crop resized back, vertical flip, colour jitter, colour drop; one row of draws per image.

    `whole` says whether a crop may be the whole image.
    """
    precision = torch.promote_types(images.dtype, torch.float32)  # half precision would round crops out of the image
    u = draws.to(images.device, precision)
    x = _crop_and_resize(images.to(precision), u, whole)
    jittered = _colour_jitter(x, u).clamp(0.0, 1.0)
    x = torch.where(_share(u, _JITTER, JITTER_SHARE), jittered, x)
    grey = torch.einsum("nchw,c->nhw", x, x.new_tensor(GREY)).unsqueeze(1).expand_as(x)
    return torch.where(_share(u, _GREY, GREY_SHARE), grey, x).to(images.dtype)


def make_views(images: Tensor, generator: torch.Generator, whole: bool = True) -> Tensor:
    """Two views of each image (2N, 3, H, W): first all a, then all a-tilde, in the images' order."""
    both = torch.cat([images, images])
    return apply_views(both, draw_views(len(both), generator), whole)


def _share(u: Tensor, column: int, share: float) -> Tensor:
    return (u[:, column] < share).view(-1, 1, 1, 1)


def _crop_and_resize(x: Tensor, u: Tensor, whole: bool) -> Tensor:
    """Crop a square and resize it bilinearly, as two small matrix products per image; flips ride along for free."""
    extent = x.shape[-1]
    low, high = round(CROP_MIN * extent), extent if whole else extent - 1
    size = (low + u[:, _SIZE] * (high - low + 1)).floor().clamp(max=high)
    top = (u[:, _TOP] * (extent - size + 1)).floor()
    left = (u[:, _LEFT] * (extent - size + 1)).floor()
    rows = _interpolation(size, top, extent)
    rows = torch.where((u[:, _FLIP] < 0.5).view(-1, 1, 1), rows.flip(1), rows)
    columns = _interpolation(size, left, extent)
    return rows.unsqueeze(1) @ x @ columns.mT.unsqueeze(1)


def _interpolation(size: Tensor, start: Tensor, extent: int) -> Tensor:
    """Matrices (N, extent, extent) that stretch pixels start..start+size-1 over the extent, half-pixel centres."""
    pixel = torch.arange(extent, device=size.device, dtype=size.dtype)
    source = (pixel + 0.5) * (size / extent).unsqueeze(1) - 0.5  # (N, extent)
    source = torch.minimum(source.clamp(min=0.0), size.unsqueeze(1) - 1) + start.unsqueeze(1)
    return (1 - (source.unsqueeze(2) - pixel).abs()).clamp(min=0.0)


def _colour_jitter(x: Tensor, u: Tensor) -> Tensor:
    """Brightness, contrast, saturation, hue, in this order; clipped by the caller."""

    def between(column: int, reach: float) -> Tensor:
        return ((2 * u[:, column] - 1) * reach).view(-1, 1, 1, 1)

    x = x + between(_BRIGHTNESS, 0.8 * JITTER)
    mean = x.mean(dim=(2, 3), keepdim=True)
    x = (x - mean) * (1 + between(_CONTRAST, 0.8 * JITTER)) + mean
    return _saturation_and_hue(x, 1 + between(_SATURATION, 0.8 * JITTER), between(_HUE, 0.2 * JITTER))


def _saturation_and_hue(x: Tensor, factor: Tensor, turn: Tensor) -> Tensor:
    """Scale S and turn H in HSV space; V stays."""
    value = x.amax(1, keepdim=True)  # (N, 1, H, W)
    chroma = value - x.amin(1, keepdim=True)
    r, g, b = x.unbind(1)
    c = chroma.squeeze(1).clamp(min=1e-12)
    v = value.squeeze(1)
    sextant = torch.where(v == r, (g - b) / c, torch.where(v == g, 2 + (b - r) / c, 4 + (r - g) / c))
    chroma = torch.minimum(chroma * factor, value.clamp(min=0.0))  # S = chroma / V is at most 1
    sextant = sextant.unsqueeze(1) + 6 * turn
    k = (sextant + x.new_tensor([5.0, 3.0, 1.0]).view(1, 3, 1, 1)) % 6
    return value - chroma * torch.minimum(k, 4 - k).clamp(0.0, 1.0)


@dataclass(frozen=True)
class BatchShift:
    """One draw of B: the shift that all images of a task share."""

    flip: bool
    vertical_flip: bool
    blur: bool
    brightness: float  # added
    noise_std: float  # of the noise, whose samples differ by pixel


def draw_shift(generator: torch.Generator, vertical_flip: bool = False) -> BatchShift:
    """Draw B's parameters for a task; `vertical_flip`, which is the authors' code's, lets it flip upside down."""
    u = torch.rand(5, generator=generator, device=generator.device, dtype=DRAWN).tolist()
    return BatchShift(
        flip=u[0] < FLIP_SHARE,
        vertical_flip=vertical_flip and u[1] < FLIP_SHARE,
        blur=u[2] < BLUR_SHARE,
        brightness=BRIGHTNESS * (2 * u[3] - 1),
        noise_std=NOISE_STD * u[4],
    )


def apply_shift(images: Tensor, shift: BatchShift, generator: torch.Generator) -> Tensor:
    """Apply B; the generator only gives the noise. Values are clipped once, at the end."""
    axes = [axis for axis, flips in ((2, shift.vertical_flip), (3, shift.flip)) if flips]
    x = images.flip(axes) if axes else images
    if shift.blur:
        x = _blur(x)
    noise = torch.randn(x.shape, generator=generator, device=generator.device, dtype=DRAWN).to(x.device, x.dtype)
    return (x + shift.brightness + shift.noise_std * noise).clamp(0.0, 1.0)


def _blur(x: Tensor) -> Tensor:
    """3x3 Gaussian of standard deviation 1, reflected border."""
    side = float(torch.tensor(-0.5, dtype=DRAWN).exp())
    middle, side = 1 / (1 + 2 * side), side / (1 + 2 * side)
    x = F.pad(x, (1, 1, 1, 1), mode="reflect")
    x = middle * x[..., 1:-1, :] + side * (x[..., :-2, :] + x[..., 2:, :])
    return middle * x[..., 1:-1] + side * (x[..., :-2] + x[..., 2:])


def crop_and_flip(images: Tensor, generator: torch.Generator, pad: int, flip: bool) -> Tensor:
    """Zero-pad by `pad` pixels of 32 and crop back at random, image by image; flip sideways with probability 1/2."""
    count, _, height, width = images.shape
    pad = round(pad * height / SIDE)
    u = torch.rand(count, 3, generator=generator, device=generator.device, dtype=DRAWN).to(images.device)
    rows = torch.arange(height, device=images.device) + (u[:, :1] * (2 * pad + 1)).long()  # (N, H)
    columns = torch.arange(width, device=images.device) + (u[:, 1:2] * (2 * pad + 1)).long()
    if flip:
        columns = torch.where(u[:, 2:] < 0.5, columns.flip(1), columns)
    padded = F.pad(images, (pad, pad, pad, pad)).permute(0, 2, 3, 1)
    sample = torch.arange(count, device=images.device).view(-1, 1, 1)
    return padded[sample, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2).contiguous()


def rotate(images: Tensor, quarters: Tensor) -> Tensor:
    """Turn each square image by its number of quarter turns (0 to 3, counter-clockwise)."""
    turned = torch.stack([torch.rot90(images, k, (2, 3)) for k in range(4)])  # (4, N, 3, H, W)
    return turned[quarters, torch.arange(len(images), device=images.device)]
