"""Splits of the sets of which the tests have no copy, by the numbers of their images."""

from __future__ import annotations

import numpy as np
import pytest

from protofed.data.benchmarks import BENCHMARKS
from protofed.data.download import SOURCES

PUBLISHED = {  # domain: training images under the catalog's split of the published set
    "office-home": {"art": 1698, "clipart": 3055, "product": 3107, "real": 3049},
    "vlcs": {"caltech": 1133, "labelme": 2126, "pascal": 2702, "sun": 2626},
}


def test_the_numbers_follow_from_the_published_ones() -> None:
    for name, train in PUBLISHED.items():
        whole = {file.removesuffix(".npz"): n for file, (n,) in SOURCES[name].makes.items()}
        for domain, count in whole.items():
            eight = sum(row % 10 <= 7 for row in range(count))
            seventy = count - -(-3 * count // 10)
            assert train[domain] == (eight if name == "vlcs" else seventy)


@pytest.mark.parametrize("name", PUBLISHED)
def test_default_partitions_fit_the_published_sets(name: str) -> None:
    entry = BENCHMARKS[name]
    rule = entry.default_partition()
    for domain, clients in rule.spread(entry.domains).items():
        labels = np.arange(PUBLISHED[name][domain]) % len(entry.classes)
        hands = rule.assign_rows(labels, clients, domain, np.random.default_rng(0))
        assert len(np.unique(np.concatenate(hands))) == sum(map(len, hands)) > 0
