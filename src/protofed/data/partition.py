"""How training data is partitioned over clients: the rules, and the rows of each client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import AliasChoices, Field, model_validator
from pydantic.dataclasses import dataclass
from torch import Tensor
from typing_extensions import TypedDict

from protofed.core.rng import numpy_rng
from protofed.core.site import holdout_size
from protofed.core.training import STRICT
from protofed.errors import ProtofedError, require_known_name

if TYPE_CHECKING:
    from protofed.data.benchmark_info import Benchmark

Rows: TypeAlias = NDArray[np.int64]  # row numbers in a domain's training part, or their labels
Amount = TypeVar("Amount", int, float)
Count: TypeAlias = Annotated[int, Field(ge=0, strict=True)]
AtLeastOne: TypeAlias = Annotated[int, Field(ge=1, strict=True)]
Fraction: TypeAlias = Annotated[float, Field(gt=0, le=1, strict=True)]
TRIES = 1000  # Dirichlet draws before giving up


@dataclass(frozen=True, kw_only=True, config=STRICT)
class PartitionRule(ABC):
    """Base of the partition rules: the number of clients of each domain.

    `clients` is a total, spread evenly over the domains, or a number for each domain. A domain with
    no clients is only tested on. Subclasses decide in `assign_rows` which rows each client gets.
    """

    clients: (
        AtLeastOne | dict[str, Count]
    )  # in total, or by domain; a domain without clients is only tested on

    @abstractmethod
    def assign_rows(self, labels: Rows, clients: int, domain: str, draw: Generator) -> list[Rows]:
        """The rows of each of a domain's clients, given the labels [N] of its training part.

        Returns one array of row indices per client. All randomness must come from `draw`.
        """

    def only(self, domains: Sequence[str]) -> Self:
        """The same rule with its tables restricted to some domains."""
        tables: dict[str, Any] = {
            field: {domain: table[domain] for domain in domains}
            for field, table in vars(self).items()
            if isinstance(table, dict)
        }
        return replace(self, **tables)

    def known_images(self, domains: Sequence[str], leave_out: str | None = None) -> int | None:
        """How many images all clients hold together; None if the rule alone does not tell."""
        return None

    def spread(self, domains: Sequence[str], leave_out: str | None = None) -> dict[str, int]:
        """The number of clients of each domain; 0 for the domain `leave_out`."""
        counts = self._spread(domains, leave_out)
        if leave_out is not None:
            counts[leave_out] = 0
        if not sum(counts.values()):
            raise ProtofedError("partition: no clients; give partition.clients at least one")
        return counts

    def _spread(self, domains: Sequence[str], leave_out: str | None) -> dict[str, int]:
        for field, value in vars(self).items():
            for name in value if isinstance(value, dict) else ():  # all tables are by domain
                require_known_name(f"domain in partition.{field}", name, domains)
        if isinstance(self.clients, dict):
            return {domain: self.clients.get(domain, 0) for domain in domains}
        if self.clients < len(domains):  # perhaps one for each that trains
            domains = [domain for domain in domains if domain != leave_out]
        if self.clients < len(domains):
            raise ProtofedError(
                f"partition: {self.clients} clients cannot cover {len(domains)} domains"
                f" ({', '.join(domains)}); raise partition.clients, or give it by domain"
            )
        each, more = divmod(self.clients, len(domains))
        return {domain: each + (place < more) for place, domain in enumerate(domains)}

    def check_room(self, images: int, clients: int, domain: str, each: int, field: str) -> None:
        """Raise if a domain's clients want more images than it has; `field` is the setting."""
        if clients * each > images:
            raise ProtofedError(
                f"partition: {clients} clients of '{domain}' want {each} rows each ="
                f" {clients * each}, but the domain has {images} training images;"
                f" lower partition.{field} or {self.clients_of(domain)}"
            )

    def clients_of(self, domain: str) -> str:
        """The path of the setting that gives a domain's number of clients, for messages."""
        return "partition.clients" + (f".{domain}" if isinstance(self.clients, dict) else "")


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SharesPartition(PartitionRule):
    """Each client draws a random share of its domain; clients of a domain do not overlap.

    Give either `share`, a fraction of the domain's training images, or `samples`, a number of
    images; both for all domains or by domain. With `repair`, every client holds every class of its
    domain.
    """

    kind: Literal["shares"] = "shares"
    share: Fraction | dict[str, Fraction] | None = None  # of the domain's training images
    samples: Count | dict[str, Count] | None = None  # images, instead of a share
    repair: bool = False  # make sure that every client holds every class of its domain

    @model_validator(mode="after")
    def _one_amount(self) -> SharesPartition:
        if (self.share is None) == (self.samples is None):
            raise ValueError("give either share or samples")
        return self

    def assign_rows(self, labels: Rows, clients: int, domain: str, draw: Generator) -> list[Rows]:
        size = self._size(len(labels), domain)
        name = "samples" if self.share is None else "share"
        self.check_room(len(labels), clients, domain, size, name)
        hands = draw.permutation(len(labels))[: clients * size].reshape(clients, size)
        classes = len(np.unique(labels))
        if self.repair and size < classes:
            raise ProtofedError(
                f"partition: the clients of '{domain}' draw {size} rows each, too few for its"
                f" {classes} classes; raise partition.{name} or set partition.repair to false"
            )
        return list(_repair(hands, labels, draw) if self.repair else hands)

    def known_images(self, domains: Sequence[str], leave_out: str | None = None) -> int | None:
        if self.samples is None:
            return None
        counts = self.spread(domains, leave_out)
        return sum(n * _amount("samples", self.samples, domain) for domain, n in counts.items())

    def _size(self, images: int, domain: str) -> int:
        """How many of a domain's images each of its clients draws."""
        if self.share is not None:
            return int(_amount("share", self.share, domain) * images)
        return _amount("samples", {} if self.samples is None else self.samples, domain)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class EqualPartition(PartitionRule):
    """All rows of a domain, shuffled and split as evenly as possible over its clients.

    Sizes differ by at most one; a domain must have at least as many images as clients.
    """

    kind: Literal["equal"] = "equal"

    def assign_rows(self, labels: Rows, clients: int, domain: str, draw: Generator) -> list[Rows]:
        if clients > len(labels):
            raise ProtofedError(
                f"partition: {clients} clients of '{domain}' share {len(labels)} training images;"
                f" lower {self.clients_of(domain)}"
            )
        return np.array_split(draw.permutation(len(labels)), clients)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class DirichletPartition(PartitionRule):
    """Label skew: each class of a domain is divided in proportions from a Dirichlet distribution.

    A small `alpha` (also called `beta`) gives clients with few classes, a large one nearly even
    clients. Draws are repeated until every client has at least `least` rows.
    """

    kind: Literal["dirichlet"] = "dirichlet"
    alpha: float = Field(gt=0, validation_alias=AliasChoices("alpha", "beta"))  # small: skewed
    least: int = Field(default=10, ge=0)  # rows that every client must get

    def assign_rows(self, labels: Rows, clients: int, domain: str, draw: Generator) -> list[Rows]:
        self.check_room(len(labels), clients, domain, self.least, "least")
        classes, best = [np.flatnonzero(labels == label) for label in np.unique(labels)], 0
        for _ in range(TRIES):
            hands = self._attempt(classes, clients, draw)
            smallest = min(map(len, hands))
            if smallest >= self.least:
                return hands
            best = max(best, smallest)
        raise ProtofedError(
            f"partition: {clients} clients of '{domain}' want at least {self.least} of its"
            f" {len(labels)} rows each, but in {TRIES:,} draws with alpha = {self.alpha:g} the"
            f" smallest client got at most {best}; raise partition.alpha, or lower"
            f" partition.least or {self.clients_of(domain)}"
        )

    def _attempt(self, classes: list[Rows], clients: int, draw: Generator) -> list[Rows]:
        """One draw of the rows of each client, out of the rows of each class; may be too few."""
        hands = [np.empty(0, dtype=np.int64)] * clients
        fair = sum(map(len, classes)) / clients
        for rows in map(draw.permutation, classes):
            # A client with a fair share already gets nothing of this class. Proportions drawn
            # among the others have the distribution of those among all, cut and renormalised.
            takers = [n for n, hand in enumerate(hands) if len(hand) < fair]
            proportions = draw.dirichlet(np.full(len(takers), self.alpha))
            cuts = (np.cumsum(proportions)[:-1] * len(rows)).astype(np.int64)
            for taker, piece in zip(takers, np.split(rows, cuts), strict=True):
                hands[taker] = np.concatenate([hands[taker], piece])
        return hands


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ShardsPartition(PartitionRule):
    """Few classes per client: each gets some shards of the rows sorted by label.

    All clients of a domain together get all of its rows. With two shards each, most clients hold
    two or three classes.
    """

    kind: Literal["shards"] = "shards"
    shards: int = Field(default=2, ge=1)  # of each client

    def assign_rows(self, labels: Rows, clients: int, domain: str, draw: Generator) -> list[Rows]:
        self.check_room(len(labels), clients, domain, self.shards, "shards")  # none empty
        total = clients * self.shards
        shards = np.array_split(np.argsort(labels, kind="stable"), total)
        dealt = draw.permutation(total).reshape(clients, self.shards)
        return [np.concatenate([shards[number] for number in hand]) for hand in dealt]


Partition = Annotated[
    SharesPartition | EqualPartition | DirichletPartition | ShardsPartition,
    Field(discriminator="kind"),
]
RULES: dict[str, type[PartitionRule]] = {
    "dirichlet": DirichletPartition,
    "equal": EqualPartition,
    "shards": ShardsPartition,
    "shares": SharesPartition,
}


def _amount(field: str, value: Amount | dict[str, Amount], domain: str) -> Amount:
    """The value of one domain, from one for all or from a table."""
    if not isinstance(value, dict):
        return value
    if domain not in value:
        raise ProtofedError(f"partition.{field} leaves out '{domain}', which has clients; add it")
    return value[domain]


def _repair(hands: Rows, labels: Rows, draw: Generator) -> Rows:
    """Rows [clients, size] in which every client has every class, at the same size as before."""
    holders = np.bincount(hands.flatten(), minlength=len(labels))
    for hand in hands:
        for label in np.setdiff1d(labels, labels[hand]):
            candidates = np.flatnonzero(labels == label)
            free = candidates[holders[candidates] == 0]
            # where other clients hold all rows of a class, the newcomer shares one of them
            newcomer = draw.choice(free if len(free) else candidates)
            spare = np.flatnonzero(np.bincount(labels[hand])[labels[hand]] > 1)
            place = draw.choice(spare)
            holders[hand[place]] -= 1
            holders[newcomer] += 1
            hand[place] = newcomer
    return hands


class ClientPart(NamedTuple):
    """The training images of one client: rows of the training part of its domain.

    Clients are numbered from 0 in the order of domains.
    """

    client: int
    domain: str
    rows: Tensor  # [n] int64, ascending, of the domain's training part


def partition_clients(
    rule: Partition, benchmark: Benchmark, seed: int, leave_out: str | None = None
) -> tuple[ClientPart, ...]:
    """Partition a benchmark's training data; clients are numbered from 0 in the order of domains.

    With `leave_out`, the clients of that domain are absent, and all others hold the same images as
    without it. The rows of each client depend on `seed` and the names of the domains only.
    """
    counts = rule.spread([domain.name for domain in benchmark.domains], leave_out)
    parts: list[ClientPart] = []
    for domain in benchmark.domains:
        if counts[domain.name]:
            draw = numpy_rng(seed, "partition", domain.name)
            labels = domain.train.labels.numpy()
            for rows in rule.assign_rows(labels, counts[domain.name], domain.name, draw):
                # sorted: the order of drawing must not matter
                parts.append(ClientPart(len(parts), domain.name, torch.from_numpy(np.sort(rows))))
    return tuple(parts)


def hold_out_rows(
    parts: Iterable[ClientPart], share: float, seed: int
) -> tuple[tuple[ClientPart, ...], dict[str, Tensor]]:
    """Take a share of each client's rows away, for validation.

    Returns the parts without these rows, and the rows by domain.
    """
    left: list[ClientPart] = []
    held: dict[str, list[Tensor]] = {}
    for part in parts:
        order = numpy_rng(seed, "validation", part.client).permutation(len(part.rows))
        cut = holdout_size(len(order), share)
        held.setdefault(part.domain, []).append(part.rows[np.sort(order[:cut])])
        left.append(part._replace(rows=part.rows[np.sort(order[cut:])]))
    return tuple(left), {domain: torch.cat(rows) for domain, rows in held.items()}


def unused_rows(
    parts: Iterable[ClientPart],
    benchmark: Benchmark,
    most: int,
    seed: int,
    purpose: Literal["public", "validation"] = "public",
    taken: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """Training rows that no client holds, by domain: at most `most` of each, drawn at random.

    Rows in `taken` are used for another purpose and left out. The draw depends on the seed and the
    `purpose`.
    """
    held: dict[str, list[Tensor]] = {domain.name: [] for domain in benchmark.domains}
    for part in parts:
        held[part.domain].append(part.rows)
    for name, rows in (taken or {}).items():
        held[name].append(rows)
    chosen = {}
    for domain in benchmark.domains:
        free = np.ones(len(domain.train), dtype=bool)
        free[torch.cat([torch.arange(0), *held[domain.name]]).numpy()] = False
        drawn = numpy_rng(seed, purpose, domain.name).permutation(np.flatnonzero(free))
        chosen[domain.name] = torch.from_numpy(np.sort(drawn[:most]))
    return chosen


BoundedCount = Annotated[int, Field(ge=0, le=2**53, strict=True)]


class ClientPartRecord(TypedDict):
    """One client's training images as plain data, an entry of partition.json.

    `held` maps class names to numbers of images; classes without an image are left out. A remote
    site may keep these counts back and have one entry for all its images instead: see
    `federation.remote_sites.counts_kept_back`. `rows` are indices into the domain's training part,
    empty where the images are on another machine.
    """

    client: BoundedCount
    domain: str
    held: dict[str, BoundedCount]
    rows: list[BoundedCount]


def parts_to_records(parts: Iterable[ClientPart], benchmark: Benchmark) -> list[ClientPartRecord]:
    """The parts as plain data for partition.json, with counts per class."""
    labels = {domain.name: domain.train.labels for domain in benchmark.domains}
    records: list[ClientPartRecord] = []
    for client, domain, rows in parts:
        found, counts = labels[domain][rows].unique(return_counts=True)
        names = (benchmark.classes[label] for label in found.tolist())
        held = dict(zip(names, counts.tolist(), strict=True))
        records.append({"client": client, "domain": domain, "held": held, "rows": rows.tolist()})
    return records
