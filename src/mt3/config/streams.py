"""The streams along which a model may adapt online. Needs no torch."""

STREAMS = {  # name: the order of its images
    "shift": "one corruption after the other, each from the model as it is, its images shuffled",
    "continual": "one corruption after the other without a reset, the images of each shuffled",
    "mixed": "the images of all corruptions shuffled together",
    "correlated": "one corruption after the other, each from the model as it is, its images sorted by class",
}
ANEW = ("shift", "correlated")  # each corruption is a stream of its own
PER_IMAGE = "per image"  # what stands in the place of a stream where no step is kept
