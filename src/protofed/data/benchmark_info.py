"""A benchmark: what is known before any image is read, and its domains once it is in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from protofed.core.site import ArrayDataset
from protofed.data import transforms
from protofed.data.npz_store import PUBLISHED
from protofed.data.partition import Partition
from protofed.errors import ProtofedError, require_known_name


class Domain(NamedTuple):
    """One source of images, with its own training and test part.

    Both parts hold uint8 images [N, H, W, 1 or 3] and labels [N] that index the benchmark's
    classes. All images of a domain have the same size and number of channels.
    """

    name: str
    train: ArrayDataset
    test: ArrayDataset
    note: str = ""  # what a reader of its scores must know, e.g. "re-made"


class Benchmark(NamedTuple):
    """A named set of domains that share one list of classes, with all images in memory.

    Label 0 means ``classes[0]`` in every domain. A domain may lack some of the classes.
    """

    name: str
    classes: tuple[str, ...]
    domains: tuple[Domain, ...]


Colour = tuple[float, float, float]


@dataclass(frozen=True, kw_only=True)
class BenchmarkInfo:
    """A benchmark as known before any image is read: classes, domains and defaults.

    Its fields are the defaults of an experiment's `data` section, net and partition. `load` reads
    the images::

        BENCHMARKS["pacs"].load(("photo", "sketch"), side=32)  # a Benchmark of two domains
    """

    name: str
    summary: str
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    on_request: tuple[str, ...] = ()  # domains available but not used by default
    side: int = 32
    channels: int = 3  # of the net's input; grey images are repeated
    mean: Colour = transforms.IMAGENET_MEAN
    std: Colour = transforms.IMAGENET_STD
    flip: bool = True  # mirror training images
    pad: int = 4  # random shifts of training images, in pixels
    net: str = "lsa-cnn"
    partition: Partition  # for all domains; see `default_partition`
    needs_data: bool = True
    revision: int = (
        1  # see `data_version`; raised when images or their split change, and so all scores
    )
    notes: tuple[str, ...] = ()  # for readers of scores; "svhn: ..." concerns one domain
    read: Callable[[str], Domain]  # one domain by name, at its stored size

    def choose_domains(self, domains: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The requested domains in the requested order, or the default ones if none is requested.

        Raises for an unknown domain and for one that is named twice.
        """
        for number, domain in enumerate(domains):
            require_known_name(f"domain of {self.name}", domain, self.domains + self.on_request)
            if domain in domains[:number]:
                raise ProtofedError(f"domain '{domain}' is listed twice; list each domain once")
        return domains or self.domains

    def default_partition(self, domains: tuple[str, ...] = ()) -> Partition:
        """The default partition, restricted to the chosen domains where it names domains."""
        return self.partition.only(self.choose_domains(domains))

    @property
    def channel_statistics(self) -> tuple[Colour, Colour]:
        """The mean and the standard deviation that pixels are normalised with."""
        return self.mean, self.std

    @property
    def general_notes(self) -> tuple[str, ...]:
        """The notes that concern no single domain."""
        named = tuple(f"{domain}: " for domain in self.domains + self.on_request)
        return tuple(note for note in self.notes if not note.startswith(named))

    def domain_note(self, domain: str) -> str:
        """The notes on one domain, joined; empty if there are none."""
        mine = f"{domain}: "
        return "; ".join(note.removeprefix(mine) for note in self.notes if note.startswith(mine))

    def data_version(self, side: int) -> int | str:
        """What distinguishes these images, at this size, from other images under the same name.

        It is part of the spec, so scores on changed images get another digest.
        """
        return self.revision

    def domain_reader(self, side: int) -> Callable[[str], Domain]:
        """A function that reads a domain by name, images as [N, side, side, 1 or 3]."""
        return partial(self._resized, side)

    def _resized(self, side: int, domain: str) -> Domain:
        stored = self.read(domain)
        train, test = (
            ArrayDataset(transforms.resize_images(part.images, side), part.labels)
            for part in (stored.train, stored.test)
        )
        # The notes describe copies that differ from the published set, and do not apply to that.
        note = stored.note if stored.note == PUBLISHED else self.domain_note(domain) or stored.note
        return Domain(domain, train, test, note)

    def load(self, domains: tuple[str, ...] = (), side: int | None = None) -> Benchmark:
        """Read the chosen domains (the default ones if empty) with all images resized to `side`.

        `side` is the benchmark's own if None. Everything is held in memory.
        """
        wanted = self.side if side is None else side
        if wanted < 1:
            raise ProtofedError(f"the side of an image must be at least 1 pixel, got {wanted}")
        return Benchmark(
            self.name,
            self.classes,
            tuple(map(self.domain_reader(wanted), self.choose_domains(domains))),
        )
