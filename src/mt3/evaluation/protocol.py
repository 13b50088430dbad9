"""What an evaluation is asked, and everything that its numbers depend on."""

import hashlib
import platform
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from mt3 import corruptions
from mt3.config.adaptation import Adaptation
from mt3.config.streams import ANEW, STREAMS
from mt3.data import CorruptedSet, Dataset, ShiftedSet
from mt3.evaluation.pieces import CLEAN as CLEAN
from mt3.evaluation.pieces import Source as Source
from mt3.evaluation.pieces import source_key
from mt3.evaluation.settle import passes
from mt3.models.call import Network
from mt3.models.store import tensors_hash
from mt3.objectives.augment import SIDE
from mt3.support.errors import InputError, name_list, one_of
from mt3.support.version import __version__

SOURCE_IMAGES = 1000  # of the training split, for methods that compare with it


@dataclass(frozen=True)
class TestImages:
    """The images to evaluate on: a data set's test split, corrupted on the fly or taken from a directory."""

    __test__ = False  # not a test case, whatever its name says

    dataset: Dataset | None  # gives the clean images
    corrupted: CorruptedSet | ShiftedSet | None = None  # None: they are generated, each image seeded by its index
    seed: int = 0  # of the generated corruptions
    first: int = 0  # index of the first image; those before it are left out

    def __post_init__(self) -> None:
        if self.dataset is None and self.corrupted is None:
            raise InputError("Expected a data set or a directory of corrupted images, got neither.")
        if len(self.labels) < 1:
            raise InputError(f"Expected the first image to be one of the test images, got {self.first}; lower --first.")
        if self.dataset is None or not isinstance(self.corrupted, CorruptedSet):
            return
        if not np.array_equal(self.dataset.test_labels[: self.corrupted.images], self.corrupted.labels):
            raise InputError(
                f"The labels in {self.corrupted.directory} are not those of {self.dataset.name}'s test split; "
                "give the corrupted version of the same data."
            )

    @property
    def shifted(self) -> ShiftedSet | None:
        """The images of a directory that are not the data set's, but sets of their own."""
        return self.corrupted if isinstance(self.corrupted, ShiftedSet) else None

    @property
    def labels(self) -> NDArray[np.int64]:
        """Of the clean images or, without these, of the shift that has the most."""
        if self.corrupted is None or (self.shifted is not None and self.dataset is not None):
            return self._clean.test_labels[self.first :]
        return self.corrupted.labels[self.first :]

    def labels_of(self, source: Source) -> NDArray[np.int64]:
        if self.shifted is None or source == CLEAN:
            return self.labels
        return self.shifted.found[source].labels[self.first :]

    def origin(self, sources: list[Source], counts: list[int]) -> dict[str, Any]:
        """Where the corrupted images come from, for the protocol; those of a directory are known by their bytes."""
        if self.corrupted is None:
            size = self._clean.size
            told = {} if size == SIDE else {"parameter_set": corruptions.parameter_set(size)}
            return {"kind": "generated", "version": __version__, "seed": self.seed, **told}
        digest = hashlib.blake2b(digest_size=16)
        for source, count in zip(sources, counts, strict=True):
            digest.update(np.ascontiguousarray(self.corrupted.images_of(*source)[self.first :][:count]).data)
            if self.shifted is not None:
                digest.update(np.ascontiguousarray(self.labels_of(source)[:count]).data)
        known = {"name": self.corrupted.directory.resolve().name, "hash": digest.hexdigest()}
        if self.shifted is None:
            return {"kind": "directory", **known}
        each = {source_key(source): count for source, count in zip(sources, counts, strict=True)}
        paired, span = self.shifted.paired, [min(counts), max(counts)]
        return {"kind": "shifts", **known, "paired": paired, "images": span, "counts": each}

    def take(self, source: Source, start: int, stop: int) -> NDArray[np.uint8]:
        """Images start..stop-1 (N, H, H, 3), counted from `first`, under a corruption and severity, or clean."""
        start, stop = start + self.first, stop + self.first
        if source != CLEAN and self.corrupted is not None:
            return np.array(self.corrupted.images_of(*source)[start:stop])  # a copy in memory
        images = self._clean.test_images[start:stop]
        return images if source == CLEAN else corruptions.apply(images, *source, seed=self.seed, first_index=start)

    def source_images(self) -> NDArray[np.uint8]:
        """Training images for a method that compares with some."""
        images = None if self.dataset is None else self.dataset.some_training_images(SOURCE_IMAGES)
        if images is None or len(images) < 2:
            raise InputError("This method compares with training images, and there are none; give --data with some.")
        return images

    @property
    def _clean(self) -> Dataset:
        assert self.dataset is not None
        return self.dataset


@dataclass(frozen=True)
class Protocol:
    """What is asked of a model; with the images and the model it says all that the numbers depend on."""

    corruptions: tuple[str, ...]
    severities: tuple[int, ...] = (5,)
    limit: int | None = None  # images; none: all of them
    controls: bool = False  # also adapt on other images, to split the gain
    confidence: bool = False  # also how far the answers to an image's views agree
    adaptation: Adaptation | None = None  # none: the model as it is
    method: str = "own"  # the name of that adaptation; own: the model's
    stream: str | None = None  # along which steps are kept; none: each image is adapted to by itself
    seed: int = 0  # of the views, and of a stream's order
    label: str = ""  # what a report calls this variant; the reference has none
    sweep: bool = False  # a point of a sweep over steps, views or learning rate
    tuned: dict[str, Any] | None = field(default=None, hash=False)  # how the adaptation was chosen, if by `mt3 tune`
    run: dict[str, Any] | None = field(default=None, hash=False)  # how the model was trained, if that is known

    @property
    def sources(self) -> list[Source]:
        return [(name, severity) for severity in sorted(set(self.severities)) for name in self.corruptions]

    def count(self, images: TestImages, source: Source = CLEAN) -> int:
        """Images under a corruption; the clean ones are as many, but for shifts."""
        return len(images.labels_of(source)[: self.limit])


def describe(protocol: Protocol, model: Network, images: TestImages) -> dict[str, Any]:
    """The protocol as a result file keeps it; refuses what cannot be evaluated."""
    count, adaptation = protocol.count(images), protocol.adaptation
    if protocol.limit is not None and protocol.limit < 1:
        raise InputError(f"Expected at least one image to evaluate, got a limit of {protocol.limit}.")
    counts = [protocol.count(images, source) for source in protocol.sources]
    if min(counts, default=count) < 1:
        raise InputError(f"Some shift has no image from number {images.first} on; lower --first, or leave it out.")
    if protocol.controls and adaptation is None:
        raise InputError("Controls compare adapted models, but nothing is adapted here; drop --controls.")
    if protocol.controls and images.shifted is not None:
        raise InputError("Controls need the same images with and without a corruption, not shifts; drop --controls.")
    if protocol.controls and images.dataset is None:
        raise InputError("The clean control needs the clean test images; give --data-dir, or drop --controls.")
    if protocol.controls and count < 2:
        raise InputError("Controls adapt on another image, so they need at least 2 images; raise --limit.")
    if protocol.confidence and adaptation is None:
        raise InputError("Confidence is compared before and after adapting, and nothing adapts; drop --confidence.")
    _check_stream(protocol)
    _check_tuned(protocol, images)
    told: dict[str, Any] = {"method": protocol.method} if protocol.method != "own" else {}
    if protocol.stream is not None:
        told["stream"] = {
            "kind": protocol.stream,
            "seed": protocol.seed,
            "order": STREAMS[protocol.stream],
            "units": _units(protocol, images),
        }
    if protocol.tuned is not None:
        told["tuned"] = protocol.tuned
    if adaptation is not None:
        told["passes"] = passes(adaptation)  # what an answer costs
    if protocol.confidence:
        told["confidence"] = "copies"  # over which the mean is taken
    if adaptation is not None and adaptation.rule == "align":
        known = getattr(model, "moments", None)
        told["moments"] = tensors_hash(known.tensors()) if known else f"{len(images.source_images())} training images"
    return {
        "run": protocol.run,
        "label": protocol.label,
        "sweep": protocol.sweep,
        "data": images.dataset.name if images.dataset is not None else (protocol.run or {}).get("data"),
        "split": "test",
        "source": images.origin(protocol.sources, counts),
        "corruptions": list(protocol.corruptions),
        "severities": sorted(set(protocol.severities)),
        "images": count,
        "first": images.first,
        "clean": images.dataset is not None and (protocol.stream is None or not protocol.corruptions),
        "controls": protocol.controls,
        "seed": protocol.seed,
        "adaptation": None if adaptation is None else asdict(adaptation),
        "own_adaptation": adaptation is None or adaptation == getattr(model, "adaptation", None),
        "views": 0 if adaptation is None else adaptation.views,
        "precision": getattr(model, "precision", "float32"),
        "model_hash": tensors_hash(model.state_dict()),
        "versions": {
            "mt3": __version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        **told,
    }


def _units(protocol: Protocol, images: TestImages) -> list[dict[str, Any]]:
    """The parts of a stream that begin with the model as it is, and how many images each has."""
    counts = {source: protocol.count(images, source) for source in protocol.sources or [CLEAN]}
    if protocol.stream not in ANEW:
        counts = {(str(protocol.stream), 0): sum(counts.values())}
    return [{"name": name, "severity": severity, "images": count} for (name, severity), count in counts.items()]


def _check_stream(protocol: Protocol) -> None:
    """Refuse a stream that is none, and what cannot be asked along one."""
    kind, adaptation = protocol.stream, protocol.adaptation
    if kind is not None and kind not in STREAMS:
        raise InputError(one_of("stream", kind, STREAMS))
    if kind is not None and adaptation is None:
        raise InputError("A stream is for models that adapt along it, and nothing adapts here; drop --stream.")
    if adaptation is None:
        return
    if (kind is None) != (adaptation.carry == "image"):
        come = "a stream's order" if kind is None else "--carry stream"
        raise InputError(f"A step that is kept needs {come}; give --stream and --carry stream, or neither.")
    asked = [name for name in ("controls", "confidence") if getattr(protocol, name)]
    if kind is not None and asked:
        raise InputError(f"Along a stream there is no --{asked[0]}: each image finds another model; drop one of them.")
    if kind is not None and kind not in ANEW and adaptation.reset == "shift":
        raise InputError(f"In a {kind} stream no shift is known; give --stream shift, or another --reset.")


def _check_tuned(protocol: Protocol, images: TestImages) -> None:
    """Refuse to report what was tuned on."""
    if protocol.tuned is None:
        return
    used = protocol.tuned["images"]
    known = [name for name in protocol.corruptions if name in used["corruptions"]]
    if known:
        raise InputError(f"{protocol.tuned['file']} was tuned on {name_list(known)}; report other corruptions.")
    first, last = used["first"], used["first"] + used["images"]
    same = images.dataset is None or images.dataset.name == used["data"]
    if same and images.first < last and first < images.first + protocol.count(images):
        raise InputError(
            f"{protocol.tuned['file']} was tuned on the images {first} to {last - 1}; leave these out by --limit "
            "or --first."
        )
