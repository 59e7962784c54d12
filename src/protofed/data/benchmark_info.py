"""A benchmark as known before any of its images is read, with its defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from protofed.core.site import ArrayDataset
from protofed.data import transforms
from protofed.data.benchmark import Benchmark, Domain
from protofed.data.npz_store import PUBLISHED
from protofed.data.partition import Partition
from protofed.errors import ProtofedError, require_known_name

Colour = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class BenchmarkInfo:
    """A benchmark as known before any of its images is read, with its defaults."""

    name: str
    summary: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    on_request: tuple[str, ...] = ()  # domains that are there but not among the default ones
    side: int = 32
    channels: int = 3  # what the net takes; grey images are repeated
    mean: Colour = transforms.IMAGENET_MEAN
    std: Colour = transforms.IMAGENET_STD
    flip: bool = True  # mirror training images
    pad: int = 4  # random shifts of training images, in pixels
    net: str = "lsa-cnn"
    partition: Partition  # knows every domain; for a choice of them see `partition_for`
    needs_data: bool = True
    revision: int = (
        1  # see `data_version`; raised when images or their split change, and so all scores
    )
    notes: tuple[str, ...] = ()  # for readers of scores; "svhn: ..." speaks of one domain
    read: Callable[[str], Domain]  # one domain by name, at its stored size

    def choose_domains(self, domains: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The asked domains in the asked order, or the default ones; each known and once."""
        for number, domain in enumerate(domains):
            require_known_name(f"domain of {self.name}", domain, self.domains + self.on_request)
            if domain in domains[:number]:
                raise ProtofedError(f"domain '{domain}' is given twice; name each domain once")
        return domains or self.domains

    def default_partition(self, domains: tuple[str, ...] = ()) -> Partition:
        """The default partition, restricted to the chosen domains where it names domains."""
        return self.partition.only(self.choose_domains(domains))

    @property
    def channel_statistics(self) -> tuple[Colour, Colour]:
        """The mean and the spread by which pixels are scaled."""
        return self.mean, self.std

    @property
    def general_notes(self) -> tuple[str, ...]:
        """The notes that speak of no single domain."""
        named = tuple(f"{domain}: " for domain in self.domains + self.on_request)
        return tuple(note for note in self.notes if not note.startswith(named))

    def domain_note(self, domain: str) -> str:
        """What the notes say of one domain."""
        mine = f"{domain}: "
        return "; ".join(note.removeprefix(mine) for note in self.notes if note.startswith(mine))

    def data_version(self, side: int) -> int | str:
        """What tells these images, at this size, from others under the same name."""
        return self.revision

    def domain_reader(self, side: int) -> Callable[[str], Domain]:
        """What reads a domain as experiments use it: images [N, side, side, 1 or 3], and notes."""
        return partial(self._resized, side)

    def _resized(self, side: int, domain: str) -> Domain:
        stored = self.read(domain)
        train, test = (
            ArrayDataset(transforms.resize_images(part.images, side), part.labels)
            for part in (stored.train, stored.test)
        )
        # The notes tell of copies that differ from the set; they do not hold for the set itself.
        told = stored.note if stored.note == PUBLISHED else self.domain_note(domain) or stored.note
        return Domain(domain, train, test, told)

    def load(self, domains: tuple[str, ...] = (), side: int | None = None) -> Benchmark:
        """The chosen domains in memory, every image resized to `side` (its own if None)."""
        wanted = self.side if side is None else side
        if wanted < 1:
            raise ProtofedError(f"the side of an image must be at least 1 pixel, got {wanted}")
        return Benchmark(
            self.name,
            self.classes,
            tuple(map(self.domain_reader(wanted), self.choose_domains(domains))),
        )
