from __future__ import annotations

import pytest

from protofed.core.training import Training


@pytest.mark.parametrize(
    ("epochs", "halves"), [(1, (1, 1)), (2, (1, 1)), (3, (1, 2)), (5, (2, 3)), (10, (5, 5))]
)
def test_an_odd_epoch_goes_to_the_second_half_and_each_has_one(
    epochs: int, halves: tuple[int, int]
) -> None:
    assert Training(epochs=epochs).split_epochs() == halves
