"""Numbers from predictions: likelihood, calibration, differences and their intervals. Needs no torch."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution
CALIBRATION_BINS = 15  # equal-width bins of the confidence, as in Guo et al. 2017

Probabilities = NDArray[np.float32]  # (images, classes)
Correct = NDArray[np.bool_]
Positions = NDArray[np.int64]  # (images,), where in a stream each of them comes

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


def pack_positions(positions: Positions) -> str:
    """Where in a stream each image comes, four bytes each, in hexadecimal."""
    return positions.astype(">u4").tobytes().hex()


def unpack_positions(packed: str, count: int) -> Positions:
    """What `pack_positions` packed, of `count` images."""
    positions = np.frombuffer(bytes.fromhex(packed), dtype=">u4").astype(np.int64)
    if len(positions) != count:
        raise ValueError(f"{len(positions)} positions for {count} images")
    return positions


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


def calibration_error(confidence: NDArray[np.floating[Any]], correct: Correct) -> float:
    """Expected calibration error: mean gap of confidence and accuracy over equal-width bins, weighted by their size."""
    confidence = confidence.astype(np.float64)
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


RESAMPLES = 2000  # of blocks


def block_length(count: int, batch: int = 1) -> int:
    """Answers in a block: the square root of their number, so that blocks grow as they become more, and a step's."""
    return min(count, max(math.ceil(math.sqrt(count)), batch))


def block_interval(difference: NDArray[np.float64], length: int, seed: int = 0) -> Difference:
    """Mean of differences along a stream (images,), with its 95 % interval by a moving block bootstrap.

    Answers of a stream are not independent, those of a block of `length` neighbours stay together (Künsch 1989). As
    there are few blocks, the resampled means' distances from their centre are widened as Student's t is wider than the
    normal distribution.
    """
    mean, blocks = float(difference.mean()), -(-len(difference) // length)
    if blocks < 2:
        return Difference(mean, mean - 100.0, mean + 100.0)
    sums = np.concatenate([[0.0], np.cumsum(difference)])
    means = (sums[length:] - sums[:-length]) / length  # of every block
    drawn = np.random.default_rng(seed).integers(0, len(means), (RESAMPLES, blocks))
    ends = np.quantile(means[drawn].mean(1), (0.025, 0.975)) - means.mean()
    wider = t95(blocks - 1) / Z95 * math.sqrt(blocks / (blocks - 1))
    return Difference(mean, mean + wider * float(ends[0]), mean + wider * float(ends[1]))


def stream_interval(
    differences: Sequence[NDArray[np.float64]], positions: Sequence[Positions], paired: bool, batch: int = 1
) -> Difference:
    """Mean of differences (images,) over corruptions, with its 95 % interval along a stream where the images come so.

    Neighbours in the stream depend on one another. Where corruptions are `paired`, they show the same images, and an
    image's answers depend on one another, too: if all show them in one order, an image's differences are averaged
    first, and blocks are of images; if not, the interval is the wider one of blocks along the stream and of images.
    """
    orders = [places.argsort() for places in positions]
    if paired and all(np.array_equal(order, orders[0]) for order in orders):
        along = np.mean(differences, axis=0)[orders[0]]
        return block_interval(along, block_length(len(along), batch))
    mean = sum(map(len, differences)) / len(differences)  # corruptions weigh the same, however many images they have
    weighed = np.concatenate([difference * (mean / len(difference)) for difference in differences])
    found = [block_interval(weighed[np.concatenate(positions).argsort()], block_length(len(weighed), batch))]
    if paired:
        found.append(paired_interval(np.mean(differences, axis=0)))
    return max(found, key=lambda one: one.high - one.low)


def area_under_curve(confidence: NDArray[np.floating[Any]], correct: Correct) -> float | None:
    """How often a right answer has a higher confidence than a wrong one, in percent; none where all are alike.

    It is the area under the receiver's curve, by the ranks of Mann and Whitney; equal confidences count as a half.
    """
    right, wrong = np.sort(confidence[correct]), np.sort(confidence[~correct])
    if not len(right) or not len(wrong):
        return None
    below, upto = (np.searchsorted(wrong, right, side=side).sum() for side in ("left", "right"))
    return 100 * float(below + upto) / (2 * len(right) * len(wrong))


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
