"""Turn the job list of a study into rules for GNU make, which runs it on one machine, so many jobs at a time.

    mt3 reproduce --data digits --seeds 2 --threads 1 --out runs/digits --list-jobs | python jobs_to_make.py > jobs.mk
    make -k -j 2 -f jobs.mk

After a failure or a kill the same `make` goes on: a job that is done does nothing.
"""

import json
import sys


def main() -> None:
    jobs = [json.loads(line) for line in sys.stdin]
    names = " ".join(job["job"] for job in jobs)
    print(f"all: {names}\n.PHONY: all {names}")
    for job in jobs:
        command = job["command"].replace("$", "$$")
        print(f"{job['job']}: {' '.join(job['needs'])}\n\t{command}")


if __name__ == "__main__":
    main()
