"""Threads and processes change the speed and nothing else."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import mt3
from mt3.models.call import call
from mt3.support import processes as workers
from mt3.support.errors import InputError
from mt3.support.signals import Stopped, stop_on_signals
from mt3.support.threads import count_threads, side_by_side


def make_model():
    return mt3.MT3Model("resnet8x4g2", 10, hidden=16, projection=8, adaptation=mt3.Adaptation(views=4))


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_order_and_few_are_computed_ahead(threads):
    begun = []

    def work(item):
        begun.append(item)
        time.sleep(0.02 * (item % 3))  # later ones may finish first
        return item**2

    taken = []
    for result in side_by_side(work, iter(range(20)), threads):
        taken.append(result)
        time.sleep(0.005)
        assert len(begun) <= len(taken) + threads
    assert taken == [i**2 for i in range(20)]


def test_calls_of_threads_do_not_meet():
    """Each piece swaps the class layer for its own and must see that one, though all run at once."""
    torch.manual_seed(0)
    model = make_model()
    image = torch.rand(1, 3, 32, 32)
    weights = [torch.randn(10, 16) for _ in range(12)]
    barrier = threading.Barrier(2, timeout=20)

    def work(weight):
        with torch.no_grad():
            if threading.current_thread() is not threading.main_thread():
                barrier.wait()
            return call(model, {"classify.weight": weight}, image).logits

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # as each of the threads has: with more, sums are rounded otherwise
        alone = list(side_by_side(work, weights, 1))
    finally:
        torch.set_num_threads(before)
    together = list(side_by_side(work, weights, 2))
    for a, b in zip(alone, together, strict=True):
        assert torch.equal(a, b)


def in_threads(work, count):
    """What `work(number)` gives in so many new threads at once."""
    barrier = threading.Barrier(count, timeout=20)

    def start(number):
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(start, number) for number in range(count)]]


def test_any_number_of_threads_may_call_one_adapter():
    """Every way in, by eight threads at a time: the bits of one caller, and the weights stay."""
    model = make_model().eval()
    images = torch.rand(3, 3, 32, 32)
    adapter = mt3.Adapter(model)
    phi = next(adapter.adapt(images)).params
    ways = [
        lambda: [adapter(images[:1])],
        lambda: [adapter(images)],
        lambda: [adapter.answer(images, images[:, None]).logits],
        lambda: list(vars(adapter.compare(images)).values()),
        lambda: [p for adapted in adapter.adapt(images) for p in adapted.params.values()],
        lambda: [adapter.logits(phi, images)],
        lambda: [adapter.unadapted(images)],
        lambda: [model(images).detach()],
    ]
    wanted = [way() for way in ways]
    parameters = dict(model.named_parameters())
    before = {name: p.detach().clone() for name, p in parameters.items()}

    def ask(number):
        return [ways[(number + i) % len(ways)]() for i in range(len(ways))]

    for number, got in enumerate(in_threads(ask, 8)):
        for i, tensors in enumerate(got):
            for a, b in zip(tensors, wanted[(number + i) % len(ways)], strict=True):
                assert torch.equal(a, b)
    for name, p in model.named_parameters():
        assert p is parameters[name]
        assert torch.equal(p, before[name])


def test_an_adapter_follows_its_model():
    """Nothing of it is kept: other weights and another type are those of the next call."""
    model, other, image = make_model(), make_model(), torch.rand(1, 3, 32, 32)
    adapter = mt3.Adapter(model)
    before = adapter(image)
    model.load_state_dict(other.state_dict())
    assert torch.equal(adapter(image), mt3.Adapter(other)(image))
    assert not torch.allclose(adapter(image), before, atol=1e-3)
    assert mt3.Adapter(model.double())(image).dtype == torch.float64


def test_adapted_parameters_can_be_called_with_while_others_are_adapted():
    """Whoever calls the model with them does not meet a thread that adapts to the next image."""
    model, images = make_model(), torch.rand(4, 3, 32, 32)
    adapter = mt3.Adapter(model, stack=1)
    for a in adapter.adapt(images):
        with torch.no_grad():
            got = call(model, a.params, images).logits
        torch.testing.assert_close(got, adapter.logits(a.params, images), atol=1e-6, rtol=0)


def test_new_threads_of_the_caller_keep_their_cores():
    """PyTorch gives the number that was set last, in whichever thread, to every new one."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        inside = list(side_by_side(lambda item: torch.get_num_threads(), range(3), 3))
        assert inside == [1, 1, 1]
        assert in_threads(lambda number: torch.get_num_threads(), 2) == [3, 3]
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_starts_threads_of_its_own():
    """It has its parent's memory and none of its threads: to wait for these would be for ever."""
    assert list(side_by_side(lambda item: item, range(2), 2)) == [0, 1]
    child = os.fork()
    if not child:
        signal.alarm(20)  # ends it
        os._exit(sum(side_by_side(lambda item: item + 1, range(2), 2)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_an_error_in_a_thread_reaches_the_caller_and_ends_the_others():
    done, before = [], threading.active_count()

    def work(item):
        if item == 2:
            raise ValueError("item 2")
        done.append(item)
        return item

    with pytest.raises(ValueError, match="item 2"):
        list(side_by_side(work, range(100), 2))
    assert len(done) < 10
    assert threading.active_count() <= before + 2  # the two that are kept


def test_threads_are_the_cores_that_torch_may_use():
    model = make_model()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert [count_threads(model, items) for items in (0, 1, 2, 8)] == [1, 1, 2, 3]
        list(side_by_side(lambda item: torch.get_num_threads(), range(2), 2))
        assert torch.get_num_threads() == 3  # the caller keeps its own
    finally:
        torch.set_num_threads(before)


def test_adapting_and_meta_gradients_do_not_depend_on_the_threads(monkeypatch):
    torch.manual_seed(0)
    model, images = make_model(), torch.rand(5, 3, 32, 32)
    answers = []
    for threads in (1, 4):
        monkeypatch.setattr("mt3.adaptation.adapter.count_threads", lambda model, items, threads=threads: threads)
        adapter = mt3.Adapter(model)
        comparison = adapter.compare(images)
        answers.append([adapter(images), comparison.after, comparison.loss_after, comparison.grad_norm])
    for a, b in zip(*answers, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def _write_and_wait(job: tuple[Path, float]) -> None:
    path, seconds = job
    path.write_text(str(os.getpid()))
    try:
        time.sleep(seconds)
    except KeyboardInterrupt:
        path.with_suffix(".interrupted").touch()
        raise


def _refuse_or_wait(job: tuple[Path, float]) -> None:
    if not job[1]:
        while not job[0].with_name("other").exists():
            time.sleep(0.01)
        raise InputError("Expected more, got nothing.")
    _write_and_wait(job)


def test_jobs_run_in_processes_of_their_own(tmp_path):
    paths = [tmp_path / str(i) for i in range(3)]
    workers.run_apart(_write_and_wait, [(path, 0.0) for path in paths], list("abc"), at_once=2)
    pids = {path.read_text() for path in paths}
    assert len(pids) == 3
    assert str(os.getpid()) not in pids
    workers.run_apart(_write_and_wait, [(path, 0.0) for path in paths], list("abc"), at_once=1)
    assert {path.read_text() for path in paths} == {str(os.getpid())}


def test_an_error_in_one_job_interrupts_the_others(tmp_path):
    jobs = [(tmp_path / "bad", 0.0), (tmp_path / "other", 60.0), (tmp_path / "never", 0.0)]
    with pytest.raises(InputError, match="first: Expected more, got nothing"):
        workers.run_apart(_refuse_or_wait, jobs, ["first", "second", "third"], at_once=2)
    assert (tmp_path / "other.interrupted").exists()
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_all_jobs_each_of_which_saves(tmp_path, number):
    """To the first process and to the jobs, as a terminal sends it to all; these heed the first process alone."""
    jobs = [(tmp_path / name, 60.0) for name in ("a", "b", "c")]

    def send() -> None:
        while not all(path.exists() and path.read_text() for path, _ in jobs[:2]):
            time.sleep(0.01)
        if number != signal.SIGTERM:
            for path, _ in jobs[:2]:
                os.kill(int(path.read_text()), number)
            time.sleep(0.2)
            assert not list(tmp_path.glob("*.interrupted"))
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    with stop_on_signals(), pytest.raises(Stopped) as stopped:
        workers.run_apart(_write_and_wait, jobs, list("abc"), at_once=2)
    thread.join()
    assert stopped.value.number == number
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "a.interrupted", "b", "b.interrupted"]


def _die(job: bytes) -> None:
    raise OSError(28, "No space left on device")


def test_a_large_job_whose_process_dies_at_once_is_an_error(monkeypatch):
    """What is sent is larger than a pipe holds."""
    with pytest.raises(InputError, match=r"large: .*No space left"):
        workers.run_apart(_die, [bytes(1 << 22)], ["large"], at_once=2)
    monkeypatch.setattr(workers, "_apart", os._exit)  # called with a name, so that the process ends with an error
    with pytest.raises(InputError, match="large: the process ended with exit code 1"):
        workers.run_apart(_die, [bytes(1 << 22)], ["large"], at_once=2)


def test_a_job_that_is_killed_is_an_error(tmp_path):
    def kill() -> None:
        path = tmp_path / "0"
        while not path.exists() or not path.read_text():
            time.sleep(0.01)
        os.kill(int(path.read_text()), signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    with pytest.raises(InputError, match=r"a: the process ended with exit code -9, perhaps for want of memory"):
        workers.run_apart(_write_and_wait, [(tmp_path / "0", 60.0)], ["a"], at_once=2)
    thread.join()


def test_jobs_end_with_the_process_that_started_them():
    wait = "import os, time; os.write(1, b'.'); time.sleep(60)"
    start = f"from mt3.support.processes import run_apart; run_apart(exec, [{wait!r}] * 2, ['a', 'b'], at_once=2)"
    process = subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.read(2) == b".."  # both are at work
    process.kill()
    assert process.communicate(timeout=30) == (b"", None)  # a job that lived on would hold the pipe open
