from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from protofed.core.training import Training
from protofed.data.partition import DirichletPartition, SharesPartition
from protofed.errors import ProtofedError
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedprox import FedProx
from protofed.spec.experiment_spec import Data, Experiment, PublicImages, flatten_spec
from protofed.spec.spec_parser import (
    choose_named,
    format_assignment,
    parse_experiment,
    read_spec,
    set_field,
)
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli


def test_what_is_not_said_comes_from_the_benchmark() -> None:
    made = parse_experiment({"data": "office-caltech"})
    assert made.net == "lsa-cnn"
    assert isinstance(made.data, Data)
    assert made.data.domains == ("caltech", "amazon", "webcam", "dslr")
    assert made.data.flip
    assert isinstance(made.partition, SharesPartition)
    assert made.partition.clients == {"caltech": 3, "amazon": 2, "webcam": 1, "dslr": 4}
    assert made.method == FedAvg()


def test_choosing_domains_chooses_their_clients() -> None:
    made = parse_experiment({"data": {"name": "digits", "domains": ["usps", "mnistm"]}})
    assert isinstance(made.partition, SharesPartition)
    assert made.partition.clients == {"usps": 4, "mnistm": 1}


def test_one_field_of_the_partition_keeps_the_others() -> None:
    made = parse_experiment({"data": "office-caltech", "partition": {"clients": 8}})
    assert isinstance(made.partition, SharesPartition)
    assert (made.partition.clients, made.partition.share, made.partition.repair) == (8, 0.2, True)


def test_samples_replace_a_share() -> None:
    made = parse_experiment({"data": "office-caltech", "partition": {"samples": 20}})
    assert isinstance(made.partition, SharesPartition)
    assert (made.partition.share, made.partition.samples) == (None, 20)


@pytest.mark.parametrize("word", ["alpha", "beta"])
def test_alpha_and_beta_name_the_same_skew(word: str) -> None:
    made = parse_experiment({"data": "cifar10", "partition": {word: 0.1}})
    assert made.partition == DirichletPartition(clients=10, alpha=0.1)
    other_rule = {"kind": "dirichlet", word: 0.1}
    assert isinstance(parse_experiment({"partition": other_rule}).partition, DirichletPartition)


def test_the_spec_reads_back_to_itself() -> None:
    raw = {
        "method": {"name": "fedprox", "mu": 0.3},
        "data": {"name": "pacs", "side": 32, "domains": ["photo", "sketch"]},
        "training": {"lr": 0.1, "epochs": 2},
        "rounds": 3,
    }
    made = parse_experiment(raw)
    again = parse_experiment(json.loads(json.dumps(made.to_dict())))
    assert again == made
    assert again.digest == made.digest
    assert again.method == FedProx(mu=0.3)


def test_a_field_that_is_gone_is_read_at_its_last_value_and_refused_at_others() -> None:
    plain = parse_experiment({"net": "resnet10"})
    assert parse_experiment({"net": "resnet10", "conv": "direct"}) == plain
    assert "conv" not in plain.to_dict()
    with pytest.raises(ProtofedError, match=r"conv: there is only direct, got winograd.*leave it"):
        parse_experiment({"net": "resnet10", "conv": "winograd"})


def test_the_digest_names_the_numbers_and_nothing_else() -> None:
    base = parse_experiment({})
    assert base.digest == parse_experiment({"method": "fedavg", "rounds": 20}).digest
    others: list[dict[str, object]] = [
        {"seed": 1},
        {"rounds": 21},
        {"method": "fedprox"},
        {"method": {"name": "fedprox", "mu": 0.02}},
        {"training": {"lr": 0.02}},
        {"partition": {"clients": 8}},
        {"net": "lsa-cnn", "data": {"side": 28}},
    ]
    digests = [parse_experiment(raw).digest for raw in others]
    assert len({base.digest, *digests}) == len(others) + 1


def test_python_objects_make_the_same_spec_as_text() -> None:
    made = Experiment(
        method=FedProx(mu=0.5), data=Data(name="digits"), training=Training(lr=0.1), rounds=4
    )
    raw = {"method": {"name": "fedprox", "mu": 0.5}, "data": "digits", "training": {"lr": 0.1}}
    assert made.digest == parse_experiment({**raw, "rounds": 4}).digest


def test_a_spec_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        parse_experiment({}).rounds = 3


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"rounds": -1}, ["rounds", "greater than or equal to 1", "-1"]),
        ({"rounds": "many"}, ["rounds", "integer", "many"]),
        ({"roundz": 3}, ["roundz", "did you mean 'rounds'"]),
        ({"seed": 1.5}, ["seed", "1.5"]),
        ({"training": {"lr": float("nan")}}, ["training.lr", "finite"]),
        ({"training": {"lr": float("inf")}}, ["training.lr", "finite"]),
        ({"training": {"lr": -0.1}}, ["training.lr", "-0.1"]),
        ({"training": {"epoch": 3}}, ["training.epoch", "did you mean 'epochs'"]),
        ({"training": {"last_batch": "throw"}}, ["last_batch", "'keep', 'merge' or 'drop'"]),
        ({"training": 3}, ["training", "3"]),
        ({"method": "fedvag"}, ["method", "did you mean 'fedavg'", "fedprox"]),
        ({"method": {"name": "fedprox", "mu": -1}}, ["method.mu", "-1"]),
        ({"method": {"name": "fedprox", "mu": "x"}}, ["method.mu", "number"]),
        ({"method": {"name": "fedprox", "muu": 1}}, ["method.muu", "did you mean 'mu'"]),
        ({"method": {"name": "fedavg", "mu": 1}}, ["method.mu", "no such field"]),
        ({"method": 7}, ["method", "7"]),
        ({"method": {"name": ["fedavg"]}}, ["method", "unknown name"]),
        ({"data": "digit"}, ["data.name", "did you mean 'digits'"]),
        ({"data": {"name": "digits", "domains": ["mnits"]}}, ["data", "did you mean 'mnist'"]),
        ({"data": {"domains": []}}, ["data: domains", "at least one"]),
        ({"data": {"domains": ["syn", "syn"]}}, ["data: domains", "each once"]),
        ({"data": {"side": 4}}, ["data.side", "4"]),
        ({"data": {"revision": 99}}, ["data: revision", "this version", "99"]),
        ({"data": {"channels": 2}}, ["data.channels", "2"]),
        ({"net": "resnet11"}, ["net", "did you mean 'resnet1"]),
        ({"participation": 0}, ["participation", "greater than 0"]),
        ({"partition": {"clints": 3}}, ["partition.clints", "did you mean 'clients'"]),
        ({"partition": {"kind": "dirichlet"}}, ["partition.alpha", "required"]),
        ({"partition": {"kind": "pie"}}, ["partition", "pie"]),
        ({"partition": {"kind": "shares", "share": 2.0}}, ["partition.share: ", "2.0"]),
        ({"partition": {"clients": {"syn": -1}}}, ["partition.clients.syn: ", "-1"]),
        ({"partition": {"clients": "x"}}, ["partition.clients: ", "x"]),
    ],
)
def test_a_fault_is_named_in_a_few_lines(raw: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ProtofedError) as caught:
        parse_experiment(raw)
    text = str(caught.value)
    assert len(text.splitlines()) <= 5
    for word in words:
        assert word in text


def test_several_faults_are_told_at_once() -> None:
    raw = {"rounds": 0, "seed": -1, "method": "fedvag", "training": {"lr": -1, "batch": 0}}
    with pytest.raises(ProtofedError) as caught:
        parse_experiment(raw, "exp.toml")
    lines = str(caught.value).splitlines()
    assert len(lines) == 5
    assert all(line.startswith("exp.toml: ") for line in lines)


def test_toml_faults_name_the_file_and_the_place(tmp_path: Path) -> None:
    cases = {
        "syntax.toml": (b"rounds = = 3", "line 1"),
        "binary.toml": (b"\xff\xfe\x00", "not readable"),
        "deep.toml": (b"a = " + b"[" * 100_000, "not"),
        "large.toml": (b"#" * (2 << 20), "1 MiB"),
    }
    for name, (content, word) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ProtofedError, match=word) as caught:
            read_spec(tmp_path / name)
        assert name in str(caught.value)
    with pytest.raises(ProtofedError, match="No such file"):
        read_spec(tmp_path / "absent.toml")
    with pytest.raises(ProtofedError, match="directory"):
        read_spec(tmp_path)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(b"\xef\xbb\xbfrounds = 3\n")
    assert read_spec(file) == {"rounds": 3}


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("rounds=3", {"rounds": 3}),
        ("training.lr=1e-3", {"training": {"lr": 1e-3}}),
        ("data.domains=['syn', 'print']", {"data": {"domains": ["syn", "print"]}}),
        ("partition.clients.syn = 3", {"partition": {"clients": {"syn": 3}}}),
        ("net=lsa-cnn", {"net": "lsa-cnn"}),
        ("data.flip=true", {"data": {"flip": True}}),
    ],
)
def test_set_reads_values_as_toml(assignment: str, expected: dict[str, object]) -> None:
    assert set_field({}, assignment) == expected


scalars = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(min_size=1), inner)
)


@settings(suppress_health_check=[HealthCheck.too_slow])  # drawing nested values, on a busy machine
@given(values)
def test_an_assignment_reads_back_to_its_value(value: object) -> None:
    back = set_field({}, format_assignment("section.field", value))["section"]["field"]
    assert repr(back) == repr(value)  # 1 is neither True nor 1.0


def test_an_assignment_has_quotes_only_where_they_are_needed() -> None:
    assert format_assignment("net", "lsa-cnn") == "net=lsa-cnn"
    assert format_assignment("net", "1e3") == 'net="1e3"'
    assert format_assignment("data.domains", ("a", "b")) == 'data.domains=["a", "b"]'


def test_set_turns_a_bare_name_into_a_section() -> None:
    assert set_field({"method": "fedprox"}, "method.mu=1") == {
        "method": {"name": "fedprox", "mu": 1}
    }


@pytest.mark.parametrize("assignment", ["rounds", "=3", ".=3", "a..b=1"])
def test_a_set_that_is_no_assignment_is_refused(assignment: str) -> None:
    with pytest.raises(ProtofedError, match=r"section\.field=value"):
        set_field({}, assignment)
    with pytest.raises(ProtofedError, match="not a section"):
        set_field({"rounds": 3}, "rounds.deep=1")


def test_choosing_another_method_drops_what_was_said_of_the_first() -> None:
    raw = {"method": {"name": "fedprox", "mu": 1}}
    assert choose_named(raw, "method", "fedprox") == raw
    assert choose_named(raw, "method", "fedavg") == {"method": {"name": "fedavg"}}


words = st.sampled_from(
    ["method", "name", "data", "domains", "side", "partition", "kind", "clients", "share", "net",
     "samples", "alpha", "beta", "training", "lr", "epochs", "rounds", "seed", "mu", "fedprox",
     "digits", "pacs", "digits-mini", "dirichlet", "shares", "equal", "syn", "lsa-cnn", "x", ""]
)  # fmt: skip
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), words, st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=4)),
    max_leaves=12,
)


@given(st.dictionaries(words, values, max_size=5))
@settings(max_examples=300, deadline=None)
def test_whatever_a_spec_holds_it_is_taken_or_explained(raw: dict[str, object]) -> None:
    made, told = None, ""
    try:
        made = parse_experiment(raw)
    except ProtofedError as fault:
        told = str(fault)
    if made is None:
        assert 1 <= len(told.splitlines()) <= 5
    else:
        assert parse_experiment(json.loads(json.dumps(made.to_dict()))) == made


def test_a_spec_becomes_flat_but_for_tables_by_domain() -> None:
    raw = {
        "method": {"name": "pgct", "base": {"name": "fpl", "tau": 0.5}},
        "partition": {"clients": {"optical": 2}},
        "seed": 3,
    }
    assert flatten_spec(raw) == {
        "method.name": "pgct",
        "method.base.name": "fpl",
        "method.base.tau": 0.5,
        "partition.clients": {"optical": 2},
        "seed": 3,
    }


@pytest.mark.parametrize(
    "raw",
    [
        {"net": "mine"},
        {"data": "digit"},
        {"data": {"name": "digits", "domains": ["mnits"]}},
        {"method": "fedpox"},
        {"method": {"name": "fedprox", "muu": 1}},
        {"partition": {"clints": 3}},
        {"partition": {"kind": "shards", "alpha": 1}},
        {"training": {"lr": -1.0}},
        {"rounds": 0, "seed": -1, "roundz": 3},
        {"leave_out": "prnt"},
        {"device": "cuds"},
    ],
    ids=str,
)
def test_python_explains_a_fault_as_the_command_line_does(
    raw: dict[str, Any], cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ProtofedError) as caught:
        Experiment(**raw)
    Path("a.json").write_text(json.dumps(raw))
    ended = cli("run", "--spec", "a.json")
    assert ended.code == 2
    lines = [f"a.json: {line}" for line in str(caught.value).splitlines()]
    assert ended.err == "error: " + "\n".join(lines) + "\n"


def test_a_section_made_alone_is_explained_too() -> None:
    with pytest.raises(ProtofedError, match=r"^name: unknown name 'digit'; did you mean 'digits'"):
        Data(name="digit")
    with pytest.raises(ProtofedError, match=r"^samples: input should be greater than or equal"):
        PublicImages(samples=0)
    with pytest.raises(ProtofedError, match=r"^net: unknown name 'mine' \(known: "):
        Experiment(net="mine")


def test_a_method_may_be_named_in_python() -> None:
    raw: dict[str, Any] = {"method": {"name": "fedprox", "mu": 0.5}, "data": "digits"}
    made = Experiment(**raw)
    assert made.method == FedProx(mu=0.5)
    assert made.data == Data(name="digits")
