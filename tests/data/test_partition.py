from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.data.partition import (
    DirichletPartition,
    EqualPartition,
    Partition,
    ShardsPartition,
    SharesPartition,
    partition_clients,
)
from protofed.errors import ProtofedError
from tests.data.dealing import ADAPTER, OFFICE, benchmark, cyclic, every_rule, held, joined, rows_of


@every_rule
def test_clients_are_numbered_in_domain_order_and_hold_sorted_distinct_rows(
    rule: Partition,
) -> None:
    parts = partition_clients(rule, cyclic({"zoo": 150, "art": 120}), seed=0)
    assert [part.client for part in parts] == [0, 1, 2, 3, 4]
    assert [part.domain for part in parts] == ["zoo"] * 3 + ["art"] * 2
    for part in parts:
        assert part.rows.dtype == torch.int64
        assert (part.rows.diff() > 0).all()
        assert part.rows.min() >= 0
        assert part.rows.max() < {"zoo": 150, "art": 120}[part.domain]


@every_rule
def test_parts_depend_on_the_seed_alone(rule: Partition) -> None:
    source = cyclic({"zoo": 150, "art": 120})
    first, again, other = (partition_clients(rule, source, seed) for seed in (1, 1, 2))
    assert [p.rows.tolist() for p in first] == [p.rows.tolist() for p in again]
    assert [p.rows.tolist() for p in first] != [p.rows.tolist() for p in other]


@every_rule
def test_a_new_domain_leaves_the_others_as_they_were(rule: Partition) -> None:
    counts = {"zoo": 3, "art": 2}
    few = ADAPTER.validate_python({**ADAPTER.dump_python(rule), "clients": counts})
    more = ADAPTER.validate_python({**ADAPTER.dump_python(rule), "clients": {**counts, "new": 1}})
    before = partition_clients(few, cyclic({"zoo": 150, "art": 120}), seed=3)
    after = partition_clients(more, cyclic({"new": 90, "zoo": 150, "art": 120}), seed=3)
    for name in counts:
        assert rows_of(before, name) == rows_of(after, name)
    assert rows_of(before, "zoo")[1] != rows_of(before, "art")[1]


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    extra=st.integers(0, 7),
    seed=st.integers(0, 2**31),
)
def test_equal_deals_every_row_once_and_evenly(sizes: list[int], extra: int, seed: int) -> None:
    source = cyclic({f"d{n}": size for n, size in enumerate(sizes)})
    if len(sizes) + extra > len(sizes) * min(sizes):  # some domain has more clients than rows
        return
    parts = partition_clients(EqualPartition(clients=len(sizes) + extra), source, seed)
    assert len(parts) == len(sizes) + extra
    for n, size in enumerate(sizes):
        hands = rows_of(parts, f"d{n}")
        assert sorted(joined(hands)) == list(range(size))
        assert max(map(len, hands)) - min(map(len, hands)) <= 1


@settings(deadline=None, max_examples=60)
@given(share=st.floats(0.001, 1), clients=st.integers(1, 6), seed=st.integers(0, 2**31))
def test_shares_have_exact_sizes_and_no_overlap(share: float, clients: int, seed: int) -> None:
    rule, source = SharesPartition(clients=clients, share=share), cyclic({"a": 97})
    if clients * int(share * 97) > 97:
        with pytest.raises(ProtofedError, match="but the domain has 97 training images"):
            partition_clients(rule, source, seed)
        return
    hands = rows_of(partition_clients(rule, source, seed), "a")
    assert [len(hand) for hand in hands] == [int(share * 97)] * clients
    assert len(set(joined(hands))) == clients * int(share * 97)


def test_office_shares_are_those_of_the_paper() -> None:
    counts = {"caltech": 3, "amazon": 2, "webcam": 1, "dslr": 4}
    source = cyclic(OFFICE)
    parts = partition_clients(
        SharesPartition(clients=counts, share=0.2, repair=True), source, seed=0
    )
    assert [len(part.rows) for part in parts] == [179] * 3 + [153] * 2 + [47] + [25] * 4
    assert all(set(held(part, source)) == set(range(10)) for part in parts)
    for name in OFFICE:  # free rows abound, so that even the repaired hands do not overlap
        everything = joined(rows_of(parts, name))
        assert len(everything) == len(set(everything))


def test_shares_and_samples_may_differ_between_domains() -> None:
    source = cyclic({"a": 100, "b": 50})
    shared = partition_clients(
        SharesPartition(clients=3, share={"a": 0.3, "b": 0.5}), source, seed=0
    )
    assert [len(part.rows) for part in shared] == [30, 30, 25]
    counted = partition_clients(
        SharesPartition(clients=3, samples={"a": 7, "b": 50}), source, seed=0
    )
    assert [len(part.rows) for part in counted] == [7, 7, 50]


def test_images_that_the_rule_alone_counts_are_those_that_are_dealt() -> None:
    source = cyclic({"a": 100, "b": 50})
    rule = SharesPartition(clients=3, samples={"a": 7, "b": 50})
    for left_out in (None, "a", "b"):
        parts = partition_clients(rule, source, 0, left_out)
        assert rule.known_images(("a", "b"), left_out) == sum(len(part.rows) for part in parts)
    assert SharesPartition(clients=3, share=0.1).known_images(("a", "b")) is None
    assert EqualPartition(clients=3).known_images(("a", "b")) is None


def test_a_tiny_share_leaves_clients_with_nothing() -> None:
    parts = partition_clients(SharesPartition(clients=2, share=0.001), cyclic({"a": 100}), seed=0)
    assert [part.rows.tolist() for part in parts] == [[], []]
    assert all(part.rows.dtype == torch.int64 for part in parts)


@settings(deadline=None, max_examples=60)
@given(
    rare=st.lists(st.integers(1, 4), min_size=1, max_size=5),
    clients=st.integers(1, 4),
    spare=st.integers(0, 5),
    seed=st.integers(0, 2**31),
)
def test_repair_gives_every_class_and_keeps_the_size(
    rare: list[int], clients: int, spare: int, seed: int
) -> None:
    labels = [0] * 40 + [label for label, n in enumerate(rare, start=1) for _ in range(n)]
    size = len(rare) + 1 + spare
    source = benchmark({"a": labels})
    parts = partition_clients(
        SharesPartition(clients=clients, samples=size, repair=True), source, seed
    )
    for part in parts:
        assert len(set(part.rows.tolist())) == size
        assert set(held(part, source)) == set(labels)
    everything = joined(rows_of(parts, "a"))
    repeated = {row for row in everything if everything.count(row) > 1}
    assert all(labels[row] != 0 for row in repeated)  # class 0 always has rows to spare


def test_repair_shares_a_row_only_if_none_is_free() -> None:
    lone = benchmark({"a": [0] * 20 + [1]})
    for seed in range(20):
        parts = partition_clients(SharesPartition(clients=3, samples=3, repair=True), lone, seed)
        assert [20 in rows for rows in rows_of(parts, "a")] == [True] * 3
        zeros = [row for rows in rows_of(parts, "a") for row in rows if row != 20]
        assert len(zeros) == len(set(zeros)) == 6
    enough = benchmark({"a": [0] * 20 + [1] * 3})
    single = SharesPartition(
        clients=3, samples=2, repair=True
    )  # a hand is then one row of each class
    for seed in range(20):
        everything = joined(rows_of(partition_clients(single, enough, seed), "a"))
        assert len(everything) == len(set(everything)) == 6


def test_repair_changes_no_more_than_it_must() -> None:
    source = cyclic({"a": 200})
    plain = partition_clients(SharesPartition(clients=4, samples=12), source, seed=5)
    mended = partition_clients(SharesPartition(clients=4, samples=12, repair=True), source, seed=5)
    for before, after in zip(plain, mended, strict=True):
        missing = 10 - len(set(held(before, source)))
        assert len(set(after.rows.tolist()) - set(before.rows.tolist())) == missing
    assert any(len(set(held(part, source))) < 10 for part in plain)


@settings(deadline=None, max_examples=60)
@given(
    alpha=st.floats(0.05, 100),
    clients=st.integers(1, 5),
    least=st.integers(0, 3),
    seed=st.integers(0, 2**31),
)
def test_dirichlet_deals_every_row_once_with_the_least_for_all(
    alpha: float, clients: int, least: int, seed: int
) -> None:
    source = cyclic({"a": 203})
    hands = rows_of(
        partition_clients(
            DirichletPartition(clients=clients, alpha=alpha, least=least), source, seed
        ),
        "a",
    )
    assert len(hands) == clients
    assert sorted(joined(hands)) == list(range(203))
    assert min(map(len, hands)) >= least


def skew(alpha: float) -> float:
    """Mean over clients of the share of the commonest class, over ten seeds."""
    source = cyclic({"a": 1000})
    shares = []
    for seed in range(10):
        for part in partition_clients(
            DirichletPartition(clients=5, alpha=alpha, least=1), source, seed
        ):
            counts = np.bincount(held(part, source), minlength=10)
            shares.append(counts.max() / counts.sum())
    return float(np.mean(shares))


def test_a_small_alpha_skews_more() -> None:
    strong, medium, weak = skew(0.1), skew(1.0), skew(1000.0)
    assert strong > medium + 0.1
    assert medium > weak + 0.05
    assert weak == pytest.approx(0.1, abs=0.02)


def test_dirichlet_gives_nothing_more_to_who_has_a_fair_share() -> None:
    source = benchmark({"a": sorted(n % 10 for n in range(1000))})
    for seed in range(10):
        for part in partition_clients(
            DirichletPartition(clients=4, alpha=0.1, least=0), source, seed
        ):
            before = 0
            for count in np.bincount(held(part, source), minlength=10):
                assert not (before >= 250 and count)
                before += count


def test_an_extreme_alpha_still_deals_everything() -> None:
    for alpha in (1e-300, 1e-6, 1e300):
        hands = rows_of(
            partition_clients(
                DirichletPartition(clients=3, alpha=alpha, least=0), cyclic({"a": 90}), 0
            ),
            "a",
        )
        assert sorted(joined(hands)) == list(range(90))


@settings(deadline=None, max_examples=60)
@given(
    clients=st.integers(1, 6),
    shards=st.integers(1, 4),
    size=st.integers(30, 120),
    seed=st.integers(0, 2**31),
)
def test_shards_cover_everything_with_few_classes_each(
    clients: int, shards: int, size: int, seed: int
) -> None:
    source = cyclic({"a": size})
    parts = partition_clients(ShardsPartition(clients=clients, shards=shards), source, seed)
    hands = rows_of(parts, "a")
    assert sorted(joined(hands)) == list(range(size))
    assert max(map(len, hands)) - min(map(len, hands)) <= shards
    # of the cuts between ten classes each falls into one shard at most
    kinds = sum(len(set(held(part, source))) for part in parts)
    assert kinds <= clients * shards + 9


def test_shards_that_fit_the_classes_hold_one_class_each() -> None:
    source = cyclic({"a": 200})
    for seed in range(10):
        parts = partition_clients(ShardsPartition(clients=5, shards=2), source, seed)
        assert [len(part.rows) for part in parts] == [40] * 5
        assert all(len(set(held(part, source))) == 2 for part in parts)
