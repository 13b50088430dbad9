"""Files that appear whole or not at all."""

import errno
import json
import math
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any

from mt3.support.errors import InputError

RUN_FILE = "run.json"  # config, progress and time of a training run
METRICS_FILE = "metrics.jsonl"
PROGRESS_FILE = "progress.json"  # of a training: who is at it, how far, and how it failed; gone when it has ended well
MAX_DEPTH = 50  # of objects and lists in one another; files of this package have up to six


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; rename it onto `path` if the block succeeds, delete it if not."""
    path = Path(path)
    temporary = _make_temporary(path)
    try:
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(
            f"Cannot write {path}: {error.strerror or error}; make room, or choose a place you may write to."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _make_temporary(path: Path) -> Path:
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
    except OSError as error:
        raise InputError(f"Cannot write {path}: {error.strerror}; choose a directory you may write to.") from error
    return temporary


def check_can_write(path: str | Path) -> None:
    """Refuse a file that cannot be written, before the work whose result it is to hold."""
    path = Path(path)
    if path.is_dir():
        raise InputError(f"Cannot write {path}: it is a directory; give the name of a file.")
    _make_temporary(path).unlink()


def remove_leftovers(path: str | Path) -> None:
    """Delete what `atomic_path(path)` left behind in a process that was killed; nobody may be writing `path` now."""
    path = Path(path)
    for temporary in path.parent.glob(f".{escape(path.name)}.????????.tmp"):
        temporary.unlink(missing_ok=True)


@contextmanager
def made_directory(directory: Path) -> Iterator[None]:
    """Make `directory` for the block; what was made in vain is removed again."""
    made = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot write {directory}: {error.strerror}; choose another --out.") from error
    try:
        yield
    finally:
        for folder in made:
            with suppress(OSError):  # something is in it
                folder.rmdir()


@contextmanager
def own_directory(directory: Path) -> Iterator[None]:
    """Make `directory` and keep a second process out for the block; what was made in vain is removed again.

    The lock ends with this process, however it ends. On NFS it keeps out those of this host alone.
    """
    handle = None
    try:
        with made_directory(directory):
            if sys.platform != "win32":
                handle = os.open(directory, os.O_RDONLY)
                if not _lock(handle) or not directory.exists():  # who had the lock has just removed it
                    raise InputError(
                        f"Another process is writing to {directory}; wait until it ends, or choose another --out."
                    )
            yield
    finally:
        if handle is not None:
            os.close(handle)


@contextmanager
def own_file(path: Path, refusal: str | None) -> Iterator[None]:
    """Keep other processes out for the block, by a lock on the file `path`, which is there meanwhile.

    Who comes second is told the refusal; without one it waits. The lock ends with this process, however it ends. Unlike
    that of a directory, NFS carries it to other hosts; a file system without locks keeps nobody out.
    """
    handle = None if sys.platform == "win32" else _take(path, refusal)
    try:
        yield
    finally:
        if handle is not None:
            with suppress(OSError):  # gone with its directory
                path.unlink()
            os.close(handle)


def _take(path: Path, refusal: str | None) -> int:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:  # its directory is being removed
            continue
        except OSError as error:
            raise InputError(f"Cannot write {path}: {error.strerror}; choose another --out.") from error
        if not _lock(handle, wait=refusal is None):
            os.close(handle)
            raise InputError(str(refusal))
        with suppress(OSError):
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        os.close(handle)  # who had the lock has just removed the file


def _lock(handle: int, wait: bool = False) -> bool:
    """Whether the lock is ours; a file system without locks gives it to everybody."""
    import fcntl  # not on Windows

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def one_at_a_time(directory: Path, words: str) -> Iterator[bool]:
    """Wait, saying so in these words, until no other process is in such a block for `directory`, and keep others out.

    Yields whether that is sure: some file systems have no locks.
    """
    if sys.platform == "win32":
        yield False
        return
    import fcntl  # not on Windows

    handle = os.open(directory, os.O_RDONLY)
    sure = True
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(words, file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            sure = False
        yield sure
    finally:
        os.close(handle)


def write_text(path: str | Path, text: str) -> None:
    """Write `text`, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def read_text(path: str | Path) -> str:
    """The file's text, or one sentence on why not."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"Cannot read {path}: {reason}; give a text file.") from error


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as readable JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def parse_json(text: str) -> Any:
    """The value of JSON text; a ValueError also for depths and numbers that would fail later."""
    with suppress(RecursionError):
        value = json.loads(text, parse_float=_finite, parse_constant=_finite, parse_int=_whole)
        if not _is_deeper(value, MAX_DEPTH):
            return value
    raise ValueError(f"it is nested in more than {MAX_DEPTH} levels")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"it has the number {text:.20}")
    return number


def _whole(text: str) -> int:
    _finite(text)
    return int(text)


def _is_deeper(value: Any, levels: int) -> bool:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(item, levels - 1) for item in inside)


def load_json(path: str | Path) -> Any:
    """The value in a JSON file; raises OSError where there is no file to read and ValueError where it is not JSON."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "It is a directory, a pipe or a device, not a file")
    return parse_json(path.read_text(encoding="utf-8"))


def read_json(path: str | Path) -> dict[str, Any]:
    """Read a JSON object, with a clear error when the file is missing or is something else."""
    try:
        value = load_json(path)
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); delete it or give another file.") from error
    if not isinstance(value, dict):
        raise InputError(
            f"{path} must hold a JSON object, got a {type(value).__name__}; delete it or give another file."
        )
    return value
