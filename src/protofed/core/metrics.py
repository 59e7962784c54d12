"""Counting correct predictions: the one way in which anything is scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch

from protofed.core.message import Message
from protofed.core.method import C, Method, S
from protofed.core.site import ArrayDataset, Site
from protofed.runtime.resources import explain_oom

MAIN = ""  # the name under which `Method.predict` is counted; auxiliary predictions have names
# Not training.batch: scoring has batches of its own.
ADVICE = "use a smaller net, smaller images (data.side), or fewer processes (<workers=0>)"


class CorrectCount(NamedTuple):
    """How many images of a test set were predicted correctly, out of how many.

    Counts rather than a ratio, so parts of a test set can be scored in different processes and
    added.
    """

    correct: int
    total: int

    @property
    def accuracy(self) -> float | None:
        """In per cent; None if there were no images."""
        return 100 * self.correct / self.total if self.total else None


CorrectCounts = dict[str, CorrectCount]  # by predictor, the main one first


def merge_counts(parts: Sequence[CorrectCounts]) -> CorrectCounts:
    """The counts of a whole test set from those of its parts.

    All parts must have the same predictors; counts of one predictor are added.
    """
    return {
        name: CorrectCount(sum(p[name].correct for p in parts), sum(p[name].total for p in parts))
        for name in parts[0]
    }


@torch.inference_mode()
def count_correct(
    method: Method[S, C], site: Site, received: Message, state: C, test: ArrayDataset
) -> CorrectCounts:
    """Score what the server published on a test set: correct predictions per predictor.

    `predict` is counted under `MAIN`, and each of the method's auxiliary predictions under its
    name. If the method is personal, `state` is the client's; otherwise it is an initial one.
    """
    correct: Counter[str] = Counter({MAIN: 0})
    with explain_oom("scoring", ADVICE):
        for x, y in site.eval_batches(test):
            predictions = {MAIN: method.predict(site, received, state, x)}
            others = method.auxiliary_predictions(site, received, state, x)
            for name, scores in {**predictions, **others}.items():
                correct[name] += int((scores.argmax(1) == y).sum())
    return {name: CorrectCount(count, len(test)) for name, count in correct.items()}
