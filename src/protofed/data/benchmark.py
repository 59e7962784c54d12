"""What a benchmark is: the same classes seen in several domains."""

from __future__ import annotations

from typing import NamedTuple

from protofed.core.site import ArrayDataset


class Domain(NamedTuple):
    """One place the data comes from, with its own training and test part."""

    name: str
    train: ArrayDataset
    test: ArrayDataset
    note: str = ""  # what a reader of its scores must know, e.g. "re-made"


class Benchmark(NamedTuple):
    """A named collection of domains over one set of classes."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[Domain, ...]
