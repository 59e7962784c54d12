"""What the tests of partitions share: toy benchmarks and a look at what was dealt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
import torch
from pydantic import TypeAdapter

from protofed.core.site import ArrayDataset
from protofed.data.benchmark_info import Benchmark, Domain
from protofed.data.partition import (
    ClientPart,
    DirichletPartition,
    EqualPartition,
    Partition,
    ShardsPartition,
    SharesPartition,
)

OFFICE = {"caltech": 899, "amazon": 768, "webcam": 237, "dslr": 127}
ADAPTER: TypeAdapter[Partition] = TypeAdapter(Partition)


def domain(name: str, labels: Sequence[int]) -> Domain:
    data = ArrayDataset(
        torch.zeros(len(labels), 1, 1, 1, dtype=torch.uint8),
        torch.tensor(labels, dtype=torch.int64),
    )
    return Domain(name, data, data.take(torch.arange(0)))


def benchmark(labels: Mapping[str, Sequence[int]], classes: int = 10) -> Benchmark:
    names = tuple(f"class {n}" for n in range(classes))
    return Benchmark("toy", names, tuple(domain(name, rows) for name, rows in labels.items()))


def cyclic(sizes: Mapping[str, int], classes: int = 10) -> Benchmark:
    return benchmark({name: [n % classes for n in range(size)] for name, size in sizes.items()})


def rows_of(parts: Sequence[ClientPart], name: str) -> list[list[int]]:
    return [part.rows.tolist() for part in parts if part.domain == name]


def joined(hands: Sequence[Sequence[int]]) -> list[int]:
    return [row for hand in hands for row in hand]


def held(part: ClientPart, source: Benchmark) -> list[int]:
    """The labels of a client's rows."""
    labels = {d.name: d.train.labels for d in source.domains}
    return labels[part.domain][part.rows].tolist()


RULES: list[Partition] = [
    SharesPartition(clients=5, share=0.2),
    SharesPartition(clients=5, samples=20, repair=True),
    EqualPartition(clients=5),
    DirichletPartition(clients=5, alpha=0.5),
    ShardsPartition(clients=5),
]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
