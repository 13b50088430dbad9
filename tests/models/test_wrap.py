"""A trained classifier with an objective: its logits stay, normalisation follows the views, and it can be saved."""

import json

import pytest
import torch
from torch import Tensor, nn

import mt3
from foreign import VIT, ConvNet, coloured
from mt3.config.config import make_config
from mt3.models.call import call, parameters_of
from mt3.training.state import make_state, take_weights

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Classifier(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.body, self.pool = ConvNet(), nn.AdaptiveAvgPool2d(1)
        self.classes = nn.Linear(12, 4, bias=bias)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classes(self.pool(self.body(x)).flatten(1))
        return logits


def normalised(images: Tensor) -> Tensor:
    mean, deviation = (torch.tensor(v).view(1, 3, 1, 1) for v in IMAGENET)
    return (images - mean) / deviation


@pytest.mark.parametrize("bias", [True, False])
def test_the_logits_of_a_plain_classifier_stay_to_the_bit(bias):
    classifier, images = Classifier(bias), torch.rand(3, 3, 32, 32)
    model = mt3.add_objective(classifier, features="classes", normalisation=IMAGENET)
    assert torch.equal(model(images), classifier(normalised(images)))
    assert (model.classify.bias is not None, model.stacks, model.num_classes) == (bias, False, 4)
    assert mt3.Adapter(model, views=2)(images).shape == (3, 4)
    assert call(model, parameters_of(model), images).heads["r"].shape == (3, 128)
    last = nn.Sequential(classifier.body, classifier.pool, nn.Flatten(), classifier.classes)
    assert torch.equal(mt3.add_objective(last, normalisation=None)(images), last(images))  # its last nn.Linear


def vit_classifier() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(**VIT, num_labels=3)).eval()


def resnet_classifier() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 3}
    return ResNetForImageClassification(ResNetConfig(**sizes)).eval()


@pytest.mark.parametrize(("make", "name"), [(vit_classifier, "classifier"), (resnet_classifier, "classifier.1")])
def test_the_logits_of_an_output_object_stay_to_the_bit(make, name):
    classifier, images = make(), torch.rand(2, 3, 32, 32)
    for features in (None, name):
        model = mt3.add_objective(classifier, features=features, normalisation=IMAGENET)
        assert torch.equal(model(images), classifier(normalised(images)).logits)
    assert mt3.Adapter(model, views=2)(images).shape == (2, 3)


def test_what_is_no_plain_classifier_is_refused():
    with pytest.raises(TypeError, match="normalisation"):
        mt3.add_objective(Classifier())
    refused = [
        (
            (nn.Sequential(nn.Flatten(), nn.Linear(3072, 4), nn.Softmax(1)), "byol", "1"),
            "4 values come out|logits are not",
        ),
        ((Classifier(), "byol"), "does not end with its class layer unused: 4 values"),
        ((Classifier(), "byol", "body"), "class layer body to be an nn.Linear, got a ConvNet"),
        ((Classifier(), "byol", "head"), "has no module 'head'"),
        ((ConvNet(), "byol"), "last layer is an nn.Linear"),
        (("resnet", "byol"), "Expected a classifier as a torch module"),
    ]
    for arguments, words in refused:
        with pytest.raises(mt3.InputError, match=words):
            mt3.add_objective(*arguments, normalisation=None)
    for wrong in (((0, 0), (1, 1)), "abc", ((0, 0, 0), (1, 1, 0)), 3):
        with pytest.raises(mt3.InputError, match="three means and three deviations"):
            mt3.MT3Model(ConvNet(), 3, normalisation=wrong)


def test_normalisation_comes_after_the_views():
    """The views are made of the image in [0, 1]; the network sees them normalised."""
    seen = []

    class Watched(ConvNet):
        def forward(self, x: Tensor) -> Tensor:
            seen.append(x)
            return super().forward(x)

    model, image = mt3.MT3Model(Watched(), 3, normalisation=IMAGENET), torch.rand(1, 3, 16, 16)
    (adapted,) = mt3.Adapter(model, views=2).adapt(image)
    assert 0 <= adapted.views.images.min() <= adapted.views.images.max() <= 1
    assert any(x.shape == (4, 3, 16, 16) and torch.equal(x, normalised(adapted.views.images)) for x in seen)


def test_a_model_is_loaded_with_its_module_given_again(tmp_path):
    classifier, images = Classifier(), torch.rand(2, 3, 32, 32)
    model = mt3.add_objective(classifier, features="classes", normalisation=IMAGENET)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["backbone"] is None
    assert config["normalisation"] == [list(v) for v in IMAGENET]
    again = mt3.load(tmp_path, backbone=mt3.features_of(Classifier(), "classes"))
    assert torch.equal(again(images), model(images))
    assert torch.equal(mt3.Adapter(again, views=2)(images), mt3.Adapter(model, views=2)(images))
    other = mt3.MT3Model.from_pretrained(tmp_path, backbone=mt3.features_of(Classifier(), "classes"))
    assert torch.equal(other(images), model(images))


def test_a_missing_or_needless_module_is_one_sentence(tmp_path):
    mt3.MT3Model(ConvNet(), 3).save_pretrained(tmp_path / "theirs")
    mt3.MT3Model("resnet8x4", 3).save_pretrained(tmp_path / "ours")
    with pytest.raises(mt3.InputError, match=r"theirs has a backbone of your own; give the module as mt3.load\(path"):
        mt3.load(tmp_path / "theirs")
    with pytest.raises(mt3.InputError, match=r"backbone of your own; load it with mt3.load"):
        mt3.MT3Model.from_pretrained(tmp_path / "theirs")
    with pytest.raises(mt3.InputError, match="ours has one of our backbones, resnet8x4; leave out backbone"):
        mt3.load(tmp_path / "ours", backbone=ConvNet())
    with pytest.raises(mt3.InputError, match=r"do not fit their config.json or backbone: backbone\.early\.module"):
        mt3.load(tmp_path / "theirs", backbone=nn.Sequential(nn.Conv2d(3, 12, 3)))
    config = json.loads((tmp_path / "ours" / "config.json").read_text()) | {"backbone": 3}
    (tmp_path / "ours" / "config.json").write_text(json.dumps(config))
    with pytest.raises(mt3.InputError, match="expected backbone to be"):
        mt3.load(tmp_path / "ours")


def test_batch_statistics_are_saved_with_the_weights(tmp_path):
    net = ConvNet(nn.BatchNorm2d)
    net(torch.rand(4, 3, 16, 16))
    model, images = mt3.MT3Model(net.eval().double(), 3), torch.rand(2, 3, 16, 16)
    model.save_pretrained(tmp_path)
    again = mt3.load(tmp_path, backbone=ConvNet(nn.BatchNorm2d).eval().double())
    assert again.dtype == torch.float64
    assert torch.equal(again(images), model(images))


def test_weights_are_taken_over_from_a_run_with_the_same_module(tmp_path):
    source = mt3.MT3Model(ConvNet(), 2)
    source.save_pretrained(tmp_path)
    model = mt3.MT3Model(ConvNet(), 2, hidden=7)  # another head keeps its weights
    images, labels = coloured()
    dataset = mt3.data.as_dataset((images, labels))
    config = make_config("jt", dataset.name, "small", 0, {"start": None})
    state = make_state(config, dataset, torch.device("cpu"), tmp_path, model)
    for name, p in source.backbone.named_parameters():
        assert torch.equal(state.model.backbone.get_parameter(name), p)
    with pytest.raises(mt3.InputError, match=r"differs from this run's at early\.module\.0\.bias; give both the same"):
        take_weights(mt3.MT3Model(nn.Sequential(nn.Conv2d(3, 8, 3)), 2), source, "run", torch.Generator())
    with pytest.raises(mt3.InputError, match="in the groups of its norms"):
        take_weights(mt3.MT3Model(ConvNet(lambda c: nn.GroupNorm(4, c)), 2), source, "run", torch.Generator())
