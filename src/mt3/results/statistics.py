"""Numbers from predictions: likelihood, calibration, differences and their intervals. Needs no torch."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
CALIBRATION_BINS = 15  # equal-width bins of the confidence, as in Guo et al. 2017

Probabilities = NDArray[np.float32]  # (images, classes)
Correct = NDArray[np.bool_]

GAINS = {  # name: (row, minus row)
    "gain": ("after", "before"),
    "offset": ("clean_other", "before"),
    "distribution": ("same_corruption", "clean_other"),
    "instance": ("after", "same_corruption"),
    "adaptation": ("after", "clean_other"),
}


class Difference(NamedTuple):
    """In points, with its 95 % interval."""

    mean: float
    low: float
    high: float


def is_correct(probabilities: Probabilities, labels: NDArray[np.int64]) -> Correct:
    """Whether the most probable class is the label."""
    return np.asarray(probabilities.argmax(-1) == labels)


def pack_correct(correct: Correct) -> str:
    """Eight images to a byte, in hexadecimal: short enough for a result file."""
    return np.packbits(correct).tobytes().hex()


def unpack_correct(packed: str, count: int) -> Correct:
    """What `pack_correct` packed, of `count` images."""
    data = np.frombuffer(bytes.fromhex(packed), dtype=np.uint8)
    if len(data) != -(-count // 8):
        raise ValueError(f"{len(data)} bytes for {count} images")
    return np.unpackbits(data, count=count).astype(bool)


def wilson_interval(hits: int, count: int) -> tuple[float, float]:
    """95 % Wilson score interval of a share, in percent."""
    share, z2 = hits / count, Z95**2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    reach = Z95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    low = 0.0 if hits == 0 else max(0.0, centre - reach)
    return 100 * low, 100 * min(1.0, centre + reach)


def mean_nll(probabilities: Probabilities, labels: NDArray[np.int64]) -> float:
    """Negative log-likelihood of the labels in nats, the mean over images."""
    own = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return float(-np.log(np.maximum(own, 1e-12)).mean())


def calibration_error(probabilities: Probabilities, correct: Correct) -> float:
    """Expected calibration error: mean gap of confidence and accuracy over equal-width bins, weighted by their size."""
    confidence = probabilities.max(-1).astype(np.float64)
    bins = np.minimum((confidence * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    gaps = np.bincount(bins, weights=confidence - correct, minlength=CALIBRATION_BINS)
    return float(np.abs(gaps).sum() / len(correct))


def paired_gain(after: Correct, before: Correct) -> Difference:
    """Mean of after minus before in points, with its paired 95 % interval.

    Arrays are (images,) or (corruptions, images). The same image under several corruptions is one observation: its
    differences are averaged first, and the interval is over images.
    """
    return paired_interval(100.0 * (np.atleast_2d(after).astype(float) - np.atleast_2d(before)).mean(0))


def paired_interval(difference: NDArray[np.float64]) -> Difference:
    """Mean of the images' differences (images,), with its 95 % interval over images."""
    mean = float(difference.mean())
    error = float(difference.std(ddof=1) / math.sqrt(len(difference))) if len(difference) > 1 else math.inf
    reach = Z95 * error if math.isfinite(error) else 100.0
    return Difference(mean, mean - reach, mean + reach)


# two-sided 95 % quantiles of Student's t with 1 to 10 degrees of freedom
T95 = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)


def t95(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t; beyond the table by its expansion around the normal one."""
    if freedom <= len(T95):
        return T95[freedom - 1]
    z = Z95
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return z + sum(term / float(freedom) ** (i + 1) for i, term in enumerate(terms))


def mean_interval(differences: Sequence[float]) -> Difference:
    """Mean difference over two runs or more, with its 95 % interval by Student's t."""
    values = np.asarray(differences, dtype=float)
    mean = float(values.mean())
    reach = t95(len(values) - 1) * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Difference(mean, mean - reach, mean + reach)
