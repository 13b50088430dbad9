"""The examples for Slurm, Kubernetes and make: they parse, and hand over the right graph of jobs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parent.parent.parent / "examples"


def job(name: str, kind: str, needs: list[str], done: float = 0.0) -> dict[str, Any]:
    return {
        "job": name,
        "kind": kind,
        "needs": needs,
        "command": f"mt3 reproduce --out 'a b' --job {name}",
        "done": done,
    }


JOBS = [
    job("mt3/seed-0/start/train", "train", []),
    job("mt3/seed-0/train", "train", ["mt3/seed-0/start/train"]),
    job("jt/seed-0/train", "train", ["mt3/seed-0/start/train"]),
    job("mt3/seed-0/evaluation", "evaluate", ["mt3/seed-0/train"]),
    job("jt/seed-0/evaluation", "evaluate", ["jt/seed-0/train"]),
    job("report", "report", ["mt3/seed-0/evaluation", "jt/seed-0/evaluation"]),
]


def lines(jobs: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(one) + "\n" for one in jobs)


def call(script: str, jobs: list[dict[str, Any]], *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(FOLDER / script), *words]
    return subprocess.run(command, input=lines(jobs), capture_output=True, text=True, **options)


@pytest.fixture
def slurm(tmp_path) -> tuple[dict[str, str], Path]:
    """An environment whose `sbatch` writes down its words and answers with numbers from 101 on."""
    calls, tool = tmp_path / "calls.jsonl", tmp_path / "bin" / "sbatch"
    tool.parent.mkdir()
    tool.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        f"with open({str(calls)!r}, 'a+') as file:\n"
        "    file.seek(0)\n"
        "    number = 101 + len(file.readlines())\n"
        "    file.write(json.dumps(sys.argv[1:]) + '\\n')\n"
        "print(f'{number};cluster')\n"
    )
    tool.chmod(0o755)
    return os.environ | {"PATH": f"{tool.parent}:{os.environ['PATH']}"}, calls


def test_slurm_gets_the_graph(slurm):
    environment, calls = slurm
    done = call("slurm/submit.py", JOBS, "--shards", "8", env=environment)
    assert done.returncode == 0, done.stderr
    asked = [json.loads(line) for line in calls.read_text().splitlines()]
    after = {
        next(w.removeprefix("--job-name=") for w in words if w.startswith("--job-name=")): [
            w.removeprefix("--dependency=") for w in words if w.startswith("--dependency=")
        ]
        for words in asked
    }
    assert after == {
        "mt3.seed-0.start.train": [],
        "mt3.seed-0.train": ["afterok:101"],
        "jt.seed-0.train": ["afterok:101"],
        "mt3.seed-0.evaluation": ["afterok:102"],
        "jt.seed-0.evaluation": ["afterok:103"],
        "report": ["afterok:104:105"],
    }
    arrays = [[word for word in words if word.startswith("--array")] for words in asked]
    assert arrays == [[], [], [], ["--array=0-7"], ["--array=0-7"], []]
    assert all("--parsable" in words for words in asked)
    script = str(FOLDER / "slurm" / "evaluate.sbatch")
    assert asked[3][-7:] == [script, "mt3", "reproduce", "--out", "a b", "--job", "mt3/seed-0/evaluation"]
    assert {Path(words[-7]).name for words in asked} == {"train.sbatch", "evaluate.sbatch", "report.sbatch"}
    assert done.stdout.splitlines()[-1] == "106 report after 104 105"


def test_slurm_gets_only_what_is_not_done(slurm):
    environment, calls = slurm
    jobs = [one | {"done": 1.0} if one["kind"] == "train" else one for one in JOBS]
    assert call("slurm/submit.py", jobs, env=environment).returncode == 0
    asked = [json.loads(line) for line in calls.read_text().splitlines()]
    assert [[word for word in words if "dependency" in word] for words in asked] == [
        [],
        [],
        ["--dependency=afterok:101:102"],
    ]


@pytest.mark.parametrize("script", ["slurm/submit.py", "kubernetes/ready.py"])
def test_a_list_with_shards_is_refused(script, slurm):
    split = [one | {"command": one["command"] + " --shard 0/2"} for one in JOBS]
    done = call(script, split, env=slurm[0])
    assert done.returncode == 1
    assert "make it without --shards" in done.stderr
    assert not slurm[1].exists()


@pytest.mark.parametrize("script", sorted((FOLDER / "slurm").glob("*.sbatch")), ids=lambda path: path.name)
def test_batch_files_parse(script):
    subprocess.run(["bash", "-n", str(script)], check=True)
    body = script.read_text()
    assert body.startswith("#!/bin/bash\n")
    heads = [line for line in body.splitlines() if line.startswith("#SBATCH")]
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", line) for line in heads)
    assert body.index(heads[-1]) < body.index('"$@"')  # Slurm reads none after the first command


def fake(folder: Path, name: str, body: str) -> None:
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)


def run_batch(tmp_path: Path, script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"} | variables
    return subprocess.run(
        ["bash", str(FOLDER / "slurm" / script), *words], env=environment, capture_output=True, text=True
    )


def test_a_task_of_an_array_does_its_shard(tmp_path):
    fake(tmp_path, "mt3", 'printf "%s\\n" "$@"')
    words = ["mt3", "reproduce", "--out", "a b", "--job", "x"]
    done = run_batch(tmp_path, "evaluate.sbatch", *words, SLURM_ARRAY_TASK_ID="3", SLURM_ARRAY_TASK_COUNT="8")
    assert done.stdout.splitlines() == ["reproduce", "--out", "a b", "--job", "x", "--shard", "3/8"]


def test_a_training_is_torchruns(tmp_path):
    fake(tmp_path, "srun", 'printf "%s\\n" "$@"')
    fake(tmp_path, "scontrol", "printf '%s\\n' node4 node5")
    given = {"SLURM_JOB_ID": "20007", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "4", "SLURM_JOB_NODELIST": "x"}
    done = run_batch(tmp_path, "train.sbatch", "mt3", "reproduce", "--out", "a b", "--job", "x/train", **given)
    assert done.returncode == 0
    words = done.stdout.splitlines()
    assert words[:5] == ["torchrun", "--nnodes", "2", "--nproc-per-node", "4"]
    assert words[words.index("--rdzv-endpoint") + 1] == "node4:20007"
    assert words[-8:] == ["-m", "--", "mt3", "reproduce", "--out", "a b", "--job", "x/train"]


@pytest.mark.parametrize(("code", "again"), [(143, True), (0, False)])
def test_a_training_whose_time_is_over_goes_back_into_the_queue(tmp_path, code, again):
    """Slurm signals the batch script alone, which hands the signal on and waits until the training has saved."""
    fake(
        tmp_path,
        "srun",
        f"trap 'sleep 0.3; echo saved; exit {code}' TERM; kill -TERM $PPID; sleep 20 > /dev/null 2>&1 & wait $!",
    )
    fake(tmp_path, "scontrol", '[ "$1" = show ] && echo node4 || echo "$@"')
    given = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NODELIST": "x"}
    done = run_batch(tmp_path, "train.sbatch", "mt3", "train", **given)
    assert done.returncode == code
    assert done.stdout.splitlines() == ["saved", "requeue 7"][: 1 + again]


def test_manifests_are_of_their_kinds():
    train, evaluate, report = (
        yaml.safe_load((FOLDER / "kubernetes" / f"{kind}.yaml").read_text()) for kind in ("train", "evaluate", "report")
    )
    assert (train["apiVersion"], train["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    worker = train["spec"]["pytorchReplicaSpecs"]["Worker"]
    (container,) = worker["template"]["spec"]["containers"]
    assert (container["name"], container["command"]) == ("pytorch", ["torchrun", "-m", "--", "mt3"])
    assert train["spec"]["elasticPolicy"]["maxReplicas"] == worker["replicas"]
    assert str(container["resources"]["limits"]["nvidia.com/gpu"]) == train["spec"]["nprocPerNode"]
    assert (evaluate["apiVersion"], evaluate["kind"], report["kind"]) == ("batch/v1", "Job", "Job")
    spec = evaluate["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(container["env"][0]["value"])


def test_the_words_of_the_manifests_are_understood():
    from mt3.cli.main import _parser

    for kind in ("train", "evaluate", "report"):
        spec = yaml.safe_load((FOLDER / "kubernetes" / f"{kind}.yaml").read_text())["spec"]
        holder = spec["pytorchReplicaSpecs"]["Worker"] if kind == "train" else spec
        (container,) = holder["template"]["spec"]["containers"]
        assert _parser().parse_known_args(container["args"])[1] == []


def test_a_pod_does_its_shard(tmp_path):
    (container,) = yaml.safe_load((FOLDER / "kubernetes" / "evaluate.yaml").read_text())["spec"]["template"]["spec"][
        "containers"
    ]
    fake(tmp_path, "mt3", 'printf "%s\\n" "$@"')
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": "5", "SHARDS": "8"}
    done = subprocess.run([*container["command"], "evaluate", "a b"], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["evaluate", "a b", "--shard", "5/8"]


def test_kubernetes_gets_what_can_run_now():
    def ready(jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
        done = call("kubernetes/ready.py", jobs, "--shards", "3")
        assert done.returncode == 0, done.stderr
        return list(yaml.safe_load_all(done.stdout)) if done.stdout else []

    (first,) = ready(JOBS)
    assert (first["kind"], first["metadata"]["name"]) == ("PyTorchJob", "mt3-mt3-seed-0-start-train")
    (container,) = first["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    assert container["args"] == ["reproduce", "--out", "a b", "--job", "mt3/seed-0/start/train"]
    trained = [one | {"done": float(one["kind"] == "train" and "mt3" in one["job"])} for one in JOBS]
    jt, evaluation = ready(trained)
    assert jt["metadata"]["name"] == "mt3-jt-seed-0-train"
    assert evaluation["metadata"]["name"] == "mt3-mt3-seed-0-evaluation"
    assert evaluation["spec"]["completions"] == evaluation["spec"]["parallelism"] == 3
    (container,) = evaluation["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "SHARDS", "value": "3"}]
    assert ready([one | {"done": 1.0} for one in JOBS]) == []


def test_make_gets_a_rule_for_each_job():
    text = call("make/jobs_to_make.py", [JOBS[0], JOBS[1] | {"command": "echo $HOME"}]).stdout
    names = "mt3/seed-0/start/train mt3/seed-0/train"
    assert text.splitlines() == [
        f"all: {names}",
        f".PHONY: all {names}",
        "mt3/seed-0/start/train: ",
        "\tmt3 reproduce --out 'a b' --job mt3/seed-0/start/train",
        "mt3/seed-0/train: mt3/seed-0/start/train",
        "\techo $$HOME",
    ]
