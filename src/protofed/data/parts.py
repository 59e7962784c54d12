"""Who holds what: a benchmark's training rows dealt out to clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from protofed.core.rng import numpy_rng
from protofed.data.benchmark import Benchmark
from protofed.data.partition import Partition


class Part(NamedTuple):
    """What one client holds."""

    client: int
    domain: str
    rows: Tensor  # [n] int64, ascending, of the domain's training part


def divide(rule: Partition, benchmark: Benchmark, seed: int) -> tuple[Part, ...]:
    """Deal a benchmark's training data to clients, numbered from 0 in the order of domains."""
    counts = rule.spread([domain.name for domain in benchmark.domains])
    parts: list[Part] = []
    for domain in benchmark.domains:
        if counts[domain.name]:
            draw = numpy_rng(seed, "partition", domain.name)
            labels = domain.train.labels.numpy()
            for rows in rule.deal(labels, counts[domain.name], domain.name, draw):
                # sorted, so that the order of drawing leaves no trace
                parts.append(Part(len(parts), domain.name, torch.from_numpy(np.sort(rows))))
    return tuple(parts)


class PartRecord(TypedDict):
    """A part as plain data, with the number of rows of each class that it holds, by name."""

    client: int
    domain: str
    held: dict[str, int]
    rows: list[int]


def to_json(parts: Iterable[Part], benchmark: Benchmark) -> list[PartRecord]:
    """Parts of a benchmark as plain data."""
    labels = {domain.name: domain.train.labels for domain in benchmark.domains}
    records: list[PartRecord] = []
    for client, domain, rows in parts:
        found, counts = labels[domain][rows].unique(return_counts=True)
        names = (benchmark.classes[label] for label in found.tolist())
        held = dict(zip(names, counts.tolist(), strict=True))
        records.append({"client": client, "domain": domain, "held": held, "rows": rows.tolist()})
    return records
