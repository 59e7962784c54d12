"""How a client trains: the optimiser's numbers and how its data is cut into batches."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import ConfigDict, Field, Strict
from pydantic.dataclasses import dataclass
from torch import Tensor

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
Number = Strict()  # "3" is no number, and true is not 1


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SGD:
    """Stochastic gradient descent; made anew for every fit, so momentum never outlives it."""

    lr: Annotated[float, Number] = Field(default=0.01, ge=0)
    momentum: Annotated[float, Number] = Field(default=0.9, ge=0, lt=1)
    weight_decay: Annotated[float, Number] = Field(default=1e-5, ge=0)


@dataclass(frozen=True, kw_only=True)
class Training(SGD):
    """A client's local training in one round."""

    epochs: Annotated[int, Number] = Field(default=5, ge=1, le=100_000)
    batch: Annotated[int, Number] = Field(default=64, ge=1, le=1_000_000)
    last_batch: Literal["keep", "merge", "drop"] = "keep"  # what becomes of a short last batch

    def split_epochs(self) -> tuple[int, int]:
        """The epochs of a round that trains twice; an odd one goes to the second training.

        Each has one epoch at least, so that a round of one epoch becomes one of two.
        """
        first = max(1, self.epochs // 2)
        return first, max(1, self.epochs - first)

    def batch_indices(self, order: Tensor) -> list[Tensor]:
        """Split shuffled row numbers [N] into batches; one at least, unless there are no rows."""
        batches = list(order.split(self.batch)) if len(order) else []
        if len(batches) > 1 and len(batches[-1]) < self.batch and self.last_batch != "keep":
            short = batches.pop()
            if self.last_batch == "merge":
                batches[-1] = torch.cat([batches[-1], short])
        return batches
