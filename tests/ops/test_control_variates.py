from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model
from protofed.core.rng import rng
from protofed.core.site import RoundContext
from protofed.core.training import SGD, fit_model
from protofed.methods.fedavg import FedAvg
from protofed.ops import control_variates
from protofed.ops.control_variates import VARIATE, DriftServer
from protofed.testing import toy_sites

STEPS = [(1, 0.0), (7, 0.0), (1, 0.9), (2, 0.5), (7, 0.9), (50, 0.9), (300, 0.99)]


def random_model(name: str) -> Model:
    draw = rng("drift", name)
    weights = {"a": torch.randn(3, 2, generator=draw), "b": torch.randn(4, generator=draw)}
    return Model(weights, {"n": torch.randn(4, generator=draw)})


@pytest.mark.parametrize(("steps", "momentum"), STEPS)
def test_effective_steps_are_those_of_a_real_optimiser(steps: int, momentum: float) -> None:
    w, gradient = torch.zeros(3, dtype=torch.float64), torch.tensor([1.0, -2.0, 0.5]).double()
    optimiser = torch.optim.SGD([w], lr=0.03, momentum=momentum)
    for _ in range(steps):
        w.grad = gradient.clone()
        optimiser.step()
    expected = -0.03 * control_variates.effective_steps(steps, momentum) * gradient
    torch.testing.assert_close(w, expected, rtol=1e-10, atol=1e-12)


def test_effective_steps_by_hand() -> None:
    assert control_variates.effective_steps(9, 0.0) == 9
    assert control_variates.effective_steps(2, 0.5) == 1 + 1.5
    assert control_variates.effective_steps(0, 0.9) == 0


@pytest.mark.parametrize(("steps", "momentum"), STEPS)
def test_a_renewed_variate_is_the_clients_own_gradient(steps: int, momentum: float) -> None:
    """Descent on <w, g + shared - own> with a real fit gives g back, whatever the momentum."""
    start, g, own, shared = (random_model(name) for name in ("start", "g", "own", "shared"))
    sgd = SGD(lr=0.01, momentum=momentum, weight_decay=0.0)
    pull = {n: g.weights[n] + shared.weights[n] - own.weights[n] for n in g.weights}
    fitted = fit_model(
        start, range(steps), lambda m, _: control_variates.inner_product(m.weights, pull), sgd
    )
    new = control_variates.updated_variate(
        own.weights, shared.weights, start, fitted.trained, sgd, fitted.steps
    )
    for name, leaf in new.items():
        torch.testing.assert_close(leaf, g.weights[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("lr", "steps"), [(0.0, 5), (0.1, 0)])
def test_without_any_step_the_variate_stays(lr: float, steps: int) -> None:
    own, shared, there = (random_model(name) for name in ("own", "shared", "there"))
    new = control_variates.updated_variate(
        own.weights, shared.weights, there, there, SGD(lr=lr), steps
    )
    assert tree.equal(new, own.weights)


def test_the_inner_product_is_a_loop_and_its_gradient_is_the_constant() -> None:
    one, other = random_model("one").weights, random_model("other").weights
    for leaf in one.values():
        leaf.requires_grad_()
    product = control_variates.inner_product(one, other)
    expected = sum(
        x * y
        for name in one
        for x, y in zip(one[name].flatten().tolist(), other[name].flatten().tolist(), strict=True)
    )
    assert product.item() == pytest.approx(expected, rel=1e-5)
    product.backward()
    assert all(tree.equal(one[name].grad, other[name]) for name in one)


def test_sums_and_zeros_are_of_weights_alone() -> None:
    one, other = random_model("one"), random_model("other")
    assert control_variates.zero_weights(one).keys() == one.weights.keys()
    assert not any(leaf.any() for leaf in control_variates.zero_weights(one).values())
    for name, leaf in control_variates.add_weights(one.weights, other.weights, -0.5).items():
        torch.testing.assert_close(leaf, one.weights[name] - 0.5 * other.weights[name])


def test_the_cloud_is_the_mean_model_and_the_drift_with_the_models_buffers() -> None:
    model, lean = random_model("one"), random_model("other").weights
    cloud = DriftServer(model, lean).client_start()
    assert tree.equal(cloud.buffers, model.buffers)
    assert all(torch.equal(cloud.weights[n], model.weights[n] + lean[n]) for n in lean)


def test_relative_sizes_are_around_one() -> None:
    site, _ = toy_sites(FedAvg())  # 17, 24, 33 and 40 images
    assert [control_variates.relative_size(site, c) for c in range(4)] == [
        n / 28.5 for n in (17, 24, 33, 40)
    ]


def test_weights_are_averaged_evenly_and_buffers_by_size() -> None:
    def reply(weight: float, size: int) -> Message:
        return Message(
            Model({"w": torch.full((1,), weight)}, {"n": torch.tensor(weight)}), size=size
        )

    mean = control_variates.unweighted_mean({0: reply(0.0, 1), 5: reply(4.0, 3)})
    assert mean.weights["w"].tolist() == [2.0]
    assert mean.buffers["n"].item() == 3.0


def test_who_does_not_reply_counts_as_not_having_moved() -> None:
    site, _ = toy_sites(FedAvg())
    moves = [random_model(name).weights for name in ("x", "y")]
    start, before = random_model("start"), random_model("before").weights
    end = Model({n: start.weights[n] + (moves[0][n] + moves[1][n]) / 2 for n in before})
    for name, leaf in control_variates.mean_drift(site, before, start, end, replies=2).items():
        expected = before[name] + (moves[0][name] + moves[1][name] + 0 + 0) / 4
        torch.testing.assert_close(leaf, expected)


@pytest.mark.parametrize("sized", [True, False])
def test_changes_of_variates_are_summed_over_those_who_replied(sized: bool) -> None:
    site, _ = toy_sites(FedAvg())
    changes = {client: random_model(str(client)).weights for client in (1, 3)}
    replies = {client: Message(extras={VARIATE: change}) for client, change in changes.items()}
    for name, leaf in control_variates.mean_variate_change(site, replies, sized).items():
        one, other = (24 / 28.5, 40 / 28.5) if sized else (1, 1)
        expected = (one * changes[1][name] + other * changes[3][name]) / 4
        torch.testing.assert_close(leaf, expected)


def with_gradients(model: Model) -> list[Tensor]:
    gradients = [3 * leaf for leaf in model.weights.values()]
    for leaf, gradient in zip(model.weights.values(), gradients, strict=True):
        leaf.grad = gradient.clone()
    return gradients


def norm(parts: list[Tensor]) -> float:
    return float(torch.cat([part.flatten() for part in parts]).norm())


def test_clipping_scales_the_whole_gradient_or_leaves_it_alone() -> None:
    model = random_model("clip")
    gradients = with_gradients(model)
    limit = norm(gradients) / 4
    control_variates.clip_gradients(limit)(model)
    found = [leaf.grad for leaf in model.weights.values() if leaf.grad is not None]
    assert norm(found) == pytest.approx(limit, rel=1e-5)
    for before, after in zip(gradients, found, strict=True):
        torch.testing.assert_close(after, before / 4)
    gradients = with_gradients(model)
    control_variates.clip_gradients(5 * limit)(model)
    assert tree.equal([leaf.grad for leaf in model.weights.values()], gradients)


def test_local_fit_is_fedavgs_training_and_counts_its_steps() -> None:
    method = FedAvg()
    _, sites = toy_sites(method)
    site, step, received = sites[2], RoundContext(3, 4), Message(sites[2].initial_model())
    site = replace(site, training=replace(site.training, last_batch="keep"))  # 33 images by 8
    expected, _ = method.train(site, received, None, step)
    free = control_variates.clip_gradients(0)
    fitted = method.local_fit(site, received, None, step, on_gradients=free)
    assert tree.equal(fitted.trained, expected.model)
    assert fitted.steps == 2 * 5
    clip = control_variates.clip_gradients(0.01)
    clipped = method.local_fit(site, received, None, step, on_gradients=clip)
    far, near = (
        float(tree.squared_distance(m.trained.weights, received.model.weights))
        for m in (fitted, clipped)
    )
    assert near < far / 10
