"""The losses by hand."""

import pytest
import torch
import torch.nn.functional as F

import reference
from mt3.adaptation.step import inner_loop
from mt3.models.call import call, parameters_of
from mt3.training.losses import joint_loss, meta_loss
from mt3.training.state import make_state
from mt3.training.tasks import draw_task
from trainings import small_config


@pytest.mark.parametrize("variant", ["paper", "official"])
def test_joint_loss_by_hand(digits, variant):
    """In the authors' code the average begins with weights of its own."""
    config = small_config("jt", variant=variant)
    state = make_state(config, digits, torch.device("cpu"))
    images = torch.from_numpy(digits.train_images[:4]).permute(0, 3, 1, 2)
    task = draw_task(images, torch.from_numpy(digits.train_labels[:4]), config, torch.Generator().manual_seed(0))
    assert task.views is not None
    assert state.ema is not None
    loss = joint_loss(state, task, config, log=True)
    online = dict(state.model.named_parameters())
    logits = reference.network(online, task.images, 2, torch.relu)[0]
    r = reference.network(online, task.views.images, 2, torch.relu)[2]
    z = reference.network(state.ema, task.views.images, 2, torch.relu)[1]
    want = F.cross_entropy(logits, task.labels) + 0.1 * reference.byol(r, z)
    assert loss.total.item() == pytest.approx(want.item(), rel=1e-5)
    same = torch.equal(state.ema["backbone.early.stem.weight"], online["backbone.early.stem.weight"])
    assert same == (variant == "paper")


def test_rotation_training_turns_every_image_by_all_angles(digits):
    config = small_config("jt-rotation")
    images = torch.from_numpy(digits.train_images[:3]).permute(0, 3, 1, 2)
    task = draw_task(images, torch.from_numpy(digits.train_labels[:3]), config, torch.Generator().manual_seed(0))
    assert task.views is not None
    assert task.views.labels is not None
    assert task.views.labels.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    for i, quarter in enumerate(task.views.labels.tolist()):
        assert torch.equal(task.views.images[i], torch.rot90(task.images[i % 3], quarter, (1, 2)))
    state = make_state(config, digits, torch.device("cpu"))
    loss = joint_loss(state, task, config, log=True)
    outputs = state.model.outputs(task.views.images)
    want = F.cross_entropy(state.model(task.images), task.labels) + F.cross_entropy(
        outputs.heads["turn"], task.views.labels
    )
    assert loss.total.item() == pytest.approx(want.item(), rel=1e-5)


@pytest.mark.parametrize("gamma", [0.0, 0.1])
@pytest.mark.parametrize("task_images", [1, 4])
def test_the_meta_loss_is_that_of_the_adapted_model(digits, gamma, task_images):
    """With or without a second pass over the views; x is classified after a step on its views."""
    config = small_config(gamma=gamma, task_images=task_images, inner_lr=0.5)
    state = make_state(config, digits, torch.device("cpu"))
    images = torch.from_numpy(digits.train_images[:4]).permute(0, 3, 1, 2)
    task = draw_task(images, torch.from_numpy(digits.train_labels[:4]), config, torch.Generator().manual_seed(0))
    views = task.views
    assert views is not None
    inner = inner_loop(state.model, parameters_of(state.model), lambda step: views, config.inner)
    want = F.cross_entropy(call(state.model, inner.params, task.images, heads=False).logits, task.labels)
    loss = meta_loss(state, task, config, log=True)
    torch.testing.assert_close(loss.metrics["ce"], want)
    total = loss.metrics["ce"] + gamma * loss.metrics.get("selfsup", 0.0)
    torch.testing.assert_close(loss.total, total)
    before = (state.model(task.images).argmax(1) == task.labels).float().mean()
    assert loss.metrics["accuracy_before"] == before
