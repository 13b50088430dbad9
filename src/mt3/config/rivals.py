"""The test-time methods by name: how each adapts, what it needs, and where it comes from. Needs no torch."""

from dataclasses import dataclass

from mt3.config.adaptation import Adaptation
from mt3.support.errors import InputError, one_of

COPIES = 32  # of an image, "B = 32" of MEMO on CIFAR-10


@dataclass(frozen=True)
class Rival:
    """A test-time method by its name. Numbers are those of its paper, or of its authors' code."""

    title: str  # in tables
    paper: str
    adaptation: Adaptation | None  # none: the model's own way
    batch_norm: bool = False  # whether the network has to have batch normalisation
    least: int = 1  # images of a group
    stream: bool = False  # whether there is nothing to do for a single image: groups of a stream alone


RIVALS: dict[str, Rival] = {
    "own": Rival("own", "the model's own way, as it was trained for", None),
    "mt3": Rival("MT3", "Bartler et al., MT3: Meta Test-Time Training, AISTATS 2022", None),
    "ttt": Rival("TTT", "Sun et al., Test-Time Training with Self-Supervision, ICML 2020", None),
    "tent": Rival(
        "TENT",
        "Wang et al., Tent: Fully Test-Time Adaptation by Entropy Minimization, ICLR 2021",
        Adaptation(
            "entropy",
            lr=0.00025,  # on ImageNet, there with a momentum of 0.9; by Adam otherwise. Here plain SGD, unless asked
            clip=None,
            layers="norm",
            batch=64,
            answer="first",  # its code answers by the pass that it takes the gradient of
            statistics=1.0,
        ),
    ),
    "memo": Rival(
        "MEMO",
        "Zhang et al., MEMO: Test Time Robustness via Adaptation and Augmentation, NeurIPS 2022",
        Adaptation("marginal-entropy", lr=0.005, clip=None, views=COPIES),  # its code's --lr and --batch_size
    ),
    "memo-augmix": Rival(
        "MEMO (AugMix)",
        "Zhang et al., MEMO: Test Time Robustness via Adaptation and Augmentation, NeurIPS 2022",
        Adaptation("marginal-entropy-augmix", lr=0.005, clip=None, views=COPIES),
    ),
    "sar": Rival(
        "SAR",
        "Niu et al., Towards Stable Test-Time Adaptation in Dynamic Wild World, ICLR 2023",
        Adaptation(
            "reliable-entropy",
            lr=0.00025,  # of its ResNet-50 with batches of 64
            clip=None,
            layers="norm",
            momentum=0.9,
            batch=64,
            answer="first",
            reset="low-entropy",
            statistics=1.0,
            radius=0.05,  # "rho = 0.05", the default of sharpness-aware minimisation
        ),
    ),
    "norm": Rival(
        "norm statistics",
        "Nado et al., Evaluating Prediction-Time Batch Normalization for Robustness under Covariate Shift, 2020",
        Adaptation(None, steps=0, carry="stream", batch=64, statistics=1.0),
        batch_norm=True,
        least=2,
        stream=True,
    ),
    "norm-mixed": Rival(
        "norm statistics, mixed",
        "Schneider et al., Improving Robustness against Common Corruptions by Covariate Shift Adaptation, NeurIPS 2020",
        # n / (N + n) of the batch's, for n = 16 images that weigh as much as the trained statistics (N = 16)
        Adaptation(None, steps=0, carry="stream", batch=16, statistics=0.5),
        batch_norm=True,
        least=2,
        stream=True,
    ),
    "t3a": Rival(
        "T3A",
        "Iwasawa and Matsuo, Test-Time Classifier Adjustment Module, NeurIPS 2021",
        # M of {1, 5, 20, 50, 100, all}; batches of 32, as in its experiments
        Adaptation(None, steps=0, carry="stream", batch=32, rule="t3a", support=100),
        stream=True,
    ),
    "lame": Rival(
        "LAME",
        "Boudiaf et al., Parameter-free Online Test-time Adaptation, CVPR 2022",
        Adaptation(None, steps=0, carry="stream", batch=64, rule="lame", support=5),  # "kNN affinity, k = 5"
        least=2,
        stream=True,
    ),
    "plus": Rival(
        "plus",
        "channels keep the mean and deviation of training, as batch normalisation's in Schneider et al., NeurIPS 2020",
        Adaptation(None, steps=0, carry="stream", batch=8, rule="align", support=128, answer="first"),
        stream=True,
    ),
    "average": Rival(
        "average of copies",
        "the answers to MEMO's plain copies, averaged, without a step",
        Adaptation("marginal-entropy", steps=0, clip=None, views=COPIES, rule="average"),
    ),
}


def get_rival(name: str) -> Rival:
    """A test-time method by its name."""
    if name not in RIVALS:
        raise InputError(one_of("method", name, RIVALS))
    return RIVALS[name]


def adaptation_named(name: str) -> Adaptation | None:
    """How a method adapts; none for the names of a model's own way."""
    return get_rival(name).adaptation
