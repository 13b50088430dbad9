"""Adapting along a stream: TENT against its published algorithm, states, resets and refusals."""

import copy
import threading

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import mt3
from mt3.adaptation.views import image_generator
from rivals import Net, make_images, make_net


def published_tent(net: Net, images: Tensor, batch: int, lr: float, momentum: float, steps: int = 1) -> list[Tensor]:
    """TENT as its paper has it, on the network itself: the logits of each batch come from the pass before the step."""
    net = copy.deepcopy(net).train()
    net.requires_grad_(False)
    weights = []
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = None
        if isinstance(module, nn.BatchNorm2d | nn.GroupNorm | nn.LayerNorm):
            weights += [module.weight.requires_grad_(), module.bias.requires_grad_()]
    optimizer = torch.optim.SGD(weights, lr=lr, momentum=momentum)
    found = []
    for start in range(0, len(images), batch):
        for _ in range(steps):
            logits = net(images[start : start + batch])
            p = logits.softmax(1)
            loss = -(p * logits.log_softmax(1)).sum(1).mean(0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        found.append(logits.detach())
    return found


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("norm", ["batch", "group", "layer"])
def test_tent_is_the_published_algorithm(norm, momentum):
    net, images = make_net(norm), make_images(30)
    want = torch.cat(published_tent(net, images, 8, 0.05, momentum))
    for size in (30, 16, 8):  # whatever the calls, for the same groups
        adapter = mt3.Adapter(net, "tent", carry="stream", lr=0.05, batch=8, momentum=momentum)
        got = torch.cat([adapter(part) for part in torch.split(images, size)])
        torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    still = mt3.Adapter(net, "tent", carry="stream", lr=0.0, batch=8)(images)
    assert (got - still).abs().max() > 0.05


@pytest.mark.parametrize("norm", ["group", "layer"])
def test_tent_works_with_a_batch_of_one(norm):
    net, images = make_net(norm), make_images(6)
    want = torch.cat(published_tent(net, images, 1, 0.05, 0.0))
    got = mt3.Adapter(net, "tent", carry="stream", lr=0.05, batch=1)(images)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


def changed_names(net: nn.Module, method: str, images: Tensor, **fields: object) -> set[str]:
    """The parameters that a stream has moved, by the names that the network has for them."""
    adapter = mt3.Adapter(net, method, carry="stream", **fields)
    adapter(images)
    own = dict(net.named_parameters())
    names = {name.split("module.", 1)[1]: p for name, p in adapter.stream.params.items() if "velocity/" not in name}
    return {name for name, p in names.items() if not torch.equal(p, own[name])}


@pytest.mark.parametrize("norm", ["batch", "group", "layer"])
def test_tent_moves_the_norms_alone_and_the_network_not_at_all(norm):
    net, images = make_net(norm), make_images(8)
    before = {name: t.clone() for name, t in net.state_dict().items()}
    norms = {"norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"}
    norms |= {"last.weight", "last.bias"} if norm == "layer" else set()
    assert changed_names(net, "tent", images, lr=0.1, batch=4) == norms
    sure = copy.deepcopy(net)
    sure.classes.weight.data.mul_(5)  # else some images are left out
    assert changed_names(sure, "sar", images, lr=0.1, batch=4, reset="never") == norms
    assert changed_names(net, "memo", images, lr=0.1, batch=4) == {name for name, _ in net.named_parameters()}
    assert all(torch.equal(t, before[name]) for name, t in net.state_dict().items())


def test_answers_come_after_the_step_or_before_it():
    """After: of the parameters that have seen the images; first: of those before, as its own pass gives them."""
    net, images = make_net("group"), make_images(8)
    later, first = (
        mt3.Adapter(net, "tent", carry="stream", lr=0.3, batch=4, momentum=0.0, answer=when)
        for when in ("after", "first")
    )
    own = net(images).detach()
    torch.testing.assert_close(first(images[:4]), own[:4], atol=1e-6, rtol=0)
    answers = later(images[:4])
    assert (answers - own[:4]).abs().max() > 1e-2
    torch.testing.assert_close(first(images[:4]), answers, atol=1e-6, rtol=0)  # by the same parameters, one step on


@pytest.mark.parametrize("objective", ["byol", "rotation"])
def test_a_model_of_ours_takes_one_step_for_a_group_by_hand(objective):
    """The mean of the losses of the group's images, each on views of its own."""
    adaptation = mt3.Adaptation(objective, lr=0.2, views=3, clip=None, carry="stream", batch=2)
    model = mt3.MT3Model("resnet8x4g2", 3, objective, hidden=6, projection=5).double()
    images = make_images(4, 16)
    adapter = mt3.Adapter(model, adaptation, seed=3)
    answers = adapter(images)
    hand = copy.deepcopy(model)
    for start in (0, 2):
        pair, total = images[start : start + 2].double(), torch.zeros(())
        for image in images[start : start + 2]:
            views = hand.objective.test_views(image.double(), 3, image_generator(image, 3))
            outputs = hand.outputs(views.images)
            total = total + hand.objective.loss(outputs, views, hand.objective.target(outputs)) / 2
        hand.zero_grad()
        total.backward()
        with torch.no_grad():
            for p in hand.parameters():
                if p.grad is not None:
                    p -= 0.2 * p.grad
        torch.testing.assert_close(answers[start : start + 2], hand(pair).detach(), atol=1e-9, rtol=0)
    assert (answers - model(images)).abs().max() > 1e-3


@pytest.mark.parametrize("steps", [1, 3])
def test_momentum_is_that_of_torchs_sgd(steps):
    net, images = make_net("group").double(), make_images(12)
    want = torch.cat(published_tent(net, images.double(), 4, 0.05, 0.9, steps))
    got = mt3.Adapter(net, "tent", carry="stream", lr=0.05, batch=4, momentum=0.9, steps=steps, answer="after")
    first = mt3.Adapter(net, "tent", carry="stream", lr=0.05, batch=4, momentum=0.9, steps=steps)
    assert torch.equal(first(images[:4]), mt3.Adapter(net, "tent", carry="stream")(images[:4]))  # none has been seen
    if steps == 1:
        torch.testing.assert_close(torch.cat([want[:4], first(images[4:])]), want, atol=1e-12, rtol=0)
    hand = copy.deepcopy(net).requires_grad_(False)
    weights = [p.requires_grad_() for name, p in hand.named_parameters() if "norm" in name]
    optimizer = torch.optim.SGD(weights, lr=0.05, momentum=0.9)
    for part in torch.split(images.double(), 4):
        for _ in range(steps):
            logits = hand(part)
            optimizer.zero_grad()
            (-(logits.softmax(1) * logits.log_softmax(1)).sum() / len(part)).backward()
            optimizer.step()
        torch.testing.assert_close(got(part), hand(part).detach(), atol=1e-12, rtol=0)


METHODS = {
    "tent": {"lr": 0.1, "batch": 3},
    "sar": {"lr": 0.1, "batch": 3},
    "memo": {"lr": 0.02, "views": 4, "batch": 2, "momentum": 0.5},
    "memo-augmix": {"lr": 0.02, "views": 4, "batch": 1},
    "norm": {"batch": 3},
    "norm-mixed": {"batch": 3},
    "t3a": {"batch": 3, "support": 2},
    "lame": {"batch": 4, "support": 2},
    "average": {"views": 4},
}


STEPS = ("tent", "sar", "memo", "memo-augmix")  # which a guard can watch
RESETS = {"guard": STEPS, "every 5": (*STEPS, "t3a"), "never": tuple(METHODS)}


@pytest.mark.parametrize(
    ("reset", "method", "fields"),
    [(reset, method, METHODS[method]) for reset, methods in RESETS.items() for method in methods],
)
def test_a_stream_that_was_stopped_goes_on_with_the_same_bits(tmp_path, reset, method, fields):
    """Stopped after every group, saved to a file, and taken up by a new adapter on a new network."""
    norm = "batch" if "norm" in method else "group"
    images, size = make_images(12), fields.get("batch", 1)
    fields = fields | {"carry": "stream", "reset": reset}
    want = mt3.Adapter(make_net(norm), method, **fields)(images)
    got, state = [], None
    for start in range(0, len(images), size):
        adapter = mt3.Adapter(make_net(norm), method, **fields)
        if state is not None:
            safetensors.torch.save_file(state, tmp_path / "state.safetensors")
            adapter.load_state_dict(safetensors.torch.load_file(tmp_path / "state.safetensors"))
        got.append(adapter(images[start : start + size]))
        state = adapter.state_dict()
    assert torch.equal(torch.cat(got), want)


def test_a_models_own_stream_goes_on_with_the_same_bits():
    model = mt3.MT3Model("resnet8x4g2", 3, hidden=6, projection=5)
    images, fields = make_images(6, 16), {"carry": "stream", "batch": 2, "views": 3, "momentum": 0.9, "reset": "guard"}
    first = mt3.Adapter(model, **fields)
    want = first(images)
    second = mt3.Adapter(model, **fields)
    second(images[:2])
    third = mt3.Adapter(model, **fields)
    third.load_state_dict(second.state_dict())
    assert torch.equal(third(images[2:]), want[2:])
    assert not torch.equal(mt3.Adapter(model, **fields)(images[2:]), want[2:])


def test_a_copy_goes_its_own_way():
    adapter, images = mt3.Adapter(make_net("group"), "tent", carry="stream", lr=0.1, batch=2), make_images(6)
    adapter(images[:2])
    other = copy.deepcopy(adapter)
    want = adapter(images[2:])
    assert torch.equal(other(images[2:]), want)
    assert not torch.equal(other(images[2:]), want)


def test_the_state_of_another_stream_is_refused():
    net, images = make_net("group"), make_images(4)
    adapter = mt3.Adapter(net, "tent", carry="stream", batch=2)
    adapter(images)
    for other in (mt3.Adapter(net, "tent", carry="stream", batch=4), mt3.Adapter(net, "tent", carry="stream", seed=1)):
        with pytest.raises(mt3.InputError, match="a stream with the same adaptation and seed, got another"):
            other.load_state_dict(adapter.state_dict())
    with pytest.raises(mt3.InputError, match="the same adaptation and seed"):
        adapter.load_state_dict(net.state_dict())
    guarded = mt3.Adapter(net, "tent", carry="stream", reset="guard")
    for name in ("seen", "guard/numbers"):
        damaged = {key: t for key, t in guarded.state_dict().items() if key != name}
        with pytest.raises(mt3.InputError, match="a whole state of a stream, got one without seen, guard/numbers"):
            guarded.load_state_dict(damaged)
    larger = Net("group")
    larger.norm1 = nn.GroupNorm(1, 6, affine=False)
    with pytest.raises(mt3.InputError, match=r"a stream of this network, got other values for .*norm1\.weight"):
        mt3.Adapter(larger, "tent", carry="stream", batch=2).load_state_dict(adapter.state_dict())


def test_resets_go_back_to_the_model_as_it_is():
    net, images = make_net("group"), make_images(6)
    fields = {"carry": "stream", "lr": 0.3, "batch": 2}
    fresh = mt3.Adapter(net, "tent", **fields)(images[:2])
    never = mt3.Adapter(net, "tent", **fields)
    never(images)
    never.shift()
    moved = never(images[:2])
    assert (moved - fresh).abs().max() > 1e-2
    never.reset()
    assert torch.equal(never(images[:2]), fresh)
    known = mt3.Adapter(net, "tent", **fields, reset="shift")
    known(images)
    known.shift()
    assert torch.equal(known(images[:2]), fresh)
    counted = mt3.Adapter(net, "tent", **fields, reset="every 4")(torch.cat([images[:2]] * 5))
    parts = torch.split(counted, 2)
    assert torch.equal(parts[2], fresh)
    assert torch.equal(parts[4], fresh)
    assert torch.equal(parts[3], parts[1])
    assert not torch.equal(parts[1], fresh)
    single = mt3.Adapter(net, "tent")  # has nothing to go back from
    single.reset()
    single.shift()
    assert torch.equal(single(images), mt3.Adapter(net, "tent")(images))


class Slow(Net):
    """Waits in its first pass until it is told."""

    def __init__(self) -> None:
        super().__init__("group")
        self.gates: list[threading.Event] = []

    def forward(self, x: Tensor) -> Tensor:
        if self.gates:
            self.gates[0].set()
            assert self.gates[1].wait(20)
        return super().forward(x)


def test_a_second_call_at_the_same_time_is_refused():
    net, images = Slow().eval(), make_images(2)
    adapter = mt3.Adapter(net, "tent", carry="stream")
    state = adapter.state_dict()
    net.gates += [threading.Event(), threading.Event()]
    thread = threading.Thread(target=adapter, args=(images,))
    thread.start()
    try:
        assert net.gates[0].wait(20)
        for ask in (lambda: adapter(images), adapter.reset, adapter.state_dict, lambda: adapter.load_state_dict(state)):
            with pytest.raises(
                mt3.InputError, match="is answering another call; wait for it, or make an adapter for each"
            ):
                ask()
    finally:
        net.gates[1].set()
        thread.join()
    assert adapter(images).shape == (2, 3)  # then it goes on


def test_an_error_in_a_call_leaves_the_stream_free():
    adapter = mt3.Adapter(make_net("group"), "tent", carry="stream")
    with pytest.raises(RuntimeError):
        adapter.stream(torch.rand(2, 5, 12, 12))
    assert adapter(make_images(2)).shape == (2, 3)


def test_images_that_are_not_finite_in_their_loss_move_nothing():
    net, images = make_net("group"), make_images(4)
    adapter = mt3.Adapter(net, "tent", carry="stream", lr=0.1, batch=2)
    adapter(images)
    before = {name: p.clone() for name, p in adapter.stream.params.items()}
    adapter(torch.full((2, 3, 12, 12), 3e38))
    assert all(torch.equal(p, before[name]) for name, p in adapter.stream.params.items())


def test_what_surrounds_the_caller_changes_no_answer_of_a_stream():
    net, images = make_net("group"), make_images(6)
    want = mt3.Adapter(net, "tent", carry="stream", lr=0.1, batch=2, answer="after")(images)
    for around in (torch.no_grad(), torch.inference_mode(), torch.autocast("cpu", torch.bfloat16)):
        with around:
            adapter = mt3.Adapter(net, "tent", carry="stream", lr=0.1, batch=2, answer="after")
            assert torch.equal(adapter(images), want)
    tall = torch.rand(2, 3, 12, 20)
    assert torch.equal(mt3.Adapter(net, "tent", carry="stream")(tall), net(tall).detach())


def test_a_stream_answers_its_next_images_alone():
    adapter, images = mt3.Adapter(make_net("group"), "tent", carry="stream"), make_images(2)
    for ask in (adapter.compare, adapter.adapt, lambda x: adapter.answer(x, x[:, None])):
        with pytest.raises(mt3.InputError, match=r"answers its next images by adapter\(images\) alone"):
            ask(images)
    assert adapter(images[:0]).shape == (0, 3)
    assert torch.equal(adapter.unadapted(images), adapter.model(images).detach())
