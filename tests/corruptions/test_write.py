"""The writer of the published layout: exact files, whatever the number of processes and whatever interrupts it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from mt3.cli.main import main
from mt3.corruptions import apply, available
from mt3.corruptions import write as module
from mt3.corruptions.registry import CHUNK
from mt3.corruptions.write import library_versions, write_corrupted
from mt3.data import Dataset, load_digits, open_corrupted
from mt3.support.errors import InputError
from mt3.support.files import own_directory

NAMES = ("gaussian_noise", "shot_noise", "impulse_noise")  # the first of `every`, in its order


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_digits()


@pytest.fixture(scope="module")
def whole(tmp_path_factory, digits) -> Path:
    """Three corruptions of all digits, written in one go by one process."""
    folder = tmp_path_factory.mktemp("whole")
    assert write_corrupted(digits, folder, NAMES) == list(NAMES)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """All files, hidden ones too."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def assert_same_files(folder: Path, other: Path) -> None:
    got, want = contents(folder), contents(other)
    assert list(got) == list(want)
    assert [name for name in want if got[name] != want[name]] == []


def test_the_loader_reads_back_what_apply_gives(tmp_path, digits):
    count = CHUNK + 5  # the second chunk must be seeded by its own indices
    assert write_corrupted(digits, tmp_path, ["fog", "contrast"], [5, 1, 5], count, seed=3) == ["fog", "contrast"]
    corrupted = open_corrupted(tmp_path, digits.num_classes)
    assert corrupted.names() == ["contrast", "fog"]
    assert (corrupted.severities, corrupted.images, corrupted.size) == ((1, 5), count, 32)
    np.testing.assert_array_equal(corrupted.labels, digits.test_labels[:count])
    for name in ("fog", "contrast"):
        parts = [apply(digits.test_images[:count], name, severity, seed=3) for severity in (1, 5)]
        for severity, part in zip((1, 5), parts, strict=True):
            np.testing.assert_array_equal(corrupted.images_of(name, severity), part)
        stream = BytesIO()
        np.save(stream, np.concatenate(parts))
        assert (tmp_path / f"{name}.npy").read_bytes() == stream.getvalue()


def test_the_default_is_the_published_layout(whole, digits):
    images, labels = np.load(whole / "shot_noise.npy"), np.load(whole / "labels.npy")
    assert (images.shape, images.dtype) == ((5 * 500, 32, 32, 3), np.uint8)
    assert (labels.shape, labels.dtype) == ((5 * 500,), np.uint8)
    np.testing.assert_array_equal(labels, np.tile(digits.test_labels, 5))
    np.testing.assert_array_equal(images[3 * 500 :][:500], apply(digits.test_images, "shot_noise", 4))
    assert sorted(contents(whole)) == sorted([*(f"{name}.npy" for name in NAMES), "labels.npy", "protocol.json"])


def test_the_protocol_says_what_made_the_files(whole, digits):
    protocol = json.loads((whole / "protocol.json").read_text())
    want = {"data": "digits", "split": "test", "images": 500, "severities": [1, 2, 3, 4, 5], "seed": 0}
    want["parameter_set"] = 32
    assert {key: protocol[key] for key in want} == want
    assert protocol["versions"] == library_versions()
    assert set(protocol["versions"]) == {"mt3", "numpy", "scipy", "pillow", "libjpeg"}
    changed = digits.test_labels.copy()
    changed[-1] += 1
    other = Dataset("digits", digits.train_images, digits.train_labels, digits.test_images, changed, digits.classes)
    assert module.make_protocol(other, [1], None, 0)["clean_hash"] != protocol["clean_hash"]
    assert module.make_protocol(digits, [1], 7, 1)["clean_hash"] == protocol["clean_hash"]


def test_images_of_any_size_are_written(tmp_path, digits, monkeypatch, capsys):
    larger = np.repeat(np.repeat(digits.test_images[:3], 2, axis=1), 2, axis=2)[:, :48, :48].copy()
    dataset = Dataset("larger", larger[:0], digits.test_labels[:0], larger, digits.test_labels[:3], digits.classes)
    write_corrupted(dataset, tmp_path, ["pixelate"], [2])
    assert json.loads((tmp_path / "protocol.json").read_text())["parameter_set"] == 64
    np.testing.assert_array_equal(open_corrupted(tmp_path).images_of("pixelate", 2), apply(larger, "pixelate", 2))
    monkeypatch.setattr("mt3.cli.arguments.load_dataset", lambda *of: dataset)
    words = ["corrupt", "--out", str(tmp_path), "--corruptions", "pixelate", "--severity", "2", "--workers", "1"]
    assert main(words) == 0
    assert capsys.readouterr().out.endswith("; 1 of 1 were there; 48 pixels take the parameters for 64\n")


def test_two_processes_write_the_same_bytes(tmp_path, whole, digits):
    write_corrupted(digits, tmp_path, NAMES, workers=2)
    assert_same_files(tmp_path, whole)


def test_whole_files_are_kept_and_damaged_ones_written_again(tmp_path, digits):
    write_corrupted(digits, tmp_path, ["fog"], limit=9)
    first = contents(tmp_path)
    written = (tmp_path / "fog.npy").stat().st_mtime_ns
    assert write_corrupted(digits, tmp_path, ["fog", "contrast"], limit=9) == ["contrast"]
    assert (tmp_path / "fog.npy").stat().st_mtime_ns == written
    assert write_corrupted(digits, tmp_path, ["fog", "contrast"], limit=9) == []
    fog = tmp_path / "fog.npy"
    for damaged in (first["fog.npy"][:-1], first["fog.npy"].replace(b"45", b"44", 1), b""):
        fog.write_bytes(damaged)
        assert write_corrupted(digits, tmp_path, ["fog"], limit=9) == ["fog"]
        assert fog.read_bytes() == first["fog.npy"]
    (tmp_path / "labels.npy").write_bytes(b"")
    write_corrupted(digits, tmp_path, ["fog"], limit=9)
    assert (tmp_path / "labels.npy").read_bytes() == first["labels.npy"]


def test_a_failure_leaves_nothing_under_the_final_name(tmp_path, digits, monkeypatch):
    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(KeyboardInterrupt):
        write_corrupted(digits, tmp_path, ["fog"], limit=9)
    assert sorted(contents(tmp_path)) == ["labels.npy", "protocol.json"]


KILLED = """
import os, signal, sys
from pathlib import Path
from mt3.corruptions import write
from mt3.data import load_digits
calls = 0
def apply(*arguments):
    global calls
    calls += 1
    if calls == 8:  # of 5 for each file: in the middle of the second
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments)
original, write.apply = write.apply, apply
write.write_corrupted(load_digits(), Path(sys.argv[1]), sys.argv[2:])
"""


def test_a_killed_run_goes_on_where_it_stopped(tmp_path, whole, digits):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), *NAMES], stderr=subprocess.DEVNULL)
    assert done.returncode == -signal.SIGKILL
    left = sorted(path.name for path in tmp_path.iterdir() if path.name not in ("labels.npy", "protocol.json"))
    assert left[0].startswith(".shot_noise.npy.")
    assert left[1:] == ["gaussian_noise.npy"]
    written = (tmp_path / "gaussian_noise.npy").stat().st_mtime_ns
    assert write_corrupted(digits, tmp_path, NAMES) == list(NAMES[1:])
    assert (tmp_path / "gaussian_noise.npy").stat().st_mtime_ns == written
    assert_same_files(tmp_path, whole)


def test_leftovers_of_other_corruptions_are_removed_and_strange_files_stay(tmp_path, digits):
    write_corrupted(digits, tmp_path, ["fog"], limit=2)
    for name in (".contrast.npy.abcd_123.tmp", ".protocol.json.abcd_123.tmp", ".mine.npy.abcd_123.tmp", "notes.txt"):
        (tmp_path / name).write_text("left")
    write_corrupted(digits, tmp_path, ["fog"], limit=2)
    assert sorted(contents(tmp_path)) == [
        ".mine.npy.abcd_123.tmp", "fog.npy", "labels.npy", "notes.txt", "protocol.json",
    ]  # fmt: skip


def state_and_parent(pid: int) -> tuple[str, int]:
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "gone", 0
    return state, int(parent)


def children_of(pid: int) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [child for child in pids if state_and_parent(child)[1] == pid]


def is_running(pid: int) -> bool:
    return state_and_parent(pid)[0] not in ("gone", "Z")  # an orphan may wait for somebody to collect it


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_interrupted_workers_stop_and_the_files_end_the_same(tmp_path, whole, digits, number, code):
    """A real signal while two processes corrupt; those of a terminal go to the whole group, as it sends them."""
    words = [sys.executable, "-m", "mt3", "corrupt", "--out", str(tmp_path), "--workers", "2"]
    process = subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (tmp_path / "gaussian_noise.npy").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.01)
    children = children_of(process.pid)
    assert len(children) >= 2
    (os.killpg if number in (signal.SIGINT, signal.SIGHUP) else os.kill)(process.pid, number)
    _, err = process.communicate(timeout=30)  # a worker that lived on would hold the pipe open
    assert process.returncode == code
    assert b"Traceback" not in err
    while any(is_running(pid) for pid in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    done = sorted(tmp_path.glob("[!.l]*.npy"))
    assert len(done) < len(available())
    if number != signal.SIGKILL:
        assert not list(tmp_path.glob(".*"))
        assert err.endswith(b"\nmt3: interrupted; the same command goes on where it stopped\n")
    assert "gaussian_noise" not in write_corrupted(digits, tmp_path, NAMES)
    for path in done:
        if path.stem not in NAMES:
            path.unlink()
    assert_same_files(tmp_path, whole)


def test_another_protocol_is_refused_naming_the_difference(tmp_path, digits, monkeypatch):
    write_corrupted(digits, tmp_path, ["fog"], [1, 5], limit=4)
    before = contents(tmp_path)
    other = Dataset("digits", digits.train_images, digits.train_labels, 255 - digits.test_images, digits.test_labels,
                    digits.classes)  # fmt: skip
    cases = [
        (
            digits,
            [1, 5],
            4,
            1,
            r"made otherwise \(seed 0 there, 1 here\): repeat that, choose another --out, or delete",
        ),
        (digits, [1, 5], 5, 0, r"\(images 4 there, 5 here\)"),
        (digits, [5], 4, 2, r"\(severities \[1, 5\] there, \[5\] here; seed 0 there, 2 here\)"),
        (other, [1, 5], 4, 0, r"\(clean_hash [0-9a-f]{32} there, [0-9a-f]{32} here\)"),
    ]
    for dataset, severities, limit, seed, sentence in cases:
        with pytest.raises(InputError, match=sentence):
            write_corrupted(dataset, tmp_path, ["contrast"], severities, limit, seed)
    monkeypatch.setattr(np, "__version__", "0.9")
    with pytest.raises(InputError, match=r"\(numpy [0-9.]+ there, 0.9 here\)"):
        write_corrupted(digits, tmp_path, ["fog"], [1, 5], 4)
    assert contents(tmp_path) == before


def test_foreign_directories_are_left_alone(tmp_path, digits):
    np.save(tmp_path / "fog.npy", np.zeros((5, 32, 32, 3), np.uint8))
    with pytest.raises(InputError, match=r"holds \w+\.npy, which `mt3 corrupt` did not write; choose another --out"):
        write_corrupted(digits, tmp_path, ["fog"])
    (tmp_path / "protocol.json").write_text('{"severities": [1]}')
    with pytest.raises(InputError, match="is not a protocol of `mt3 corrupt`"):
        write_corrupted(digits, tmp_path, ["fog"])
    assert np.load(tmp_path / "fog.npy").sum() == 0


def test_bad_input_is_refused_before_anything_is_written(tmp_path, digits):
    file = tmp_path / "file"
    file.write_text("text")
    cases = [
        ({"severities": [0, 6]}, "Expected severities from 1 to 5, got 0, 6; choose among these."),
        ({"severities": []}, "Expected severities from 1 to 5, got none; choose among these."),
        ({"names": ["rain"]}, "Unknown corruption 'rain': expected one of gaussian_noise"),
        ({"limit": 0}, "Expected the limit to be a whole number from 1 on, got 0."),
        ({"out": file}, f"Cannot write {file}: File exists; choose another --out."),
        ({"out": file / "c"}, f"Cannot write {file / 'c'}: Not a directory; choose another --out."),
        ({"out": Path("/proc/c")}, "Cannot write /proc/c: No such file or directory; choose another --out."),
    ]
    for changed, sentence in cases:
        with pytest.raises(InputError) as refused:
            write_corrupted(**({"dataset": digits, "out": tmp_path / "c"} | changed))
        assert str(refused.value).startswith(sentence)
    assert list(tmp_path.iterdir()) == [file]


def test_images_that_cannot_be_corrupted_are_refused_before_anything_is_written(tmp_path, digits):
    small = digits.test_images[:2, 8:20, 8:20]
    data = Dataset("small", small, digits.test_labels[:2], small, digits.test_labels[:2], digits.classes)
    assert data.size == 12
    with pytest.raises(InputError, match=r"the side from 16 to 512, got \(2, 12, 12, 3\)"):
        write_corrupted(data, tmp_path / "c", ["fog"])
    assert not (tmp_path / "c").exists()


def test_a_read_only_directory_is_refused(tmp_path):
    """Root may write anywhere until it gives that right up."""
    bound = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    if bound and (shutil.which(bound[0]) is None or subprocess.run([*bound, "true"], capture_output=True).returncode):
        pytest.skip("root may write anywhere, and `setpriv` cannot change that here")
    tmp_path.chmod(0o500)
    command = [*bound, sys.executable, "-m", "mt3", "corrupt", "--out", str(tmp_path), "--corruptions", "fog"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Permission denied; choose a directory you may write to" in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_second_writer_is_refused(tmp_path, digits):
    with (
        own_directory(tmp_path),
        pytest.raises(InputError, match=r"Another process is writing to .*; wait until it ends"),
    ):
        write_corrupted(digits, tmp_path, ["fog"], limit=2)
    assert write_corrupted(digits, tmp_path, ["fog"], limit=2) == ["fog"]


FULL = """
import resource, sys
from mt3.cli.main import main
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
sys.exit(main(["corrupt", "--out", sys.argv[1], "--corruptions", "fog", "--limit", "200", "--workers", sys.argv[2]]))
"""


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_full_disk_is_one_sentence(tmp_path, digits, workers):
    """A limit on the size of files stands in for the disk: writes fail in the same place."""
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path), workers], capture_output=True, text=True)
    assert done.returncode == 2
    place = f"{tmp_path / 'fog.npy'}: File too large; make room, or choose a place you may write to."
    assert done.stderr.splitlines()[-1] == f"mt3: {'' if workers == '1' else 'fog: '}Cannot write {place}"
    assert "Traceback" not in done.stderr
    assert sorted(contents(tmp_path)) == ["labels.npy", "protocol.json"]
    assert write_corrupted(digits, tmp_path, ["fog"], limit=200) == ["fog"]


MEASURED = """
import resource, sys
from pathlib import Path
import numpy as np
from mt3.corruptions.write import write_corrupted
from mt3.data.dataset import Dataset
count = int(sys.argv[2])
images = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
labels = np.zeros(count, np.int64)
data = Dataset("cifar10", images[:0], labels[:0], images, labels, ("a",))
write_corrupted(data, Path(sys.argv[1]), ["contrast"], workers=int(sys.argv[3]))
status = Path("/proc/self/status").read_text()  # ru_maxrss may hold the peak of the process that started this one
own = int(status.split("VmHWM:")[1].split()[0]) / 1024
print(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, "torch" in sys.modules)
"""


def peak(folder: Path, count: int, workers: int) -> tuple[float, float]:
    """MB of the process, and of the largest of its workers."""
    words = [sys.executable, "-c", MEASURED, str(folder), str(count), str(workers)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    own, child, torch = done.stdout.split()
    assert torch == "False"
    return float(own), float(child)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_does_not_grow_with_the_output(tmp_path):
    small, _ = peak(tmp_path / "small", 1000, 1)
    large, child = peak(tmp_path / "large", 10_000, 2)
    assert (tmp_path / "large" / "contrast.npy").stat().st_size == 128 + 50_000 * 3072  # 154 MB
    assert large - small < 120  # of which 28 are the clean images, and as much again what is sent to a process
    assert large + 2 * child < 600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "Expected the seed to be a whole number from 0 on, got -1"),
        ({"seed": True}, "Expected the seed to be a whole number from 0 on, got True"),
        ({"limit": 2.5}, "Expected the limit to be a whole number from 1 on, got 2.5"),
        ({"severities": [1, 2.5]}, "Expected severities from 1 to 5, got 1, 2.5"),
    ],
)
def test_what_is_refused_leaves_nothing(tmp_path, arguments, message):
    with pytest.raises(InputError, match=message):
        write_corrupted(load_digits(), tmp_path / "c", ("contrast",), **arguments)
    assert not (tmp_path / "c").exists()


def test_numpy_integers_and_a_path_as_text_will_do(tmp_path):
    digits = load_digits()
    write_corrupted(digits, tmp_path / "a", ("gaussian_noise",), [2, 5], limit=3, seed=1)
    write_corrupted(digits, str(tmp_path / "b"), ("gaussian_noise",), np.array([5, 2]), np.int64(3), np.uint8(1))
    for name in ("gaussian_noise.npy", "protocol.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
