"""Methods by name: ours, a user's own, installed ones, and those whose code is not loaded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic.dataclasses import dataclass

from protofed import Experiment
from protofed.core.method import Method, MethodInfo
from protofed.core.model import ImageShape
from protofed.errors import ProtofedError
from protofed.methods import METHODS
from protofed.methods.fedprox import FedProx
from protofed.methods.pgct import PGCT
from protofed.nets import build_net
from protofed.runtime import code_reference
from protofed.runtime.code_reference import NO_CODE, OUR_CODE
from protofed.spec import method_lookup
from protofed.spec.method_lookup import (
    UnloadedMethod,
    code_names,
    describe_method,
    find_method_class,
    method_name,
    method_slug,
    parse_method,
)
from protofed.spec.spec_parser import parse_experiment

MINE = """
from typing import ClassVar
from protofed.api import *


@dataclass(frozen=True)
class Mine(Method):
    info: ClassVar[MethodInfo] = MethodInfo(label="My method", title="A test")
    power: float = Field(default=1.0, ge=0)
    base: Method = Method()


class Plain(Method):
    info: ClassVar[MethodInfo] = MethodInfo(label="Plain", title="A test")
    power: float = 1.0


@dataclass(frozen=True)
class Nameless(Method):
    power: float = 1.0


def function():
    pass
"""


@pytest.fixture(autouse=True)
def _forget_imports() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path


@pytest.fixture
def mine(tmp_path: Path) -> str:
    file = tmp_path / "lookup_mine.py"
    file.write_text(MINE)
    return f"{file}:Mine"


def test_a_method_in_a_file_takes_its_fields_and_is_described_by_its_place(mine: str) -> None:
    made = parse_method({"name": mine, "power": 2.0, "base": {"name": "fedprox", "mu": 0.5}})
    assert made.info.label == "My method"
    assert method_name(made) == mine
    table = describe_method(made)
    assert (table["name"], table["power"], table["base"]["name"]) == (mine, 2.0, "fedprox")
    assert describe_method(parse_method(table)) == table
    with pytest.raises(ProtofedError, match=r"method\.power: input should be greater"):
        parse_method({"name": mine, "power": -1.0})
    with pytest.raises(ProtofedError, match=r"method\.powr: no such field; did you mean 'power'"):
        parse_method({"name": mine, "powr": 1.0})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Plain", r"has fields \(power\) but is no dataclass"),
        ("Nameless", "has no info"),
        ("function", "is no method"),
        ("Min", "did you mean 'Mine'"),
    ],
)
def test_what_is_no_method_is_told(mine: str, name: str, text: str) -> None:
    with pytest.raises(ProtofedError, match=text):
        find_method_class(mine.replace(":Mine", f":{name}"))


def test_an_unknown_name_lists_the_known_ones_and_how_to_name_ones_own() -> None:
    with pytest.raises(ProtofedError, match=r"did you mean 'fedavg'.*path/to/mine.py:Mine"):
        parse_method("fedagv")


def test_the_digest_does_not_depend_on_where_the_file_lies(tmp_path: Path) -> None:
    digests = []
    for folder in ("here", "there"):
        file = tmp_path / folder / "lookup_moved.py"
        file.parent.mkdir()
        file.write_text(MINE)
        digests.append(Experiment(method=f"{file}:Mine").digest)  # type: ignore[arg-type]
        del sys.modules["lookup_moved"]
        sys.path.remove(str(file.parent))
    assert digests[0] == digests[1]


def test_a_class_and_its_name_make_the_same_experiment(mine: str) -> None:
    made = parse_method(mine)
    assert Experiment(method=made).digest == parse_experiment({"method": mine}).digest
    assert Experiment(method=PGCT(base=made)).to_dict()["method"]["base"]["name"] == mine


def test_an_installed_method_and_net_are_found_by_their_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered = {
        "prox2": EntryPoint("prox2", "protofed.methods.fedprox:FedProx", "protofed.methods"),
        "mlp2": EntryPoint("mlp2", "protofed.nets.cnn:moon_mlp", "protofed.nets"),
    }
    monkeypatch.setattr(code_reference, "installed_plugins", lambda group: offered)
    monkeypatch.setattr(method_lookup, "installed_plugins", lambda group: offered)
    monkeypatch.setattr("protofed.nets.installed_plugins", lambda group: offered)
    monkeypatch.setattr("protofed.spec.experiment_spec.installed_plugins", lambda group: offered)
    assert isinstance(parse_method({"name": "prox2", "mu": 0.5}), FedProx)
    assert parse_experiment({"net": "mlp2"}).net == "mlp2"
    assert build_net("mlp2", 10, ImageShape(3, 8), 0).features == 256
    with pytest.raises(ProtofedError, match="does not allow it"):
        parse_method("prox2", OUR_CODE)


def test_without_loading_a_method_keeps_its_name_and_fields(tmp_path: Path) -> None:
    name = f"{tmp_path / 'gone.py'}:Gone"
    table = {"name": name, "power": 2.0, "base": {"name": "fedprox"}}
    kept = parse_method(table, NO_CODE)
    assert isinstance(kept, UnloadedMethod)
    assert describe_method(kept) == table
    assert kept.info.label == method_slug(name) == "Gone"
    with pytest.raises(ProtofedError, match="is not loaded"):
        kept.adapt(build_net("moon-mlp", 3, ImageShape(1, 8), 0), ImageShape(1, 8))


def test_a_method_of_ours_with_fields_of_another_version_is_kept_as_it_was() -> None:
    kept = parse_method({"name": "fedprox", "mu": 0.1, "nu": 2}, NO_CODE)
    assert isinstance(kept, UnloadedMethod)
    assert kept.info.label == FedProx.info.label
    assert describe_method(kept) == {"name": "fedprox", "mu": 0.1, "nu": 2}
    assert isinstance(parse_method({"name": "fedprox", "mu": 0.1}, NO_CODE), FedProx)


def test_a_recorded_spec_needs_neither_its_net_nor_its_method(tmp_path: Path) -> None:
    raw = {"method": f"{tmp_path}/a.py:A", "net": [f"{tmp_path}/b.py:b", "no-such-net"]}
    experiment = parse_experiment(raw, access=NO_CODE)
    assert experiment.net_labels == ("b:b", "no-such-net")
    again = parse_experiment(experiment.to_dict(), access=NO_CODE)
    assert again.digest == experiment.digest


@pytest.mark.parametrize("name", METHODS)
def test_digests_of_our_methods_do_not_mention_code(name: str) -> None:
    assert Experiment(method=METHODS[name]()).to_dict()["method"]["name"] == name


@dataclass(frozen=True)
class Part:
    """Something that is no method."""

    size: int = 1


@dataclass(frozen=True, config={"arbitrary_types_allowed": True})
class Whole(Method):
    """A method with a field that a spec could not tell."""

    info: ClassVar[MethodInfo] = MethodInfo(label="Whole", title="A test")
    part: Part = Part()


def test_a_field_that_a_spec_could_not_tell_apart_is_refused() -> None:
    with pytest.raises(ProtofedError, match=r"method\.part: a field holds numbers"):
        describe_method(Whole())


def test_a_class_inside_a_function_has_no_name_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "lookup_factory.py"
    file.write_text(
        "from typing import ClassVar\nfrom protofed.api import *\n"
        "def make(scale):\n    class Kind(Method):\n"
        "        info: ClassVar[MethodInfo] = MethodInfo(label='K', title='K')\n    return Kind\n"
        "A, B = make(1), make(2)\n"
    )
    with pytest.raises(ProtofedError, match="is defined inside a function"):
        parse_method(f"{file}:B")


def test_code_is_found_in_methods_and_nets_alone() -> None:
    spec = {
        "method": {"name": "pgct", "base": {"name": "a.b:C", "text": "12:30", "more": "x y:z"}},
        "net": ["lsa-cnn", "/home/me/nets.py:small"],
        "data": {"name": "/data/scan 12:30"},
    }
    assert code_names(spec) == ["a.b:C", "/home/me/nets.py:small"]


def test_two_files_with_helpers_of_one_name_are_not_mixed(tmp_path: Path) -> None:
    for folder, file in (("v1", "lookup_v1"), ("v2", "lookup_v2")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "lookup_helper.py").write_text(f"NAME = '{folder}'\n")
        (tmp_path / folder / f"{file}.py").write_text(f"import lookup_helper\n{MINE}")
    parse_method(f"{tmp_path}/v1/lookup_v1.py:Mine")
    with pytest.raises(ProtofedError, match="rename one of the two files"):
        parse_method(f"{tmp_path}/v2/lookup_v2.py:Mine")
