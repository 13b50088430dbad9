"""Whether an answer is that of the model as it is: `adapted`."""

import numpy as np
import pytest
import torch

import mt3
from mt3.adaptation.adapter import Adapter
from mt3.config.adaptation import Adaptation
from mt3.data import load_digits
from mt3.evaluation.predict import predict, predict_next

IMAGES = load_digits().test_images[:6]


def make_model(norm="group"):
    torch.manual_seed(0)
    model = mt3.MT3Model("resnet8x4g2", 10, hidden=6, projection=5, size=32)
    return (model if norm == "group" else mt3.MT3Model(BatchNet(), 10, hidden=6, projection=5, size=32)).eval()


class BatchNet(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        self.eval()
        self.append(torch.nn.AdaptiveAvgPool2d(1)).append(torch.nn.Flatten())


def told(answers):
    """Of each answer, whether it is said to be adapted; where not, it is that of the model as it is."""
    for answer in answers:
        if not answer["adapted"]:
            assert answer["after"]["index"] == answer["before"]["index"]
            assert answer["after"]["probability"] == pytest.approx(answer["before"]["probability"], abs=1e-5)
    return "".join("x" if answer["adapted"] else "-" for answer in answers)


@pytest.mark.parametrize(
    ("method", "fields", "wanted"),
    [
        ("tent", {"batch": 2, "lr": 0.1}, "--xxxx"),
        ("tent", {"batch": 2, "lr": 0.1, "answer": "after"}, "xxxxxx"),
        ("tent", {"batch": 2, "lr": 0.0, "answer": "after"}, "------"),
        ("tent", {"batch": 1, "lr": 0.1, "reset": "every 1"}, "------"),
        ("memo", {"batch": 1, "lr": 1e30, "views": 2, "reset": "guard"}, "------"),
        ("t3a", {"batch": 2, "answer": "first"}, "xxxxxx"),
        ("lame", {"batch": 3}, "xxxxxx"),
        ("average", {"batch": 2, "views": 2}, "xxxxxx"),
    ],
)
def test_along_a_stream(method, fields, wanted):
    model = make_model()
    assert told(predict(model, IMAGES, mt3.Adapter(model, method, carry="stream", **fields).adaptation)) == wanted


def test_the_next_call_goes_on():
    model = make_model()
    adapter = Adapter(model, "tent", carry="stream", batch=2, lr=0.1)
    assert [told(predict_next(adapter, IMAGES[i : i + 3])) for i in (0, 3)] == ["--x", "xxx"]
    adapter.reset()
    assert told(predict_next(adapter, IMAGES[:2])) == "--"


@pytest.mark.parametrize(
    ("adaptation", "wanted"),
    [
        (Adaptation(views=2), "x"),
        (Adaptation(views=2, steps=0), "-"),
        (Adaptation(views=2, lr=0.0), "-"),
        (Adaptation(views=2, gate=0.0), "-"),
        (mt3.adaptation_named("sar"), "-"),  # whose entropies are never below 0.4 ln 10 here
        (Adaptation("marginal-entropy", steps=0, clip=None, views=2, rule="average"), "x"),
    ],
)
def test_each_image_by_itself(adaptation, wanted):
    assert told(predict(make_model(), IMAGES, adaptation)) == wanted * 6


@pytest.mark.parametrize("method", ["tent", "norm"])
def test_statistics_of_the_images_are_other_answers(method):
    model = make_model("batch")
    found = predict(model, IMAGES, mt3.Adapter(model, method, carry="stream", batch=3).adaptation)
    assert np.all([answer["adapted"] for answer in found])
