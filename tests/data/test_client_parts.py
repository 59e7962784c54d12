from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from protofed.data.partition import (
    DirichletPartition,
    EqualPartition,
    Partition,
    ShardsPartition,
    SharesPartition,
    partition_clients,
    parts_to_records,
)
from protofed.errors import ProtofedError
from tests.data.dealing import ADAPTER, OFFICE, benchmark, cyclic, every_rule


def test_beta_is_another_name_for_alpha() -> None:
    named = ADAPTER.validate_python({"kind": "dirichlet", "clients": 4, "beta": 0.3})
    assert named == DirichletPartition(clients=4, alpha=0.3)
    assert ADAPTER.dump_python(named) == {
        "kind": "dirichlet",
        "clients": 4,
        "alpha": 0.3,
        "least": 10,
    }
    with pytest.raises(ValidationError, match="beta"):
        ADAPTER.validate_python({"kind": "dirichlet", "clients": 4, "alpha": 0.3, "beta": 0.3})


def test_a_number_of_clients_is_spread_over_the_domains_in_order() -> None:
    names = ["a", "b", "c"]
    assert EqualPartition(clients=3).spread(names) == {"a": 1, "b": 1, "c": 1}
    assert EqualPartition(clients=8).spread(names) == {"a": 3, "b": 3, "c": 2}


def test_a_domain_without_clients_is_left_out() -> None:
    source = cyclic({"a": 20, "b": 20, "c": 20})
    parts = partition_clients(EqualPartition(clients={"c": 2, "a": 1, "b": 0}), source, seed=0)
    assert [(part.client, part.domain) for part in parts] == [(0, "a"), (1, "c"), (2, "c")]
    only = partition_clients(SharesPartition(clients={"b": 1}, share={"b": 0.5}), source, seed=0)
    assert [(part.domain, len(part.rows)) for part in only] == [("b", 10)]


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        (
            SharesPartition(clients={"dslr": 4}, samples=60),
            "partition: 4 clients of 'dslr' want 60 rows each = 240, but the domain has 127"
            " training images; lower partition.samples or partition.clients.dslr",
        ),
        (
            SharesPartition(clients=8, share=0.6),
            "partition: 2 clients of 'caltech' want 539 rows each = 1078, but the domain has 899"
            " training images; lower partition.share or partition.clients",
        ),
        (
            SharesPartition(clients={"dslr": 4}, share=0.05, repair=True),
            "partition: the clients of 'dslr' draw 6 rows each, too few for its 10 classes;"
            " raise partition.share or set partition.repair to false",
        ),
        (
            SharesPartition(clients=4, share={"caltech": 0.1, "amazon": 0.1, "webcam": 0.1}),
            "partition.share leaves out 'dslr', which has clients; add it",
        ),
        (
            SharesPartition(clients=4, samples={"webcam": 5, "dlsr": 5}),
            "unknown domain in partition.samples 'dlsr'; did you mean 'dslr'?\n"
            "known: caltech, amazon, webcam, dslr",
        ),
        (
            EqualPartition(clients={"Amazon": 1}),
            "unknown domain in partition.clients 'Amazon'; did you mean 'amazon'?\n"
            "known: caltech, amazon, webcam, dslr",
        ),
        (
            EqualPartition(clients={"dslr": 0}),
            "partition: no clients; give partition.clients at least one",
        ),
        (
            EqualPartition(clients=3),
            "partition: 3 clients cannot cover 4 domains (caltech, amazon, webcam, dslr);"
            " raise partition.clients, or give it by domain",
        ),
        (
            DirichletPartition(clients={"dslr": 20}, alpha=0.5),
            "partition: 20 clients of 'dslr' want 10 rows each = 200, but the domain has 127"
            " training images; lower partition.least or partition.clients.dslr",
        ),
        (
            ShardsPartition(clients={"dslr": 64}, shards=2),
            "partition: 64 clients of 'dslr' want 2 rows each = 128, but the domain has 127"
            " training images; lower partition.shards or partition.clients.dslr",
        ),
    ],
)
def test_what_cannot_be_dealt_is_explained(rule: Partition, says: str) -> None:
    with pytest.raises(ProtofedError) as error:
        partition_clients(rule, cyclic(OFFICE), seed=0)
    assert str(error.value) == says


def test_dirichlet_gives_up_with_the_numbers() -> None:
    rule = DirichletPartition(clients={"dslr": 12}, alpha=0.01, least=10)
    with pytest.raises(ProtofedError) as error:
        partition_clients(rule, cyclic(OFFICE), seed=0)
    before, after = str(error.value).split(" got at most ")
    assert before == (
        "partition: 12 clients of 'dslr' want at least 10 of its 127 rows each, but in 1,000"
        " draws with alpha = 0.01 the smallest client"
    )
    best, advice = after.split("; ")
    assert 0 <= int(best) < 10
    assert advice == ("raise partition.alpha, or lower partition.least or partition.clients.dslr")


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "shares", "clients": 4},
        {"kind": "shares", "clients": 4, "share": 0.1, "samples": 5},
        {"kind": "shares", "clients": 4, "share": 0},
        {"kind": "shares", "clients": 4, "share": {"a": 1.1}},
        {"kind": "shares", "clients": 4, "samples": -1},
        {"kind": "shares", "clients": 4, "share": 0.1, "alpha": 1},
        {"kind": "equal", "clients": 0},
        {"kind": "equal", "clients": {"a": -1}},
        {"kind": "equal"},
        {"kind": "dirichlet", "clients": 4},
        {"kind": "dirichlet", "clients": 4, "alpha": 0},
        {"kind": "dirichlet", "clients": 4, "alpha": float("inf")},
        {"kind": "dirichlet", "clients": 4, "alpha": 1, "least": -1},
        {"kind": "shards", "clients": 4, "shards": 0},
        {"kind": "other", "clients": 4},
        {"clients": 4},
    ],
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ADAPTER.validate_python(wrong)


@every_rule
def test_a_rule_survives_json(rule: Partition) -> None:
    assert ADAPTER.validate_json(ADAPTER.dump_json(rule)) == rule


def test_parts_as_plain_data_name_the_classes_that_are_there() -> None:
    source = benchmark({"a": [0, 2, 2], "b": [1, 1]}, classes=3)
    records = parts_to_records(partition_clients(EqualPartition(clients=2), source, seed=0), source)
    assert json.loads(json.dumps(records)) == [
        {"client": 0, "domain": "a", "held": {"class 0": 1, "class 2": 2}, "rows": [0, 1, 2]},
        {"client": 1, "domain": "b", "held": {"class 1": 2}, "rows": [0, 1]},
    ]
