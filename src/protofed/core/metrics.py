"""Counting right answers: the one way in which anything is scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch

from protofed.core.message import Message
from protofed.core.method import C, Method, S
from protofed.core.site import ArrayDataset, Site
from protofed.runtime.resources import explain_oom

MAIN = ""  # the name under which `Method.predict` is counted; opinions have names of their own
# Not training.batch: scoring has batches of its own.
ADVICE = "use a smaller net, smaller images (data.side), or fewer processes (<workers=0>)"


class CorrectCount(NamedTuple):
    """Right answers out of all answers on one test set."""

    correct: int
    total: int

    @property
    def accuracy(self) -> float | None:
        """In per cent; None where there was nothing to answer."""
        return 100 * self.correct / self.total if self.total else None


Tallies = dict[str, CorrectCount]  # of each predictor, the main one first


def merge_counts(parts: Sequence[Tallies]) -> Tallies:
    """The tallies of several parts of one test set as one."""
    return {
        name: CorrectCount(sum(p[name].correct for p in parts), sum(p[name].total for p in parts))
        for name in parts[0]
    }


@torch.inference_mode()
def count_correct(
    method: Method[S, C], site: Site, received: Message, state: C, test: ArrayDataset
) -> Tallies:
    """Score a published message, with a client's state if the method is personal."""
    correct: Counter[str] = Counter({MAIN: 0})
    with explain_oom("scoring", ADVICE):
        for x, y in site.eval_batches(test):
            answers = {MAIN: method.predict(site, received, state, x)}
            for name, scores in {
                **answers,
                **method.auxiliary_predictions(site, received, state, x),
            }.items():
                correct[name] += int((scores.argmax(1) == y).sum())
    return {name: CorrectCount(count, len(test)) for name, count in correct.items()}
