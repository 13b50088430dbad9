"""Downloads from a local server that behaves well, badly, or not at all."""

import hashlib
import http.server
import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mt3.data import download, load_cifar10, load_dataset, open_corrupted
from mt3.data.download import ARCHIVES, Archive, download_archive, fetch
from mt3.support.errors import InputError

CONTENT = np.random.default_rng(0).bytes(700_001)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Server(http.server.ThreadingHTTPServer):
    """Serves `content` in some `mode`: whole, cut (half of what is due), no-range, html or stall; notes the ranges."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.mode = CONTENT, "whole"
        self.release = threading.Event()  # ends a stall
        self.ranges: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/archive.tar"

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that hangs up is what some tests are about


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        if "missing" in self.path:
            self.send_error(404)
            return
        content, mode = self.server.content, self.server.mode
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and mode != "no-range" else 0
        if wanted and start >= len(content):
            self.send_error(416)
            return
        body = content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8" if mode == "html" else "application/x-tar")
        self.send_header("Content-Length", str(len(body)))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if mode in ("cut", "stall") else body)
        if mode == "stall":
            self.wfile.flush()
            self.server.release.wait(20)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.release.set()
        server.shutdown()
        thread.join()


def test_archives_are_the_published_ones() -> None:
    assert {name: (a.url.rpartition("/")[2], a.md5) for name, a in ARCHIVES.items()} == {
        "cifar10": ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
        "cifar100": ("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
        "cifar10-c": ("CIFAR-10-C.tar", "56bf5dcef84df0e2308c6dcbcbbd8499"),
        "cifar100-c": ("CIFAR-100-C.tar", "11f0ed0f1191edbf9fa23466ae6021d3"),
    }


def test_full_download(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "archive.tar"
    download_archive(server.url, path, MD5)
    assert path.read_bytes() == CONTENT
    assert server.ranges == [None]
    assert [p.name for p in path.parent.iterdir()] == ["archive.tar"]
    assert "Downloading archive.tar: 1/1 MB" in capsys.readouterr().err


def test_cut_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    path, part = tmp_path / "archive.tar", tmp_path / "archive.tar.part"
    server.mode = "cut"
    with pytest.raises(InputError) as caught:
        download_archive(server.url, path, MD5)
    assert str(caught.value) == (
        f"Could not download {server.url}: the connection closed after 350000 of 700001 bytes; "
        f"run the same command again to resume, or place the files in {tmp_path} by hand."
    )
    assert part.read_bytes() == CONTENT[:350_000]
    assert not path.exists()
    server.mode = "whole"
    download_archive(server.url, path, MD5)
    assert path.read_bytes() == CONTENT
    assert not part.exists()
    assert server.ranges == [None, "bytes=350000-"]


def test_server_without_range_starts_over(server: Server, tmp_path: Path) -> None:
    (tmp_path / "archive.tar.part").write_bytes(b"from an earlier attempt")
    server.mode = "no-range"
    download_archive(server.url, tmp_path / "archive.tar", MD5)
    assert (tmp_path / "archive.tar").read_bytes() == CONTENT
    assert server.ranges == ["bytes=23-"]


def test_part_that_is_complete_already(server: Server, tmp_path: Path) -> None:
    (tmp_path / "archive.tar.part").write_bytes(CONTENT)
    download_archive(server.url, tmp_path / "archive.tar", MD5)
    assert (tmp_path / "archive.tar").read_bytes() == CONTENT
    assert server.ranges == ["bytes=700001-"]


def test_stall_counts_as_a_lost_connection(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "STALL_SECONDS", 0.3)
    server.mode = "stall"
    with pytest.raises(InputError, match=r"timed out; run the same command again to resume"):
        download_archive(server.url, tmp_path / "archive.tar", MD5)
    assert 0 < (tmp_path / "archive.tar.part").stat().st_size <= 350_000


def test_html_answer_is_refused(server: Server, tmp_path: Path) -> None:
    server.mode = "html"
    with pytest.raises(InputError, match="a web page came instead of the archive"):
        download_archive(server.url, tmp_path / "archive.tar", MD5)
    assert list(tmp_path.iterdir()) == []


def test_wrong_md5_discards_what_came(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        download_archive(server.url, tmp_path / "archive.tar", "0" * 32)
    assert str(caught.value) == (
        f"{server.url} arrived with MD5 {MD5}, expected {'0' * 32}, and was discarded; run the same command again."
    )
    assert list(tmp_path.iterdir()) == []


def test_not_found(server: Server, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"/missing: HTTP Error 404: Not Found; run the same command again"):
        download_archive(server.url.replace("archive.tar", "missing"), tmp_path / "archive.tar", MD5)
    assert list(tmp_path.iterdir()) == []


def test_refused_connection_names_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    archives = {"cifar10": Archive(f"http://127.0.0.1:{port}/x.tar", MD5, "cifar-10-batches-bin")}
    with pytest.raises(InputError, match=rf"refused; run the same .* or place the files in {tmp_path} by hand\.$"):
        fetch("cifar10", tmp_path, archives)


def test_unwritable_destination(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(InputError, match=r"^Could not download .*File exists: .*; run the same"):
        download_archive(server.url, tmp_path / "file" / "archive.tar", MD5)


# Fetching: the real layouts in tiny archives


def tar_of(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def serve(server: Server, name: str, files: dict[str, bytes]) -> dict[str, Archive]:
    server.content = tar_of(files)
    folder = ARCHIVES[name].folder
    return {name: Archive(server.url, hashlib.md5(server.content).hexdigest(), folder)}


def cifar10_files(value: int) -> dict[str, bytes]:
    record = bytes([3]) + bytes([value]) * 3072
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    return {f"cifar-10-batches-bin/{name}.bin": record * 2 for name in names}


def cifar_c_files(value: int) -> dict[str, bytes]:
    arrays = {"fog": np.full((5, 32, 32, 3), value, np.uint8), "labels": np.zeros(5, np.uint8)}
    files = {}
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.save(buffer, array)
        files[f"CIFAR-10-C/{name}.npy"] = buffer.getvalue()
    return files


def test_fetch_unpacks_and_then_does_nothing(server: Server, tmp_path: Path) -> None:
    archives = serve(server, "cifar10", cifar10_files(50))
    data_dir = tmp_path / "data"
    assert fetch("cifar10", data_dir, archives, verify=False) == data_dir
    assert [p.name for p in data_dir.iterdir()] == ["cifar-10-batches-bin"]
    data = load_cifar10(data_dir, verify=False)
    assert data.train_images.shape == (10, 32, 32, 3)
    assert (data.train_images == 50).all()
    assert data.test_labels.tolist() == [3, 3]
    fetch("cifar10", data_dir, archives, verify=False)
    assert len(server.ranges) == 1


def test_fetch_replaces_a_damaged_file(server: Server, tmp_path: Path) -> None:
    archives = serve(server, "cifar10", cifar10_files(50))
    fetch("cifar10", tmp_path, archives, verify=False)
    damaged = tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin"
    damaged.write_bytes(b"short")
    fetch("cifar10", tmp_path, archives, verify=False)
    assert damaged.read_bytes() == cifar10_files(50)["cifar-10-batches-bin/data_batch_2.bin"]
    assert [p.name for p in tmp_path.iterdir()] == ["cifar-10-batches-bin"]


def test_fetch_uses_an_archive_placed_by_hand_and_keeps_it(server: Server, tmp_path: Path) -> None:
    archives = serve(server, "cifar10", cifar10_files(50))
    (tmp_path / "archive.tar").write_bytes(server.content)
    fetch("cifar10", tmp_path, archives, verify=False)
    assert server.ranges == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["archive.tar", "cifar-10-batches-bin"]


def test_fetch_corrupted_set(server: Server, tmp_path: Path) -> None:
    archives = serve(server, "cifar10-c", cifar_c_files(9))
    folder = fetch("cifar10-c", tmp_path, archives, verify=False)
    assert folder == tmp_path / "CIFAR-10-C"
    assert (open_corrupted(folder, 10).images_of("fog", 5) == 9).all()
    fetch("cifar10-c", tmp_path, archives, verify=False)
    assert len(server.ranges) == 1
    fetch("cifar10-c", tmp_path, archives)  # verified, a set of one corruption is not the published one
    assert len(server.ranges) == 2


def test_fetch_leaves_a_generated_set_alone(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    (folder / "protocol.json").write_text("{}")
    with pytest.raises(InputError, match=r"CIFAR-10-C holds a generated set, not the published one"):
        fetch("cifar10-c", tmp_path, serve(server, "cifar10-c", cifar_c_files(9)))
    assert [p.name for p in folder.iterdir()] == ["protocol.json"]
    assert server.ranges == []


def test_fetch_refuses_an_archive_that_leaves_its_directory(server: Server, tmp_path: Path) -> None:
    archives = serve(server, "cifar10", cifar10_files(50) | {"../outside": b"x"})
    with pytest.raises(InputError, match=r"^Cannot unpack .*outside"):
        fetch("cifar10", tmp_path / "data", archives, verify=False)
    assert not (tmp_path / "outside").exists()
    assert [p.name for p in (tmp_path / "data").iterdir()] == ["archive.tar"]


def test_fetch_refuses_what_is_not_the_expected_archive(server: Server, tmp_path: Path) -> None:
    archives = serve(server, "cifar10", {"other/file": b"x"})
    with pytest.raises(InputError, match=r"archive\.tar does not contain cifar-10-batches-bin; delete it"):
        fetch("cifar10", tmp_path / "tar", archives, verify=False)
    server.content = b"not an archive"
    archives = {"cifar10": archives["cifar10"]._replace(md5=hashlib.md5(server.content).hexdigest())}
    with pytest.raises(InputError, match=r"^Cannot unpack .*archive\.tar \("):
        fetch("cifar10", tmp_path / "text", archives, verify=False)


def test_fetch_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"Unknown data set 'svhn': expected one of cifar10, cifar100, cifar10-c"):
        fetch("svhn", tmp_path)


def test_load_dataset_fetches_only_when_asked(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr("mt3.data.fetch", lambda name, data_dir: calls.append((name, data_dir)))
    with pytest.raises(InputError, match="No CIFAR-10 in"):
        load_dataset("cifar10", tmp_path)
    assert calls == []
    with pytest.raises(InputError, match="No CIFAR-10 in"):
        load_dataset("cifar10", tmp_path, download=True)
    assert calls == [("cifar10", tmp_path)]
