"""The demo: MT3 and a plain classifier on the embedded digits, in minutes, with honest numbers."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from mt3 import corruptions
from mt3.config.config import Config, make_config, start_config
from mt3.corruptions.weather import INSTALL_PHOTOS
from mt3.data import Dataset, load_digits
from mt3.evaluation.protocol import TestImages
from mt3.models.store import read_run
from mt3.reporting.figures import draw_examples
from mt3.reporting.summary import interval
from mt3.results.facts import Evaluation
from mt3.results.show import result_table
from mt3.results.statistics import paired_gain
from mt3.studies.plan import Study, Test, Training, starts_of
from mt3.studies.reproduce import evaluate_run, train_run
from mt3.support.errors import InputError
from mt3.support.processes import run_apart
from mt3.support.progress import duration
from mt3.training.runs import START, count_steps, steps_done

IMAGES = 250  # held-out images under each corruption
SEVERITY = 5


def run_demo(
    out: Path, seed: int, device: torch.device, images: int = IMAGES, max_steps: int | None = None, jobs: int = 1
) -> str:
    """Train, evaluate and draw into `out`; returns what to print. Finished parts are not done again.

    Both models have the same start; then one is meta-trained and the other trained on as before for as long. With two
    jobs this goes on at the same time, each with half of the threads. `max_steps` shortens each of the three trainings.
    """
    began = time.monotonic()
    dataset, available = load_digits(), corruptions.available()
    names = [name for name in corruptions.PAPER if name in available]
    methods = ["mt3", "baseline"]
    study = Study(out, TestImages(dataset), "demo", methods, 1, names, [SEVERITY], images, device=device, jobs=jobs)
    configs = [_shorten(make_config(method, "digits", "demo", seed), dataset, max_steps) for method in methods]
    trainings = [Training("mt3", configs[0], out), Training("plain", configs[1], out / "plain")]
    train = partial(train_run, study, trainings)
    for start in starts_of(trainings[0]):
        if steps_done(start.config, start.folder) is not None:
            train(start)
    left = [training for training in trainings if steps_done(training.config, training.folder) is not None]
    run_apart(train, left, [t.name for t in left], jobs, partial(torch.set_num_threads, study.threads))
    tests = [Test(training, training.folder / f"evaluation-{training.name}.json", {}) for training in trainings]
    mt3, plain = (evaluate_run(study, test) for test in tests)
    text = _text(mt3, plain, [read_run(folder)["seconds"] for folder in (out / START, out, out / "plain")])
    if max_steps is not None:
        text = f"SHORTENED to {max_steps} steps a training: these numbers say nothing about the demo's own.\n\n{text}"
    if "frost" not in names:
        text += f"\nWithout frost, whose photos are not here: {INSTALL_PHOTOS}."
    try:
        _draw(tests[0].file, study)
        text += f"\n\nwrote {tests[0].file}, {out / 'figure.png'} and the model in {out}"
    except InputError as error:
        text += f"\n\nwrote {tests[0].file} and the model in {out}; no figure: {error}"
    return text + f" ({duration(time.monotonic() - began)})"


def _shorten(config: Config, dataset: Dataset, max_steps: int | None) -> Config:
    """The training, and the one that comes first, with so many steps at most."""
    first = start_config(config)
    if max_steps is None or first is None:
        return config
    epochs = [min(one.epochs, max_steps / count_steps(one, dataset)[0]) for one in (config, first)]
    return replace(config, epochs=epochs[0], start=f"{first.method}:{epochs[1]!r}")


def _text(mt3: Evaluation, plain: Evaluation, seconds: list[float]) -> str:
    """What both evaluations say; `seconds` are those of the start, of MT3 and of the plain model."""
    table = result_table(
        {
            "plain model": (plain, "before"),
            "MT3 before": (mt3, "before"),
            "unrelated image": (mt3, "clean_other"),
            "same corruption": (mt3, "same_corruption"),
            "MT3 after": (mt3, "after"),
        }
    )
    adaptation = mt3.gain("adaptation")
    against_plain = paired_gain(mt3.correct("after"), plain.correct("before"))
    start, meta, further = (duration(s) for s in seconds)
    lines = [
        f"Accuracy in % on {mt3.protocol['images']} held-out digits under each corruption, severity {SEVERITY}.",
        f"Both models have the same network, augmentation and start ({start}); then MT3 was meta-trained for {meta},",
        f"the plain one trained on for {further}.",
        "MT3 is adapted on nothing (before), on an unrelated clean image, on another image with the",
        "same corruption, and on the image itself (after).",
        "",
        table,
        "",
        f"after - unrelated image: {interval(adaptation)} points (paired 95 % interval)",
        f"after - plain model:     {interval(against_plain)} points",
    ]
    if adaptation.low > 0:
        lines.append("Adapting to the image itself helps beyond what a step on any image would do.")
    else:
        lines.append("NOT SHOWN here: that adapting to the image itself helps beyond a step on any image.")
    if against_plain.low > 0:
        lines.append("The adapted model is above the plain one.")
    elif against_plain.high >= 0:
        lines.append("No difference from the plain model is shown: the interval includes 0.")
    else:
        lines.append("The adapted model is BELOW the plain one: on these digits adapting does not pay.")
    return "\n".join(lines)


def _draw(results: Path, study: Study) -> None:
    """One pair per corruption, with the test images in their order: nothing is picked by hand."""
    names, classes = study.corruptions[: study.count()], study.dataset.classes
    pairs = [study.images.take((name, SEVERITY), i, i + 1) for i, name in enumerate(names)]
    texts: list[list[str | bool]] = []
    with np.load(results.with_suffix(".npz"), allow_pickle=False) as file:
        truth = file["labels"][: len(names)]
        for i, name in enumerate(names):
            answers = [file[f"{name}-{SEVERITY}/{row}"][i] for row in ("before", "after")]
            told = [(f"{classes[p.argmax()]} {100 * p.max():.0f} %", bool(p.argmax() == truth[i])) for p in answers]
            texts.append([*told[0], *told[1]])
    clean, words = study.dataset.test_images[: len(names)], [classes[label] for label in truth]
    draw_examples(results.with_name("figure.png"), clean, np.concatenate(pairs), names, texts, words)
