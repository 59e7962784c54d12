"""Who holds what: a benchmark's training rows dealt out to clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import TypedDict

from protofed.core.rng import numpy_rng
from protofed.core.site import holdout_size
from protofed.data.benchmark import Benchmark
from protofed.data.partition import Partition


class ClientPart(NamedTuple):
    """What one client holds."""

    client: int
    domain: str
    rows: Tensor  # [n] int64, ascending, of the domain's training part


def partition_clients(
    rule: Partition, benchmark: Benchmark, seed: int, leave_out: str | None = None
) -> tuple[ClientPart, ...]:
    """Deal a benchmark's training data to clients, numbered from 0 in the order of domains.

    The clients of a domain that is left out are not there; the others hold what they would hold.
    """
    counts = rule.spread([domain.name for domain in benchmark.domains], leave_out)
    parts: list[ClientPart] = []
    for domain in benchmark.domains:
        if counts[domain.name]:
            draw = numpy_rng(seed, "partition", domain.name)
            labels = domain.train.labels.numpy()
            for rows in rule.assign_rows(labels, counts[domain.name], domain.name, draw):
                # sorted, so that the order of drawing leaves no trace
                parts.append(ClientPart(len(parts), domain.name, torch.from_numpy(np.sort(rows))))
    return tuple(parts)


def hold_out_rows(
    parts: Iterable[ClientPart], share: float, seed: int
) -> tuple[tuple[ClientPart, ...], dict[str, Tensor]]:
    """The parts without a share of each client's rows, and these rows by domain."""
    left: list[ClientPart] = []
    held: dict[str, list[Tensor]] = {}
    for part in parts:
        order = numpy_rng(seed, "validation", part.client).permutation(len(part.rows))
        cut = holdout_size(len(order), share)
        held.setdefault(part.domain, []).append(part.rows[np.sort(order[:cut])])
        left.append(part._replace(rows=part.rows[np.sort(order[cut:])]))
    return tuple(left), {domain: torch.cat(rows) for domain, rows in held.items()}


def unused_rows(
    parts: Iterable[ClientPart], benchmark: Benchmark, samples: int, seed: int
) -> dict[str, Tensor]:
    """Training rows that no client holds, by domain: `samples` in all, the same from each domain.

    A domain with too few left gives what it has.
    """
    held: dict[str, list[Tensor]] = {domain.name: [] for domain in benchmark.domains}
    for part in parts:
        held[part.domain].append(part.rows)
    chosen = {}
    for domain in benchmark.domains:
        free = np.ones(len(domain.train), dtype=bool)
        free[torch.cat([torch.arange(0), *held[domain.name]]).numpy()] = False
        rows = numpy_rng(seed, "public", domain.name).permutation(np.flatnonzero(free))
        each = samples // len(benchmark.domains)
        chosen[domain.name] = torch.from_numpy(np.sort(rows[:each]))
    return chosen


BoundedCount = Annotated[int, Field(ge=0, le=2**53, strict=True)]


class ClientPartRecord(TypedDict):
    """A part as plain data, with the number of rows of each class that it holds, by name."""

    client: BoundedCount
    domain: str
    held: dict[str, BoundedCount]
    rows: list[BoundedCount]


def parts_to_records(parts: Iterable[ClientPart], benchmark: Benchmark) -> list[ClientPartRecord]:
    """Parts of a benchmark as plain data."""
    labels = {domain.name: domain.train.labels for domain in benchmark.domains}
    records: list[ClientPartRecord] = []
    for client, domain, rows in parts:
        found, counts = labels[domain][rows].unique(return_counts=True)
        names = (benchmark.classes[label] for label in found.tolist())
        held = dict(zip(names, counts.tolist(), strict=True))
        records.append({"client": client, "domain": domain, "held": held, "rows": rows.tolist()})
    return records
