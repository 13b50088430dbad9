"""The demo: shipped networks on real photos, then MT3 and a plain classifier trained on digits, with honest numbers."""

import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from mt3 import corruptions
from mt3.config.config import Config, make_config, start_config
from mt3.corruptions.weather import INSTALL_PHOTOS
from mt3.data import Dataset, load_digits
from mt3.evaluation.evaluate import evaluate
from mt3.evaluation.protocol import Protocol, TestImages
from mt3.models.store import load, read_run
from mt3.studies.beside import (
    STREAM,
    Setting,
    about_model,
    draw_turned,
    evaluate_setting,
    lines_of,
    method_line,
    show,
    worth_of_own,
)
from mt3.studies.photos import PHOTOS, show_photos
from mt3.studies.plan import Study, Test, Training, starts_of
from mt3.studies.reproduce import evaluate_run, train_run
from mt3.support.errors import InputError, name_list
from mt3.support.processes import run_apart
from mt3.support.progress import duration
from mt3.training.runs import START, count_steps, steps_done

IMAGES = 250  # held-out digits under each corruption
SHIFTS = 5  # corruptions that matter
SEVERITY = 5
LOOKED_AT = 200  # training digits on which they are chosen


def run_demo(
    out: Path, seed: int, device: torch.device, images: int = IMAGES, max_steps: int | None = None, jobs: int = 1
) -> str:
    """Show both parts into `out`; returns what to print. Finished parts are not done again.

    `max_steps` shortens each of the three trainings on digits, `images` the number of test images.
    """
    began = time.monotonic()
    print(f"{show_photos(out / 'photos', device, min(images, PHOTOS))}\n", flush=True)
    text = _digits(out, seed, device, images, max_steps, jobs)
    if max_steps is not None:
        text = f"SHORTENED to {max_steps} steps a training: these numbers say nothing about the demo's own.\n\n{text}"
    return f"{text} ({duration(time.monotonic() - began)})"


def _digits(out: Path, seed: int, device: torch.device, images: int, max_steps: int | None, jobs: int) -> str:
    """Train on the digits, choose the shifts on training digits, and evaluate on the others.

    Both models have the same start; then one is meta-trained and the other trained on as before for as long. With two
    jobs this goes on at the same time, each with half of the threads.
    """
    dataset, methods = load_digits(), ["mt3", "baseline"]
    configs = [_shorten(make_config(method, "digits", "demo", seed), dataset, max_steps) for method in methods]
    trainings = [Training("mt3", configs[0], out), Training("plain", configs[1], out / "plain")]
    study = Study(out, TestImages(dataset), "demo", methods, 1, (), [SEVERITY], images, device=device, jobs=jobs)
    train = partial(train_run, study, trainings)
    for start in starts_of(trainings[0]):
        if steps_done(start.config, start.folder) is not None:
            train(start)
    study = replace(study, corruptions=_shifts_that_matter(dataset, out / START, device))
    left = [training for training in trainings if steps_done(training.config, training.folder) is not None]
    run_apart(train, left, [t.name for t in left], jobs, partial(torch.set_num_threads, study.threads))
    tests = [Test(training, training.folder / f"evaluation-{training.name}.json", {}) for training in trainings]
    mt3, plain = (evaluate_run(study, test) for test in tests)
    asked = Protocol(tuple(study.corruptions), (SEVERITY,), images)
    ask = partial(evaluate_setting, images=study.images, asked=asked)
    own, rival = (Setting(load(t.folder).to(device), run=about_model(t.folder)) for t in trainings)
    online = ask(own._replace(stream=STREAM), folder=out / "online")
    tent = ask(rival._replace(method="tent", stream=STREAM), folder=out / "online")
    plus = ask(rival._replace(method="plus", stream=STREAM), folder=out / "online")
    copies = ask(rival._replace(method="average", fields={"views": 8}), folder=out / "plain" / "copies")
    as_it_is = lines_of("plain", plain, tent, "")[0]
    lines = [
        as_it_is,
        method_line("plain", "average", copies, None),
        method_line("plain", "tent", None, tent),
        method_line("plain", "plus", None, plus),
        *lines_of("MT", mt3, online, "MT3"),
    ]
    table, verdict = show(lines)
    took = [duration(read_run(folder)["seconds"]) for folder in (out / START, out, out / "plain")]
    try:
        figure = draw_turned(mt3, study.images, dataset.classes)
    except InputError as error:
        figure = f"no figure: {error}"
    text = f"""2. Handwritten digits, trained here

Accuracy in % on {mt3.protocol["images"]} held-out digits under each of {name_list(study.corruptions)},
severity {SEVERITY}: the corruptions that cost the common start the most on training digits. Both models have the
same network, augmentation and start ({took[0]}); then MT was meta-trained for {took[1]}, the plain one trained on
for {took[2]}.

{table}

{verdict}
{worth_of_own(mt3)}
{figure}
wrote {tests[0].file} and the model in {out}"""
    if "frost" not in corruptions.available():
        text += f"\nWithout frost, whose photos are not here: {INSTALL_PHOTOS}."
    return text


def _shifts_that_matter(dataset: Dataset, start: Path, device: torch.device) -> list[str]:
    """The corruptions under which the start has the fewest training digits right, in the order of the tables."""
    learned = replace(
        dataset, test_images=dataset.train_images[:LOOKED_AT], test_labels=dataset.train_labels[:LOOKED_AT]
    )
    names = [name for name in corruptions.PAPER if name in corruptions.available()]
    asked = Protocol(tuple(names), (SEVERITY,))
    found = evaluate(load(start).to(device), TestImages(learned), asked, start / "shifts.json")
    hardest = sorted(names, key=lambda name: found.accuracy("before", name))[:SHIFTS]
    return [name for name in names if name in hardest]


def _shorten(config: Config, dataset: Dataset, max_steps: int | None) -> Config:
    """The training, and the one that comes first, with so many steps at most."""
    first = start_config(config)
    if max_steps is None or first is None:
        return config
    epochs = [min(one.epochs, max_steps / count_steps(one, dataset)[0]) for one in (config, first)]
    return replace(config, epochs=epochs[0], start=f"{first.method}:{epochs[1]!r}")
