"""Print what Kubernetes can run now of a study: its jobs that are not done, but all that they need is.

    mt3 reproduce --data cifar10 --preset paper --seeds 3 --out runs/paper --list-jobs | python ready.py --shards 8 \\
        | kubectl apply -f -

Kubernetes knows no order of jobs, so call this again when some have finished, in the directory in which they run.
Applying what is there already changes nothing. train.yaml and the others say what each kind of job is given.
"""

import argparse
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description="the jobs of `mt3 reproduce --list-jobs` that Kubernetes can run now")
    parser.add_argument("--shards", type=int, default=1, help="pods of each evaluation")
    shards = parser.parse_args().shards
    jobs = [json.loads(line) for line in sys.stdin]
    if any("--shard" in shlex.split(job["command"]) for job in jobs):
        sys.exit("The list has shards already; make it without --shards, and give them here.")
    left = {job["job"] for job in jobs if job["done"] < 1}
    ready = [job for job in jobs if job["job"] in left and not left & set(job["needs"])]
    yaml.safe_dump_all([manifest(job, shards) for job in ready], sys.stdout, sort_keys=False)


def manifest(job: dict[str, Any], shards: int) -> Any:
    """The file of the job's kind, with its name, its words and, of an evaluation, its shards."""
    made = yaml.safe_load((HERE / f"{job['kind']}.yaml").read_text())
    made["metadata"]["name"] = "mt3-" + re.sub(r"[^a-z0-9]+", "-", job["job"].lower())
    spec = made["spec"]
    holder = spec["pytorchReplicaSpecs"]["Worker"] if job["kind"] == "train" else spec
    (container,) = holder["template"]["spec"]["containers"]
    container["args"] = shlex.split(job["command"])[1:]  # without mt3
    if job["kind"] == "evaluate":
        spec["completions"] = spec["parallelism"] = shards
        container["env"] = [{"name": "SHARDS", "value": str(shards)}]
    return made


if __name__ == "__main__":
    main()
