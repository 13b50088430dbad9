"""A small study by the command line."""

from pathlib import Path

FIELDS = ["--depth", "8", "--width", "4", "--hidden", "8", "--projection", "6", "--test-views", "2"]
SHORT = ["--task-size", "2", "--task-images", "1", "--epochs", "0.006", "--start", "supervised:0.05"]
TESTED = ["--corruptions", "contrast", "--limit", "4", "--sweep-limit", "2"]
STUDY = ["--methods", "mt3", "baseline", "--seeds", "2", "--ablations", "norm-only", "lr", *TESTED, "--threads", "1"]
LRS = ("0", "0.025", "0.05", "0.2", "0.4")  # the paper's own is 0.1
EXPECTED = [
    *(f"{method}/seed-{seed}/evaluation.json" for method in ("baseline", "mt3") for seed in (0, 1)),
    *(f"mt3/seed-{seed}/sweep-{name}.json" for seed in (0, 1) for name in ("own", *(f"lr-{lr}" for lr in LRS))),
    *(f"ablations/norm-only/seed-{seed}/evaluation.json" for seed in (0, 1)),
]


def words(out: Path, *more: str) -> list[str]:
    return ["reproduce", "--data", "digits", "--preset", "paper", "--out", str(out), *STUDY, *FIELDS, *SHORT, *more]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def times(folder: Path) -> dict[str, int]:
    found = {str(p.relative_to(folder)): p.stat().st_mtime_ns for p in folder.rglob("*")}
    return {name: t for name, t in found.items() if not name.startswith("report")}
