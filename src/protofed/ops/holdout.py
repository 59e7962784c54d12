"""Validation images that a client takes from its own training images."""

from __future__ import annotations

from dataclasses import replace

import torch

from protofed.core.site import ArrayDataset, Site, holdout_size


def split_site(site: Site, share: float) -> tuple[Site, ArrayDataset]:
    """The site without a share of its training images, and those; the same ones every time.

    It takes one image at least, but never the last one left to train on.
    """
    taken = holdout_size(len(site.train), share)
    order = torch.randperm(len(site.train), generator=site.rng("hold out"))
    held, rest = order[:taken].sort().values, order[taken:].sort().values
    return replace(site, train=site.train.take(rest)), site.train.take(held)
