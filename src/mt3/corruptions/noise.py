"""Noise, drawn for each value from its image's own generator."""

import numpy as np

from mt3.corruptions.pixels import Bytes, Floats, Generators, to_bytes, to_unit


def gaussian_noise(images: Bytes, std: float, generators: Generators) -> Bytes:
    """Add normal noise of standard deviation `std`."""
    return to_bytes(to_unit(images) + std * _normal(images, generators))


def shot_noise(images: Bytes, photons: float, generators: Generators) -> Bytes:
    """Count photons: a Poisson draw whose mean is `photons` for a white value, divided by `photons`."""
    means = to_unit(images) * photons
    counts = np.stack([generator.poisson(mean) for generator, mean in zip(generators, means, strict=True)])
    return to_bytes(counts / photons)


def impulse_noise(images: Bytes, share: float, generators: Generators) -> Bytes:
    """Set each value to 0 or to 255, with probability `share / 2` each; channels fall independently."""
    u = np.stack([generator.random(images.shape[1:]) for generator in generators])
    peppered = np.where(u < share / 2, np.uint8(0), images)
    return np.where(u >= 1 - share / 2, np.uint8(255), peppered)


def speckle_noise(images: Bytes, std: float, generators: Generators) -> Bytes:
    """Add normal noise whose standard deviation is `std` times the value."""
    x = to_unit(images)
    return to_bytes(x + x * std * _normal(images, generators))


def _normal(images: Bytes, generators: Generators) -> Floats:
    return np.stack([generator.standard_normal(images.shape[1:]) for generator in generators])
