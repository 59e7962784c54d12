"""A spec to start from: what a data set is like decides its fields, each with its reason."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import NamedTuple

from protofed.core.method import Condition
from protofed.data.domain_shift import DomainShift
from protofed.data.image_traits import ImageTraits

UNEVEN = 5.0  # ratio of a domain's largest to its smallest class
UNLIKE_SIZES = 4.0  # ratio of the largest to the smallest domain
LARGE = 96  # pixels: from this median side on, 64 pixels keep what 32 lose
FEW = 256  # training images of the smallest domain, below which batches are small
EPOCHS = 5
STEPS = 4000  # of a client of mean size over the whole run
ROUNDS = (20, 60)  # fewest and most

Counts = Mapping[str, Mapping[str, tuple[int, int]]]  # domain, class: images to train and to test


class SuggestedField(NamedTuple):
    """A field of the spec with a value, and why it suits these data."""

    path: str  # dotted, as "training.batch"
    value: object
    reason: str


class DataFacts(NamedTuple):
    """What a suggestion is made from."""

    name: str
    about: str  # the examples in a few words
    counts: Counts
    shift: DomainShift | None
    side: int | None = None  # to which images are resized; None for rows that are no images
    median_side: int = 0  # of the files, before they are resized; 0 for a benchmark
    traits: ImageTraits | None = None  # of images

    @property
    def sizes(self) -> dict[str, int]:
        """Training examples by domain."""
        return {
            domain: sum(train for train, _ in classes.values())
            for domain, classes in self.counts.items()
        }


def suggest_fields(facts: DataFacts) -> list[SuggestedField]:
    """All fields that the facts decide, in the order of a spec."""
    examples = "images" if facts.side else "rows"
    sizes = facts.sizes
    smallest = min(sizes.values())
    batch = 64 if smallest >= FEW else 16
    return [
        _rounds(sizes, batch),
        *_weights(sizes),
        SuggestedField("data.name", facts.name, ""),
        *_side(facts),
        SuggestedField("partition.kind", "equal", f"all training {examples} of each place"),
        SuggestedField("partition.clients", dict.fromkeys(sizes, 1), "one client per domain"),
        SuggestedField("training.epochs", EPOCHS, "passes of a client over its examples per round"),
        SuggestedField(
            "training.batch", batch, f"the smallest domain has {smallest} training {examples}"
        ),
        SuggestedField("training.lr", 0.01, "of SGD with momentum 0.9; halve it if scores jump"),
        *_sampling(facts.counts),
        *_augmentation(facts.traits),
    ]


def _rounds(sizes: Mapping[str, int], batch: int) -> SuggestedField:
    mean = sum(sizes.values()) / len(sizes)
    steps = EPOCHS * math.ceil(mean / batch)
    wanted = 10 * math.ceil(STEPS / steps / 10)
    rounds = min(max(wanted, ROUNDS[0]), ROUNDS[1])
    return SuggestedField("rounds", rounds, f"a client of mean size takes {steps} steps a round")


def _weights(sizes: Mapping[str, int]) -> list[SuggestedField]:
    most, least = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
    ratio = sizes[most] / max(sizes[least], 1)
    if ratio < UNLIKE_SIZES:
        return []
    why = f"{most} has {ratio:.0f} times the examples of {least}: by size, the model would be its"
    return [SuggestedField("weights", "sqrt", why)]


def _side(facts: DataFacts) -> list[SuggestedField]:
    if facts.side is None:
        return []
    why = f"their median side is {facts.median_side}" if facts.median_side else "the benchmark's"
    return [SuggestedField("data.side", facts.side, why)]


def _sampling(counts: Counts) -> list[SuggestedField]:
    for domain, classes in counts.items():
        there = {name: train for name, (train, _) in classes.items() if train}
        if not there:
            continue
        most, least = max(there, key=there.__getitem__), min(there, key=there.__getitem__)
        if there[most] >= UNEVEN * there[least]:
            why = f"{domain} has {there[most]} of {most} and {there[least]} of {least}"
            return [SuggestedField("training.sampling", "balanced", why)]
    return []


def _augmentation(traits: ImageTraits | None) -> list[SuggestedField]:
    if traits is None:
        return []
    found = []
    if traits.turnable:
        lost = f"turning them costs a probe {100 * (traits.turning_loss or 0):.0f} % of its gain"
        found.append(SuggestedField("augment.rotate", 180, f"they have no up: {lost}"))
    if traits.colors_differ:
        apart = f"the places' colours lie {traits.color_distance:.1f} standard deviations apart"
        if traits.turnable:
            found.append(SuggestedField("augment.stain", 0.2, f"{apart}, as stains do"))
        found.append(SuggestedField("augment.jitter", 0.3, apart))
    return found


def conditions(facts: DataFacts) -> tuple[Condition, ...]:
    """What the data are like, where some methods were made for it; see `MethodInfo.suits`."""
    shifted = facts.shift is None or facts.shift.word in ("moderate", "strong")
    found: list[Condition] = ["domain shift"] if shifted else []
    return (*found, "unequal sizes") if _weights(facts.sizes) else tuple(found)


BEYOND_AVERAGING = ("weights", "training.sampling", "augment.")  # how such fields begin


def format_suggestion(facts: DataFacts, plain: bool = False) -> str:
    """The suggestion as a TOML file, with the reason of each field beside it.

    With `plain`, only what plain averaging needs: no weights, balancing or augmentation.
    """
    word = facts.shift.word if facts.shift else "not measured"
    lines = [
        f"# {facts.about}, shift between domains: {word}",
        "# next: this file as the spec of `protofed run` or `protofed compare`",
    ]
    section = ""
    for field in suggest_fields(facts):
        if plain and field.path.startswith(BEYOND_AVERAGING):
            continue
        table, _, name = field.path.rpartition(".")
        if table != section:
            lines += ["", f"[{table}]"]
            section = table
        why = f"  # {field.reason}" if field.reason else ""
        lines.append(f"{name} = {_toml(field.value)}{why}")
    return "\n".join([*lines, ""])


def _toml(value: object) -> str:
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{_text(key)} = {_toml(item)}" for key, item in value.items()) + " }"
        )
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(text: str) -> str:
    """A TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def suggested_side(median_side: int) -> int:
    """The pixels to which images of this median side are resized."""
    return 64 if median_side >= LARGE else 32
