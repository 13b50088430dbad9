"""Two hosts: two network namespaces that only a pair of virtual cards joins, with one torchrun in each."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import rank_script
from mt3.models.store import read_run
from rank_runs import SCRIPT, difference, words

CARD = "mt3card"
STEPS = 6


def ip(*parts: str) -> None:
    subprocess.run(["ip", *parts], check=True, capture_output=True)


@pytest.fixture
def hosts() -> Iterator[dict[str, str]]:
    """Names of two namespaces, and their addresses."""
    if shutil.which("ip") is None:
        pytest.skip("two hosts take the program `ip` (iproute2), which is not here")
    found = {f"mt3-{os.getpid()}-{number}": f"10.77.0.{number}" for number in (1, 2)}
    first, second = found
    try:
        try:
            for name in found:
                ip("netns", "add", name)
            ip("link", "add", CARD, "netns", first, "type", "veth", "peer", "name", CARD, "netns", second)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"two hosts take the right to make network namespaces: {error.stderr.decode().strip()}")
        for name, address in found.items():
            ip("-n", name, "addr", "add", f"{address}/24", "dev", CARD)
            for card in (CARD, "lo"):
                ip("-n", name, "link", "set", card, "up")
        yield found
    finally:
        for name in found:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def test_two_hosts_train_what_one_process_trains(hosts, tmp_path):
    """The second host never sees the run's directory: it is told to write elsewhere, and writes nothing there."""
    meeting = f"{next(iter(hosts.values()))}:29400"
    launch = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", meeting, "--rdzv-id", "two-hosts"]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": CARD, "OMP_NUM_THREADS": "1"}
    started = []
    for number, (name, address) in enumerate(hosts.items()):
        here = ["--local-addr", address, "--rdzv-conf", f"is_host={1 - number}"]  # no names are resolved in there
        asked = {"float64": [words("mt3", tmp_path / address, STEPS)]}
        command = ["ip", "netns", "exec", name, *launch, *here, str(SCRIPT), json.dumps(asked)]
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate(timeout=300)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], errors
    assert rank_script.run({"float64": [words("mt3", tmp_path / "plain", STEPS)]}) == 0
    written = [tmp_path / address for address in hosts.values() if (tmp_path / address).exists()]
    assert len(written) == 1
    assert difference(tmp_path / "plain", written[0]) < 1e-10
    assert read_run(written[0])["job"] == "two-hosts"
    assert Path("/sys/class/net").is_dir()
    assert not Path(f"/sys/class/net/{CARD}").exists()  # the pair joins nothing but the two
