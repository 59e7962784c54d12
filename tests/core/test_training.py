from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from protofed.core import tree
from protofed.core.model import Model
from protofed.core.training import SGD, Training, fit_model, torch_threads
from protofed.errors import DivergedError


def bowl(thing: dict[str, Tensor], target: float) -> Tensor:
    return ((thing["w"] - target) ** 2).sum() / 2


def test_two_steps_of_plain_descent_by_hand() -> None:
    start = {"w": torch.tensor([4.0])}
    fitted = fit_model(start, [0.0, 0.0], bowl, SGD(lr=0.1, momentum=0, weight_decay=0))
    # w <- w - 0.1 w, twice; losses 8 and 6.48
    torch.testing.assert_close(fitted.trained["w"], torch.tensor([3.24]))
    assert fitted.steps == 2
    assert abs(fitted.loss - (8 + 6.48) / 2) < 1e-6
    assert start["w"].item() == 4.0


def test_momentum_and_weight_decay_by_hand() -> None:
    fitted = fit_model(
        {"w": torch.tensor([1.0])}, [0.0, 0.0], bowl, SGD(lr=0.1, momentum=0.9, weight_decay=0.5)
    )
    w, v = 1.0, 0.0
    for _ in range(2):
        v = 0.9 * v + (w + 0.5 * w)
        w -= 0.1 * v
    torch.testing.assert_close(fitted.trained["w"], torch.tensor([w]))


def test_buffers_and_whole_numbers_are_constants() -> None:
    thing = {
        "model": Model({"w": torch.tensor(1.0)}, {"b": torch.tensor(5.0), "n": torch.tensor(3)})
    }

    def loss(t: dict[str, Model], _: int) -> Tensor:
        return t["model"].weights["w"] * t["model"].buffers["b"]

    made = fit_model(thing, [0], loss, SGD(lr=1, momentum=0, weight_decay=0)).trained["model"]
    assert made.weights["w"].item() == -4.0
    assert tree.equal(made.buffers, thing["model"].buffers)


def test_gradients_can_be_corrected_before_each_step() -> None:
    def add_one(thing: dict[str, Tensor]) -> None:
        grad = thing["w"].grad
        assert grad is not None
        grad += 1

    sgd = SGD(lr=0.1, momentum=0, weight_decay=0)
    fitted = fit_model({"w": torch.tensor([4.0])}, [0.0], bowl, sgd, add_one)
    torch.testing.assert_close(fitted.trained["w"], torch.tensor([3.5]))


def test_no_batch_leaves_the_thing_as_it_was() -> None:
    start = {"w": torch.tensor([4.0])}
    fitted = fit_model(start, [], bowl, SGD())
    assert tree.equal(fitted.trained, start)
    assert (fitted.steps, fitted.loss) == (0, 0.0)


def test_a_learning_rate_of_zero_changes_no_weight() -> None:
    start = {"w": torch.tensor([4.0])}
    assert tree.equal(fit_model(start, [1.0] * 3, bowl, SGD(lr=0)).trained, start)


def test_a_leaf_whose_gradient_comes_late_is_trained_as_torch_does() -> None:
    start = {"early": torch.ones(3), "late": torch.ones(3)}
    sgd = SGD(lr=0.1, momentum=0.9, weight_decay=0.01)

    def loss(thing: dict[str, Tensor], number: int) -> Tensor:
        late = thing["late"].square().sum() if number > 1 else torch.zeros(())
        return thing["early"].pow(3).sum() + late

    fitted = fit_model(start, range(4), loss, sgd)
    plain = {name: leaf.clone().requires_grad_() for name, leaf in start.items()}
    optimiser = torch.optim.SGD(list(plain.values()), lr=0.1, momentum=0.9, weight_decay=0.01)
    for number in range(4):
        optimiser.zero_grad()
        loss(plain, number).backward()
        optimiser.step()
    assert tree.equal(fitted.trained, {name: leaf.detach() for name, leaf in plain.items()})


def test_a_loss_that_is_no_number_ends_the_fit_with_the_step() -> None:
    def loss(thing: dict[str, Tensor], number: int) -> Tensor:
        return bowl(thing, 0.0) * (torch.nan if number == 2 else 1.0)

    start = {"w": torch.tensor([4.0])}
    with pytest.raises(
        DivergedError, match=r"the loss, with finite weights, .* in step 3 "
    ) as caught:
        fit_model(start, range(5), loss, SGD(lr=0.1))
    assert (caught.value.step, start["w"].item()) == (3, 4.0)


def test_weights_that_overflow_are_named_also_after_the_last_step() -> None:
    start = {"w": Model({"a": torch.tensor([1.0]), "b": torch.tensor([1.0])})}

    def loss(thing: dict[str, Model], _: int) -> Tensor:
        return thing["w"].weights["a"].sum() + 1e10 * thing["w"].weights["b"].sum()

    for steps in (1, 2):
        with pytest.raises(DivergedError) as caught:
            fit_model(start, range(steps), loss, SGD(lr=1e30, momentum=0, weight_decay=0))
        assert (caught.value.step, caught.value.what) == (steps, "w.weights.b")


def test_its_error_crosses_to_another_process() -> None:
    caught = DivergedError(3, "the loss")
    back = pickle.loads(pickle.dumps(caught))
    assert (str(back), back.step, back.what) == (str(caught), 3, "the loss")


@pytest.mark.parametrize(
    ("epochs", "halves"), [(1, (1, 1)), (2, (1, 1)), (3, (1, 2)), (5, (2, 3)), (10, (5, 5))]
)
def test_an_odd_epoch_goes_to_the_second_half_and_each_has_one(
    epochs: int, halves: tuple[int, int]
) -> None:
    assert Training(epochs=epochs).split_epochs() == halves


@pytest.mark.parametrize(
    ("size", "how", "expected"),
    [
        (10, "keep", [4, 4, 2]),
        (10, "merge", [4, 6]),
        (10, "drop", [4, 4]),
        (8, "merge", [4, 4]),
        (3, "drop", [3]),  # never nothing: a client smaller than a batch still trains
        (1, "drop", [1]),
    ],
)
def test_what_becomes_of_a_short_last_batch(size: int, how: str, expected: list[int]) -> None:
    training = Training(batch=4, last_batch=how)  # type: ignore[arg-type]
    batches = training.batch_indices(torch.arange(size))
    assert [len(batch) for batch in batches] == expected


def test_batches_are_the_rows_in_order_but_for_dropped_ones() -> None:
    for size in range(9):
        order = torch.randperm(size, generator=torch.Generator().manual_seed(size))
        for how in ("keep", "merge", "drop"):
            training = Training(batch=3, last_batch=how)
            rows = [int(row) for batch in training.batch_indices(order) for row in batch]
            lost = size % 3 if how == "drop" and size > 3 else 0
            assert rows == order.tolist()[: size - lost]


def test_the_number_of_threads_is_restored_also_after_an_error() -> None:
    before = torch.get_num_threads()
    seen = []

    def fail() -> None:
        with torch_threads(before + 1):
            seen.append(torch.get_num_threads())
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert (seen, torch.get_num_threads()) == ([before + 1], before)


Optimizer = Literal["sgd", "adam", "adamw"]
OPTIMIZERS: tuple[Optimizer, ...] = ("sgd", "adam", "adamw")


def optimizer_of_torch(weights: dict[str, Tensor], training: Training) -> torch.optim.Optimizer:
    leaves, lr, decay = list(weights.values()), training.lr, training.weight_decay
    if training.optimizer == "adam":
        return torch.optim.Adam(leaves, lr=lr, weight_decay=decay)
    if training.optimizer == "adamw":
        return torch.optim.AdamW(leaves, lr=lr, weight_decay=decay)
    return torch.optim.SGD(leaves, lr=lr, momentum=training.momentum, weight_decay=decay)


def fitted_by_hand(
    start: dict[str, Tensor], batches: list[Tensor], training: Training
) -> dict[str, Tensor]:
    """What `fit_model` should give: torch's optimiser and clipping in a loop written out."""
    weights = {name: leaf.clone().requires_grad_() for name, leaf in start.items()}
    optimiser = optimizer_of_torch(weights, training)
    for batch in batches:
        optimiser.zero_grad()
        ravine(weights, batch).backward()
        triple_bias(weights)
        if training.clip_norm:
            torch.nn.utils.clip_grad_norm_(weights.values(), training.clip_norm)
        optimiser.step()
    return {name: leaf.detach() for name, leaf in weights.items()}


def ravine(thing: dict[str, Tensor], x: Tensor) -> Tensor:
    return ((x @ thing["w"]).tanh() + thing["b"]).square().mean()


def triple_bias(thing: dict[str, Tensor]) -> None:
    grad = thing["b"].grad
    assert grad is not None
    grad *= 3


@pytest.mark.parametrize("clip_norm", [0.0, 0.05])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_an_optimiser_is_torchs_to_the_bit_and_clips_after_the_hook(
    optimizer: Optimizer, clip_norm: float
) -> None:
    draw = torch.Generator().manual_seed(1)
    start = {"w": torch.randn(5, 3, generator=draw), "b": torch.randn(3, generator=draw)}
    batches = [torch.randn(8, 5, generator=draw) for _ in range(7)]
    training = Training(lr=0.02, weight_decay=0.1, optimizer=optimizer, clip_norm=clip_norm)
    made = fit_model(start, batches, ravine, training, triple_bias).trained
    assert tree.equal(made, fitted_by_hand(start, batches, training))
    others = [o for o in OPTIMIZERS if o != optimizer]
    for other in (replace(training, optimizer=o) for o in others):
        assert not tree.equal(made, fit_model(start, batches, ravine, other, triple_bias).trained)
    unlimited = replace(training, clip_norm=0.0)
    again = fit_model(start, batches, ravine, unlimited, triple_bias).trained
    assert tree.equal(made, again) == (clip_norm == 0)


def test_adams_moments_do_not_outlive_a_fit() -> None:
    start, training = {"w": torch.tensor([4.0])}, Training(optimizer="adam", weight_decay=0)
    first = fit_model(start, [0.0], bowl, training).trained
    second = fit_model(first, [9.0], bowl, training).trained
    # A first step of Adam has the length lr, whatever the gradient.
    torch.testing.assert_close(first["w"], torch.tensor([3.99]))
    torch.testing.assert_close(second["w"], torch.tensor([4.0]))


def test_training_with_sgd_does_not_import_the_compiler_of_torch() -> None:
    script = """
import sys, torch
from protofed.core.training import SGD, fit_model
fit_model({"w": torch.ones(2)}, [1], lambda thing, batch: thing["w"].sum(), SGD())
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
