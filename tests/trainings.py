"""Small trainings for tests."""

from mt3.config.config import Config, make_config

SMALL = {"depth": 8, "width": 4, "groups": 2, "hidden": 8, "projection": 6, "log_every": 1, "epochs": 50}


def small_config(method: str = "mt3", seed: int = 0, **fields) -> Config:
    size = {"tasks": 2, "task_size": 4} if method == "mt3" else {"task_size": 16}
    return make_config(method, "digits", "paper", seed, SMALL | size | fields)
