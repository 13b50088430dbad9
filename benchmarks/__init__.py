"""How fast parts of the package are, alternately with their peers in one run, and how near to the machine's floor.

Each benchmark is a function that returns what it measured, as JSON would have it, and one that words it. Times on the
clock vary from run to run; the ratios within a run are what to look at.
"""

BENCHMARKS = {  # what `make bench` can measure
    "meta-step": "one step of meta-training",
    "batch-step": "one step of supervised and of joint training",
    "ranks": "steps under torchrun, on one and two ranks",
    "adapt": "adapting to single images",
    "methods": "every test-time method beside the plain forward pass",
    "augment": "the views of augmentation A",
    "corruptions": "the time of every corruption, on one core",
    "all": "all of these, as one JSON file",
    "service": "the HTTP service, asked by many at a time (needs the extra serve; not in `all`)",
}
