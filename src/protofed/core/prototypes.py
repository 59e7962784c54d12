"""Prototypes as one table: a row is one vector with its class and the examples behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from protofed.core import tree


@tree.node
class Prototypes:
    """Class prototypes; an absent class has no row, a class with clusters has several."""

    vectors: Tensor  # [K, D]
    labels: Tensor  # [K] class of each row
    counts: Tensor  # [K] what each row is the mean of: so many examples, or rows

    def __len__(self) -> int:
        return len(self.labels)

    def shuffled_batches(self, size: int, draws: Iterable[torch.Generator]) -> Iterator[Prototypes]:
        """All rows in batches of a size, once for each random stream and in an order of its own."""
        for draw in draws:
            for rows in torch.randperm(len(self), generator=draw).split(size):
                yield Prototypes(self.vectors[rows], self.labels[rows], self.counts[rows])

    def class_matrix(self, classes: int) -> tuple[Tensor, Tensor]:
        """The plain mean of each class's rows [C, D], zero where there is none, and who has [C]."""
        shape = (classes, self.vectors.shape[1])
        sums = self.vectors.new_zeros(shape).index_add_(0, self.labels, self.vectors)
        rows = torch.bincount(self.labels, minlength=classes)
        return sums / rows.clamp(min=1)[:, None], rows > 0

    def uniform_mean(self) -> Prototypes:
        """One row a class: the plain mean of its rows, and how many rows that were.

        The examples behind them are not told on: who gets the mean has no use for their number.
        """
        return self._merge(torch.ones_like(self.counts))

    def weighted_mean(self) -> Prototypes:
        """One row a class: the mean of its rows, weighted by their counts, and the counts' sum."""
        return self._merge(self.counts)

    def _merge(self, weights: Tensor) -> Prototypes:
        labels, place = self.labels.unique(return_inverse=True)
        shape = (len(labels), self.vectors.shape[1])
        sums = self.vectors.new_zeros(shape, dtype=torch.float64)
        sums.index_add_(0, place, self.vectors.double() * weights[:, None])
        counts = torch.zeros_like(labels).index_add_(0, place, weights)
        return Prototypes((sums / counts[:, None]).to(self.vectors.dtype), labels, counts)

    def nearest_scores(self, z: Tensor, classes: int) -> Tensor:
        """Class scores [B, C] of features [B, D]: minus the squared distance to the nearest row."""
        distances = torch.cdist(z, self.vectors, compute_mode="donot_use_mm_for_euclid_dist")
        scores = z.new_full((len(z), classes), -torch.inf)
        columns = self.labels.expand(len(z), -1)
        return scores.scatter_reduce(1, columns, -distances.square(), "amax")

    def class_margins(self) -> Tensor:
        """For each row [K], the distance to the nearest row of another class."""
        distances = torch.cdist(
            self.vectors, self.vectors, compute_mode="donot_use_mm_for_euclid_dist"
        )
        same = self.labels[:, None] == self.labels
        return distances.masked_fill(same, torch.inf).amin(1)


def prototype_template(classes: int, width: int, each: int = 1) -> Prototypes:
    """A table of zeros with so many rows for each class: the fullest that a client may send."""
    labels = torch.arange(classes).repeat(each)
    return Prototypes(torch.zeros(len(labels), width), labels, torch.ones_like(labels))


def class_means(features: Tensor, labels: Tensor) -> Prototypes:
    """One row for each class among `labels` [N]: the mean of its `features` [N, D]."""
    return Prototypes(features, labels, torch.ones_like(labels)).uniform_mean()


def stack_prototypes(tables: Iterable[Prototypes]) -> Prototypes:
    """The rows of several tables under one another."""
    return tree.map(lambda *parts: torch.cat(parts), *tables)
