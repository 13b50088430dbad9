"""On a GPU: the numbers of the CPU. Without one, all of these tests skip; `make gpu-check` runs them."""

import pytest
import torch

import mt3
from mt3.cli.main import main
from mt3.config.methods import METHODS
from mt3.data import Dataset
from mt3.training.loop import apply_gradient, gradient_of_step
from mt3.training.state import make_state
from mt3.training.tasks import hold_images
from rank_runs import difference, sentences, torchrun, words
from small import small_model
from trainings import small_config

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU that PyTorch can use here")


def steps_on(device: torch.device, dataset: Dataset, method: str) -> torch.Tensor:
    config = small_config(method)
    state = make_state(config, dataset, device)
    state.model.double()
    state.ema = None if state.ema is None else {name: p.double() for name, p in state.ema.items()}
    images, labels = hold_images(dataset.train_images, device), torch.from_numpy(dataset.train_labels).to(device)
    for step in range(5):
        gradient_of_step(state, images, labels, config, step, log=True)
        apply_gradient(state, config, step, 100, 10)
    return torch.cat([p.detach().cpu().flatten() for p in state.model.parameters()])


@pytest.mark.parametrize("method", METHODS)
def test_five_steps_are_those_of_the_cpu(digits, method):
    """Images are augmented in float32, whose rounding differs: 1e-5 in float64."""
    cpu, gpu = (steps_on(torch.device(name), digits, method) for name in ("cpu", "cuda"))
    assert float((gpu - cpu).norm() / cpu.norm()) < 1e-5


@pytest.mark.parametrize("objective", ["byol", "rotation"])
def test_adapting_gives_the_answers_of_the_cpu(objective):
    model, images = small_model(objective=objective), torch.rand(5, 3, 32, 32)
    want = mt3.Adapter(model)(images)
    found = mt3.Adapter(model.to("cuda"))(images.to("cuda"))
    torch.testing.assert_close(found.cpu(), want, atol=1e-4, rtol=1e-4)


def test_a_training_on_the_gpu_is_saved_and_resumed(tmp_path):
    command = [*words("mt3", tmp_path / "cut", 4), "--device", "cuda"]
    assert main(command) == 0
    assert main([*words("mt3", tmp_path / "cut", 8), "--device", "cuda", "--resume"]) == 0
    assert main([*words("mt3", tmp_path / "whole", 8), "--device", "cuda"]) == 0
    assert difference(tmp_path / "whole", tmp_path / "cut") < 1e-3


def test_a_training_in_bfloat16(tmp_path):
    assert main([*words("mt3", tmp_path / "run", 8), "--device", "cuda", "--precision", "bfloat16"]) == 0
    assert mt3.load(tmp_path / "run").precision == "bfloat16"


def test_ranks_joined_by_nccl_train_what_one_process_trains(tmp_path):
    """One rank for each of up to three GPUs."""
    count = min(3, torch.cuda.device_count())
    done = torchrun(count, {"float64": [[*words("mt3", tmp_path / "ranks", 8), "--device", "cuda"]]})
    assert done.returncode == 0, done.stderr
    done = torchrun(1, {"float64": [[*words("mt3", tmp_path / "plain", 8), "--device", "cuda"]]})
    assert done.returncode == 0, done.stderr
    assert difference(tmp_path / "plain", tmp_path / "ranks") < 1e-8


def test_a_rank_that_raises_ends_those_that_nccl_joins(tmp_path):
    count = min(3, torch.cuda.device_count())
    asked = {"fail": "gradient", "how": "raise", "rank": count - 1}
    done = torchrun(count, asked | {"float32": [[*words("mt3", tmp_path / "run", 100_000), "--device", "cuda"]]})
    assert done.returncode == 1
    assert sentences(done) == ["mt3: This rank has had enough."]
