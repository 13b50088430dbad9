"""Tasks: what they share, what they show, and that an epoch sees every image once."""

import pytest
import torch

from mt3.training.tasks import draw_step_task
from trainings import small_config


def test_b_is_shared_within_a_task_and_differs_between_tasks(digits):
    """A flat grey picture shows B's brightness; its views and x must show the same one."""
    config = small_config(pad=0, tasks=8, task_size=8)
    grey = torch.full((64, 3, 32, 32), 128, dtype=torch.uint8)
    labels = torch.zeros(64, dtype=torch.int64)
    still = {"JITTER_SHARE": -1.0, "GREY_SHARE": -1.0, "NOISE_STD": 0.0}
    shifts = []
    with pytest.MonkeyPatch.context() as patch:
        for name, value in still.items():
            patch.setattr(f"mt3.objectives.augment.{name}", value)
        for number in range(config.tasks):
            task = draw_step_task(grey, labels, config, 0, number)
            assert task.views is not None
            everything = torch.cat([task.images, task.views.images])
            assert everything.shape == (24, 3, 32, 32)
            shift = everything[0, 0, 0, 0].item() - 128 / 255
            torch.testing.assert_close(everything, torch.full_like(everything, 128 / 255 + shift), atol=1e-6, rtol=0)
            shifts.append(shift)
    assert len({round(s, 6) for s in shifts}) == 8
    assert max(map(abs, shifts)) <= 0.2


def test_an_epoch_sees_every_image_once(digits):
    config = small_config(tasks=4, task_size=8)
    images = torch.zeros(96, 3, 32, 32, dtype=torch.uint8)
    labels = torch.arange(96)
    for epoch in (0, 1):
        seen = [
            draw_step_task(images, labels, config, 3 * epoch + step, number).labels
            for step in range(3)
            for number in range(config.tasks)
        ]
        assert sorted(torch.cat(seen).tolist()) == list(range(96))
    orders = [draw_step_task(images, labels, config, step, 0).labels.tolist() for step in (0, 3)]
    assert orders[0] != orders[1]


@pytest.mark.parametrize("different", [1, 2, 8])
def test_tasks_of_few_images(digits, different):
    config = small_config(task_images=different, tasks=2, task_size=8)
    images = torch.from_numpy(digits.train_images[:16]).permute(0, 3, 1, 2)
    seen = []
    for number in range(config.tasks):
        task = draw_step_task(images, torch.arange(16), config, 0, number)
        assert task.images.shape[0] == 8
        own = sorted(set(task.labels.tolist()))
        assert sorted(task.labels.tolist()) == sorted(own * (8 // different))
        seen += own
    assert len(seen) == len(set(seen)) == 2 * different
