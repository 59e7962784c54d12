"""Counting correct predictions: the one way in which anything is scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from protofed.core.answer_counts import (
    AnswerCounts,
    AnswerTally,
    add_tallies,
    empty_tally,
    reduce_tally,
    tally_answers,
)
from protofed.core.message import Message
from protofed.core.method import C, Method, S
from protofed.core.model import Net, NetOutput
from protofed.core.site import ArrayDataset, Site
from protofed.runtime.resources import explain_oom

MAIN = ""  # the name under which `Method.predict` is counted; auxiliary predictions have names
# Not training.batch: scoring has batches of its own.
ADVICE = "use a smaller net, smaller images (data.side), or fewer processes (<workers=0>)"


class CorrectCount(NamedTuple):
    """How many images of a test set were predicted correctly, out of how many.

    Counts rather than a ratio, so parts of a test set can be scored in different processes and
    added. `answers` has more counts of `Method.predict`, None for auxiliary predictions and where a
    site keeps them back.
    """

    correct: int
    total: int
    answers: AnswerCounts | None = None

    @property
    def accuracy(self) -> float | None:
        """In per cent; None if there were no images."""
        return 100 * self.correct / self.total if self.total else None


CorrectCounts = dict[str, CorrectCount]  # by predictor, the main one first


class CountedPart(NamedTuple):
    """What was counted on a part of a test set; `merge_counts` adds parts up."""

    correct: dict[str, int]  # by predictor
    tally: AnswerTally  # of the main one


def merge_counts(parts: Sequence[CountedPart]) -> CorrectCounts:
    """The counts of a whole test set from those of its parts.

    All parts must have the same predictors; counts of one predictor are added.
    """
    answers = reduce_tally(add_tallies([part.tally for part in parts]))
    total = answers.total
    correct = {name: sum(part.correct[name] for part in parts) for name in parts[0].correct}
    return {
        name: CorrectCount(count, total, answers if name == MAIN else None)
        for name, count in correct.items()
    }


def count_correct(
    method: Method[S, C], site: Site, received: Message, state: C, test: ArrayDataset
) -> CorrectCounts:
    """Score what the server published on a test set: correct predictions per predictor.

    `predict` is counted under `MAIN`, and each of the method's auxiliary predictions under its
    name. If the method is personal, `state` is the client's; otherwise it is an initial one.
    """
    return merge_counts([count_part(method, site, received, state, test)])


@torch.inference_mode()
def count_part(
    method: Method[S, C], site: Site, received: Message, state: C, test: ArrayDataset
) -> CountedPart:
    """Count on a part of a test set, as `count_correct` does on the whole."""
    correct: Counter[str] = Counter({MAIN: 0})
    tallies = [empty_tally(site.classes)]
    with explain_oom("scoring", ADVICE):
        for x, y in site.eval_batches(test):
            with _watched_features(site.net) as seen:
                scores = method.predict(site, received, state, x)
            tallies.append(tally_answers(scores, y, seen[-1] if seen else None))
            others = method.auxiliary_predictions(site, received, state, x)
            for name, each in {MAIN: scores, **others}.items():
                correct[name] += int((each.argmax(1) == y).sum())
    return CountedPart(dict(correct), add_tallies(tallies))


@contextmanager
def _watched_features(net: Net) -> Iterator[list[Tensor]]:
    """The features that a net computes while it predicts, without another forward pass."""
    seen: list[Tensor] = []

    def look(layer: object, given: object, out: object) -> None:
        if isinstance(out, NetOutput):
            seen.append(out.z)

    handle = net.register_forward_hook(look)
    try:
        yield seen
    finally:
        handle.remove()
