"""The demo: MT3 and a plain classifier on the embedded digits, in minutes, with honest numbers."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from mt3 import corruptions
from mt3.config.config import Config, make_config, start_config
from mt3.corruptions.weather import INSTALL_PHOTOS
from mt3.data import Dataset, load_digits
from mt3.evaluation.evaluate import evaluate
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.models.classifier import MT3Model
from mt3.models.store import load, read_run
from mt3.reporting.figures import draw_examples
from mt3.reporting.summary import interval
from mt3.results.facts import Evaluation
from mt3.results.show import result_table
from mt3.results.statistics import Difference, paired_gain
from mt3.support.errors import InputError
from mt3.support.files import RUN_FILE, read_json
from mt3.support.processes import run_apart
from mt3.support.progress import duration
from mt3.support.threads import thread_share
from mt3.training.loop import train
from mt3.training.runs import START, RunOptions, about_run, copy_start, count_steps, steps_done

IMAGES = 250  # held-out images under each corruption
SEVERITY = 5


class Training(NamedTuple):
    """One of the demo's two."""

    config: Config
    out: Path
    device: torch.device


def run_demo(
    out: Path, seed: int, device: torch.device, images: int = IMAGES, max_steps: int | None = None, jobs: int = 1
) -> str:
    """Train, evaluate and draw into `out`; returns what to print. Finished parts are not done again.

    Both models have the same start; then one is meta-trained and the other trained on as before for as long. With two
    jobs this goes on at the same time, each with half of the threads. `max_steps` shortens each of the three trainings.
    """
    began = time.monotonic()
    dataset = load_digits()
    folders = {"mt3": out, "plain": out / "plain"}
    methods = {"mt3": "mt3", "plain": "baseline"}
    configs = {name: make_config(method, "digits", "demo", seed) for name, method in methods.items()}
    if max_steps is not None:
        configs = {name: _shorten(config, dataset, max_steps) for name, config in configs.items()}
    start = start_config(configs["mt3"])
    assert start is not None
    assert start == start_config(configs["plain"])
    if steps_done(start, out / START) is not None:
        train(start, dataset, out / START, RunOptions(str(device), resume=True))
    copy_start(out, folders["plain"])
    trainings = [Training(configs[name], folder, device) for name, folder in folders.items()]
    run_apart(_train, trainings, list(methods), jobs, partial(torch.set_num_threads, thread_share(jobs)))
    models = {name: load(folder).to(device) for name, folder in folders.items()}
    available = corruptions.available()
    names = [name for name in corruptions.PAPER if name in available]
    results = {name: _evaluate(name, model, dataset, names, folders[name], images) for name, model in models.items()}
    seconds = {name: _seconds(folder) for name, folder in {**folders, "start": out / START}.items()}
    against_plain = paired_gain(results["mt3"].correct("after"), results["plain"].correct("before"))
    text = _text(results, against_plain, seconds)
    if max_steps is not None:
        text = f"SHORTENED to {max_steps} steps a training: these numbers say nothing about the demo's own.\n\n{text}"
    if "frost" not in names:
        text += f"\nWithout frost, whose photos are not here: {INSTALL_PHOTOS}."
    try:
        _draw(out, dataset, names)
        text += f"\n\nwrote {out / 'evaluation-mt3.json'}, {out / 'figure.png'} and the model in {out}"
    except InputError as error:
        text += f"\n\nwrote {out / 'evaluation-mt3.json'} and the model in {out}; no figure: {error}"
    return text + f" ({duration(time.monotonic() - began)})"


def _shorten(config: Config, dataset: Dataset, max_steps: int) -> Config:
    """The training, and the one that comes first, with so many steps at most."""
    if max_steps < 1:
        raise InputError("Expected at least 1 step, got 0; raise --max-steps.")
    first = start_config(config)
    assert first is not None
    epochs = [min(one.epochs, max_steps / count_steps(one, dataset)[0]) for one in (config, first)]
    return replace(config, epochs=epochs[0], start=f"{first.method}:{epochs[1]!r}")


def _train(training: Training) -> None:
    config, out, device = training
    train(config, load_digits(), out, RunOptions(str(device), resume=True))


def _seconds(run: Path) -> float:
    """What a training took, its start included."""
    own: float = read_json(run / RUN_FILE)["seconds"]
    return own + (_seconds(run / START) if (run / START).exists() else 0.0)


def _evaluate(name: str, model: MT3Model, dataset: Dataset, names: list[str], out: Path, images: int) -> Evaluation:
    adaptation = model.adaptation if name == "mt3" else None
    run = about_run(read_run(out), out)
    protocol = Protocol(tuple(names), (SEVERITY,), images, adaptation is not None, adaptation, run=run)
    return evaluate(model, TestImages(dataset), protocol, out / f"evaluation-{name}.json")


def _text(results: dict[str, Evaluation], against_plain: Difference, seconds: dict[str, float]) -> str:
    mt3 = results["mt3"]
    table = result_table(
        {
            "plain model": (results["plain"], "before"),
            "MT3 before": (mt3, "before"),
            "unrelated image": (mt3, "clean_other"),
            "same corruption": (mt3, "same_corruption"),
            "MT3 after": (mt3, "after"),
        }
    )
    adaptation = mt3.gain("adaptation")
    lines = [
        f"Accuracy in % on {mt3.protocol['images']} held-out digits under each corruption, severity {SEVERITY}.",
        f"Both models have the same network, augmentation and start ({duration(seconds['start'])}); then MT3 was "
        f"meta-trained for {duration(seconds['mt3'] - seconds['start'])}, the plain one trained on for "
        f"{duration(seconds['plain'] - seconds['start'])}.",
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


def _draw(out: Path, dataset: Dataset, names: list[str]) -> None:
    """One pair per corruption, with the test images in their order: nothing is picked by hand."""
    with np.load(out / "evaluation-mt3.npz", allow_pickle=False) as file:
        names = names[: len(file["labels"])]
    clean = dataset.test_images[: len(names)]
    corrupted = np.concatenate(
        [corruptions.apply(clean[i : i + 1], name, SEVERITY, first_index=i) for i, name in enumerate(names)]
    )
    texts = []
    with np.load(out / "evaluation-mt3.npz", allow_pickle=False) as file:
        labels = file["labels"]
        for i, name in enumerate(names):
            answers: list[str | bool] = []
            for row in ("before", "after"):
                p = file[f"{name}-{SEVERITY}/{row}"][i]
                answers += [f"{dataset.classes[p.argmax()]} {100 * p.max():.0f} %", bool(p.argmax() == labels[i])]
            texts.append(answers)
    truth = [dataset.classes[label] for label in dataset.test_labels[: len(names)]]
    draw_examples(out / "figure.png", clean, corrupted, names, texts, truth)
