"""The paper's study on paper: hours, messages and schedules by hand, and failures against a closed formula."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import gpu_check, scaling
from benchmarks.floor import layer_flops, meta_step_flops
from benchmarks.meta_step import Setting, prepare
from benchmarks.ranks import bench_ranks, median_interval
from benchmarks.scaling import Faults, Training, best_interval, makespan, message_seconds, time_with_failures


def test_the_numbers_of_the_paper_are_those_of_the_code():
    model = prepare(Setting()).state.model
    assert sum(p.numel() for p in model.parameters()) == scaling.PARAMETERS
    passes = meta_step_flops(model, 4, 8) / sum(layer_flops(model).values()) / 32
    assert passes == pytest.approx(scaling.META_PASSES, rel=1e-3)
    assert sum(t.runs for t in scaling.TRAININGS) == 24
    assert sum(t.runs * scaling.TESTED for t in scaling.TRAININGS if t.adapted) == 2_400_000
    hours = {t.name: t.hours for t in scaling.TRAININGS}
    assert hours["mt3"] == 48
    assert hours["jt"] == pytest.approx(48 * 11 * 32 / 862)
    assert scaling.TRAININGS[0].steps == 200 * 1562


def test_a_step_is_split_into_whole_parts_and_its_gradient_goes_round_a_ring():
    training = Training("four", scaling.META_PASSES, 200, 32, 4, 1)
    assert [training.on(gpus, math.inf) for gpus in (1, 2, 3, 4, 8)] == pytest.approx([48, 24, 24, 12, 12], rel=1e-2)
    assert message_seconds(1, 1e9) == 0
    # four ranks: six parts of a quarter each
    assert message_seconds(4, 1e9, latency=1e-3) == pytest.approx(6 * (scaling.MESSAGE / 4 / 1e9 + 1e-3))


def test_jobs_start_as_soon_as_enough_gpus_are_free():
    assert makespan([(3.0, 1), (2.0, 1), (2.0, 1)], 2) == 4
    assert makespan([(3.0, 2), (2.0, 1), (2.0, 1)], 2) == 5
    assert makespan([(3.0, 1), (2.0, 2)], 2) == 5
    assert scaling.best_plan(1, 1e9)[0] == pytest.approx(sum(t.runs * t.hours for t in scaling.TRAININGS))


def test_a_failure_costs_what_was_not_saved_and_the_restart():
    faults = Faults(restart=5.0, checkpoint=0.5, every=2)
    steps = [1.0] * 6  # with saving 7.5 seconds
    assert time_with_failures(steps, faults, iter([math.inf])) == (7.5, 0)
    # after 4.1 seconds three steps and one checkpoint are done; from the second step on 5 seconds are left
    assert time_with_failures(steps, faults, iter([4.1, math.inf])) == (4.1 + 5 + 5, 1)
    # the second failure comes before anything else is saved
    assert time_with_failures(steps, faults, iter([4.1, 0.3, math.inf])) == (pytest.approx(4.4 + 10 + 5), 2)


def test_simulated_failures_cost_what_the_formula_says():
    """Daly's, with restarts that do not fail: (M + R) (e^((t + C) / M) - 1) for a stretch of t and its checkpoint."""
    between, faults = 400.0, Faults(restart=30.0, checkpoint=2.0, every=50)
    generator = np.random.default_rng(1)
    totals = []
    for _ in range(200):
        gaps = (generator.exponential(between) for _ in itertools.count())
        totals.append(time_with_failures([1.0] * 2000, faults, gaps)[0])
    stretches = 2000 / 50
    want = stretches * (between + faults.restart) * (math.exp(52 / between) - 1)
    assert np.mean(totals) == pytest.approx(want, rel=0.02)
    assert best_interval(1.0, 1, Faults(between=between, checkpoint=2.0)) == 40  # root of 2 * 2 * 400


def test_all_ranks_wait_for_the_slowest():
    generator = np.random.default_rng(0)
    times = scaling.step_times(20_000, 1.0, 4, Faults(spread=0.05), generator)
    assert times.mean() == pytest.approx(
        math.exp(0.05 * 1.0294), rel=2e-3
    )  # 1.0294: mean of the largest of four normals
    assert (scaling.step_times(5, 2.0, 4, Faults(spread=0.0), generator) == 2.0).all()


def test_the_page_has_the_tables_that_the_code_gives():
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
    for table in scaling.scaling_summary().split("\n\n"):
        assert table in page


def test_the_interval_of_a_median():
    values = list(range(20))
    assert median_interval(values) == (5, 14)  # P(at most five of twenty below the median) is 0.021
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


@pytest.mark.slow
def test_ranks_are_timed():
    """By real processes."""
    result = bench_ranks(Setting(width=4, depth=8, tasks=2, task_size=2), rounds=2)
    for name in ("waiting", "messages"):
        assert 0 < result["shares"][name]["median"] < 1


def test_a_page_says_that_there_is_no_gpu(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main() == 2
    assert capsys.readouterr().err == f"gpu-check: {gpu_check.NONE} Wrote gpu-check.md.\n"
    assert gpu_check.NONE in (tmp_path / "gpu-check.md").read_text()


def test_steps_and_images_are_timed_for_the_page(monkeypatch):
    monkeypatch.setattr(gpu_check, "time_step", lambda config, dataset, device: 0.25 if config.tasks == 1 else 0.5)
    monkeypatch.setattr(gpu_check, "time_image", lambda config, dataset, device: 0.02)
    lines = list(gpu_check.measure(torch.device("cpu"), ["mt3", "jt"]))
    assert [line.label for line in lines] == [f"{m} {p}" for m in ("mt3", "jt") for p in ("float32", "bfloat16")]
    step, hours, told, _, images = lines[0].cells
    assert (step.value, told.value, images.value) == (0.5, 48.0, 50.0)
    assert hours.value == pytest.approx(0.5 * 312_400 / 3600)
    assert "| mt3 float32" in gpu_check.measured_table(lines)
