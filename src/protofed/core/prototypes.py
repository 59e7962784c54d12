"""Prototypes as one table: each row is a vector, its class, and how many examples it averages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from protofed.core import tree


@tree.node
class Prototypes:
    """A table of class prototypes: K rows of D features.

    A class may have no row (nobody holds it), one, or several (clusters, or rows of many clients).
    Never assume that row c is class c; ask `labels`, or use `class_matrix`::

        table = class_means(z, y)  # one row per class that occurs in y
        centres, present = table.class_matrix(site.classes)  # [C, D], [C] bool
        target = centres[batch.y]  # [B, D]; zeros where present[batch.y] is False
    """

    vectors: Tensor  # [K, D]
    labels: Tensor  # [K] int64, the class of each row
    counts: Tensor  # [K] int64, how many examples (or rows) each row is the mean of

    def __len__(self) -> int:
        return len(self.labels)

    def shuffled_batches(self, size: int, draws: Iterable[torch.Generator]) -> Iterator[Prototypes]:
        """All rows in batches of `size`, once per random stream and shuffled by it."""
        for draw in draws:
            for rows in torch.randperm(len(self), generator=draw).split(size):
                yield Prototypes(self.vectors[rows], self.labels[rows], self.counts[rows])

    def class_matrix(self, classes: int) -> tuple[Tensor, Tensor]:
        """The unweighted mean of each class's rows [C, D] and which classes have one [C] bool.

        The mean of a class without a row is zero.
        """
        shape = (classes, self.vectors.shape[1])
        sums = self.vectors.new_zeros(shape).index_add_(0, self.labels, self.vectors)
        rows = torch.bincount(self.labels, minlength=classes)
        return sums / rows.clamp(min=1)[:, None], rows > 0

    def uniform_mean(self) -> Prototypes:
        """One row per class: the unweighted mean of its rows; `counts` is how many rows there were.

        The number of examples behind them is dropped: receivers of the mean have no use for it.
        """
        return self._merge(torch.ones_like(self.counts))

    def weighted_mean(self) -> Prototypes:
        """One row per class: the mean of its rows weighted by `counts`; `counts` is their sum."""
        return self._merge(self.counts)

    def _merge(self, weights: Tensor) -> Prototypes:
        labels, place = self.labels.unique(return_inverse=True)
        shape = (len(labels), self.vectors.shape[1])
        sums = self.vectors.new_zeros(shape, dtype=torch.float64)
        sums.index_add_(0, place, self.vectors.double() * weights[:, None])
        counts = torch.zeros_like(labels).index_add_(0, place, weights)
        return Prototypes((sums / counts[:, None]).to(self.vectors.dtype), labels, counts)

    def nearest_scores(self, z: Tensor, classes: int) -> Tensor:
        """Class scores [B, C] of features [B, D]: minus the squared distance to the nearest row.

        A class without a row scores minus infinity.
        """
        distances = torch.cdist(z, self.vectors, compute_mode="donot_use_mm_for_euclid_dist")
        scores = z.new_full((len(z), classes), -torch.inf)
        columns = self.labels.expand(len(z), -1)
        return scores.scatter_reduce(1, columns, -distances.square(), "amax")

    def class_margins(self) -> Tensor:
        """For each row [K], the Euclidean distance to the nearest row of another class."""
        distances = torch.cdist(
            self.vectors, self.vectors, compute_mode="donot_use_mm_for_euclid_dist"
        )
        same = self.labels[:, None] == self.labels
        return distances.masked_fill(same, torch.inf).amin(1)


def prototype_template(classes: int, width: int, each: int = 1) -> Prototypes:
    """A table with `each` rows per class and zeros as values: the largest that a client may send.

    For `Method.reply_schema`, where the shapes count and the values do not.
    """
    labels = torch.arange(classes).repeat(each)
    return Prototypes(torch.zeros(len(labels), width), labels, torch.ones_like(labels))


def class_means(features: Tensor, labels: Tensor) -> Prototypes:
    """One row per class that occurs in `labels` [N]: the mean of its `features` [N, D].

    A class that does not occur has no row. `counts` holds the number of examples per class.
    """
    return Prototypes(features, labels, torch.ones_like(labels)).uniform_mean()


def stack_prototypes(tables: Iterable[Prototypes]) -> Prototypes:
    """The rows of several tables in one, table after table.

    No rows are merged: a class that two tables hold has rows from both.
    """
    return tree.map(lambda *parts: torch.cat(parts), *tables)
