"""Submit the jobs of a study to Slurm, each after those that it needs; evaluations are arrays of shards.

    mt3 reproduce --data cifar10 --preset paper --seeds 3 --out runs/paper --list-jobs > jobs.jsonl
    python submit.py --shards 8 < jobs.jsonl

Run it in the directory in which the list was made, which all nodes must share. What is done is not submitted, so that
a new list and a second call go on after failures. train.sbatch and the others say what each kind of job is given.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description="submit the jobs of `mt3 reproduce --list-jobs` to Slurm")
    parser.add_argument("--shards", type=int, default=1, help="tasks of each evaluation's array")
    shards = parser.parse_args().shards
    numbers: dict[str, str] = {}  # a job's name -> what Slurm calls it
    for job in [json.loads(line) for line in sys.stdin]:
        if job["done"] == 1:
            continue
        if "--shard" in shlex.split(job["command"]):
            sys.exit("The list has shards already; make it without --shards, and give them here.")
        words = ["sbatch", "--parsable", f"--job-name={job['job'].replace('/', '.')}"]
        needs = [numbers[name] for name in job["needs"] if name in numbers]
        if needs:
            words += [f"--dependency=afterok:{':'.join(needs)}", "--kill-on-invalid-dep=yes"]
        if job["kind"] == "evaluate":
            words.append(f"--array=0-{shards - 1}")
        words += [str(HERE / f"{job['kind']}.sbatch"), *shlex.split(job["command"])]
        answer = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout
        numbers[job["job"]] = answer.strip().partition(";")[0]  # what follows is the cluster's name
        print(f"{numbers[job['job']]} {job['job']}", *(["after", *needs] if needs else []))


if __name__ == "__main__":
    main()
