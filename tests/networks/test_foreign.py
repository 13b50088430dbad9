"""Networks of any kind as backbones: exact meta-gradients, adaptation that depends on the image alone, refusals."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import mt3
from foreign import NETWORKS, ConvNet, Encoder, adapted_by_hand, byol, outputs, step_by_hand, vit
from mt3.config.config import make_config
from mt3.networks.backbone import Backbone
from mt3.networks.foreign import Foreign
from mt3.objectives.objective import Views
from mt3.training.losses import meta_loss
from mt3.training.state import State
from mt3.training.tasks import Task

NORMALISATION = ((0.4, 0.5, 0.6), (0.2, 0.3, 0.4))


def make(name: str, **fields) -> mt3.MT3Model:
    return mt3.MT3Model(NETWORKS[name](), 3, hidden=10, projection=6, **fields)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_meta_gradient_is_that_of_an_independent_unroll(name, recompute):
    model = make(name, normalisation=NORMALISATION).double()
    generator = torch.Generator().manual_seed(3)
    x, views = (torch.rand(n, 3, 32, 32, dtype=torch.float64, generator=generator) for n in (2, 4))
    labels = torch.tensor([0, 2])
    config = make_config("mt3", "digits", "paper", 0, {"inner_lr": 0.5, "inner_clip": 0.05, "gamma": 0.7})
    state = State(model, None, None, recompute=recompute)
    loss = meta_loss(state, Task(x, labels, Views(views)), config, log=False)
    theta = dict(model.named_parameters())
    found = torch.autograd.grad(loss.total, list(theta.values()), allow_unused=True)

    with sdpa_kernel(SDPBackend.MATH):
        phi = step_by_hand(model.eval(), theta, views, config.inner)
        z = outputs(model, theta, views)[2]
        wanted = F.cross_entropy(outputs(model, phi, x)[0], labels) + 0.7 * byol(outputs(model, phi, views)[1], z)
    exact = torch.autograd.grad(wanted, list(theta.values()), allow_unused=True)
    torch.testing.assert_close(loss.total, wanted, rtol=1e-11, atol=1e-11)
    assert sum(g is not None for g in exact) > 10
    for own, given, name in zip(found, exact, theta, strict=True):
        given = torch.zeros_like(theta[name]) if given is None else given
        own = torch.zeros_like(given) if own is None else own
        torch.testing.assert_close(own, given, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("name", NETWORKS)
def test_an_image_is_adapted_to_alike_alone_and_in_any_batch(name):
    model, images = make(name), torch.rand(3, 3, 32, 32)
    adapter = mt3.Adapter(model, views=2, lr=0.5)
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    together = adapter(images)
    alone = torch.cat([adapter(images[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(adapter(images.flip(0)), together.flip(0), rtol=1e-5, atol=1e-5)
    assert (together - adapter.unadapted(images)).abs().max() > 1e-4
    assert all(torch.equal(b, buffers[n]) for n, b in model.named_buffers())


def test_dropout_is_off_whatever_the_mode():
    model, images = mt3.MT3Model(Encoder(), 3), torch.rand(2, 3, 32, 32)
    adapter = mt3.Adapter(model, views=2)
    calm = adapter(images)
    assert torch.equal(mt3.Adapter(model.train(), views=2)(images), calm)
    assert model.backbone.early.module.encoder.layers[0].dropout.training


@pytest.mark.parametrize("size", [16, 48, 224])
def test_images_of_any_size_are_adapted_to(size):
    model = mt3.MT3Model(ConvNet(), 3, size=size)
    assert mt3.Adapter(model, views=1)(torch.rand(1, 3, size, size)).shape == (1, 3)
    with pytest.raises(mt3.InputError, match=rf"\(N, 3, {size}, {size}\)"):
        mt3.Adapter(model, views=1)(torch.rand(1, 3, 20, 20))


def test_the_dry_pass_finds_features_size_and_activations():
    net = ConvNet()
    backbone = Foreign(net.train(), 16)
    assert isinstance(backbone, Backbone)
    assert (backbone.features, backbone.size, backbone.stacks) == (12, 16, False)
    # values of 16 pixels: convolution, norm and GELU give 8 maps of 8 pixels each, then 12 of 4 twice, and 12 features
    assert (backbone.largest(16), backbone.kept(16)) == (512, 3 * 512 + 2 * 192 + 12)
    assert (backbone.largest(32), backbone.kept(32)) == (4 * 512, 4 * (3 * 512 + 2 * 192 + 12))
    assert net.training
    assert Foreign(vit()).size == 32  # the only size that it takes
    with pytest.raises(mt3.InputError, match=r"cannot be called with images \(2, 3, 48, 48\).*give the size"):
        mt3.MT3Model(vit(), 3, size=48)


def test_what_is_not_features_is_refused_with_a_wrapper():
    class Tokens(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(2)

    class Named(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"features": x}

    for net, came in ((Tokens(), r"a tensor \(2, 3, 1024\)"), (Named(), "a dict")):
        with pytest.raises(mt3.InputError, match=f"got {came}; wrap it: class Net.*last_hidden_state"):
            mt3.MT3Model(net, 3)
    with pytest.raises(mt3.InputError, match="a backbone's name or a module, got a int"):
        mt3.MT3Model(3, 3)


class Listed(nn.Module):
    """Calls its layers from a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 6, 3)
        self.order = [self.first]

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.order[0](x)
        return maps


def hooked() -> nn.Module:
    net = ConvNet()
    net.layers[0].forward = net.layers[0].forward  # as libraries with hooks do
    return net


class Kept(nn.Module):
    """Keeps its weights in a list, too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(5, 3))
        self.flat = [self.weight]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.mean((2, 3)), self.flat[0])


@pytest.mark.parametrize("net", [Listed, Kept, hooked])
def test_a_network_that_would_keep_its_own_weights_is_refused(net):
    made = net()
    weights = [p.detach().clone() for p in made.parameters()]
    with pytest.raises(mt3.InputError, match=r"cannot be called with other weights than its own: .*nn\.ModuleList"):
        mt3.MT3Model(made, 3)
    assert all(torch.equal(a, b) for a, b in zip(made.parameters(), weights, strict=True))


def test_a_recurrent_network_is_followed():
    """PyTorch's layers look after their list of weights themselves."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(3, 6, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            states: Tensor = self.rnn(x[:, :, ::8, ::8].flatten(2).mT)[0]
            return states.mean(1)

    model, image = mt3.MT3Model(Recurrent(), 3), torch.rand(3, 16, 16)
    torch.testing.assert_close(mt3.Adapter(model)(image[None])[0], adapted_by_hand(model, image), rtol=1e-5, atol=1e-5)


def test_tied_unused_and_frozen_weights_are_no_obstacle(tmp_path):
    class Odd(ConvNet):
        def __init__(self) -> None:
            super().__init__()
            self.layers.append(nn.Conv2d(12, 12, 1))
            self.twin, self.unused = self.layers[-1], nn.Linear(4, 4)
            self.layers[0].requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            maps: Tensor = self.twin(self.layers(x))
            return maps

    model, images = mt3.MT3Model(Odd(), 3), torch.rand(2, 3, 16, 16)
    assert not any("layers.0." in name for name in model.adapted_names("all"))
    (adapted,) = mt3.Adapter(model, views=2, lr=1.0).adapt(images[:1])
    moved = {n for n, p in model.named_parameters() if not torch.equal(adapted.params[n], p)}
    assert "backbone.early.module.layers.3.weight" in moved
    assert not {n for n in moved if "layers.0." in n or "unused" in n}
    model.save_pretrained(tmp_path)
    assert torch.equal(mt3.load(tmp_path, backbone=Odd())(images), model(images))
