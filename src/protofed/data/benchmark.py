"""What a benchmark is in memory: the same classes seen in several domains."""

from __future__ import annotations

from typing import NamedTuple

from protofed.core.site import ArrayDataset


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
