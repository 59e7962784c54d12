"""A coordinator names code: a site loads what its own policy names, and nothing else."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protofed.deploy.policy import SitePolicy, read_policy
from protofed.deploy.request_judge import parse_description, parse_inquiry
from protofed.errors import ProtofedError
from protofed.federation.remote_sites import remote_experiment

LOADED = "foreign_code_was_loaded"
LAB = f"""
import sys
sys.modules["{LOADED}"] = sys
from typing import ClassVar
from protofed.api import *
from torch import nn


@dataclass(frozen=True)
class FedAvg(Method):
    info: ClassVar[MethodInfo] = MethodInfo(label="Lab", title="A test")


def small(classes, image):
    return net_from_module(nn.Sequential(nn.Flatten(), nn.Linear(3, classes)), head="1")
"""


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package that is installed at the site; its class has the name of one of ours."""
    (tmp_path / "foreignlab").mkdir()
    (tmp_path / "foreignlab" / "__init__.py").touch()
    (tmp_path / "foreignlab" / "code.py").write_text(LAB)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("foreignlab", None)
    sys.modules.pop("foreignlab.code", None)
    sys.modules.pop(LOADED, None)


def inquiry(method: object) -> str:
    return json.dumps({"method": method, "rounds": 1, "scores": 1, "side": 32})


def description(**spec: object) -> str:
    data = {"at": "sites", "domains": ["a"], "revision": "1"}
    whole = {"data": data, "device": "cpu", **spec}
    return json.dumps({"spec": whole, "classes": ["x", "y"], "sizes": {"0": 5}})


HOSTILE = [
    "foreignlab.code:FedAvg",
    "foreignlab.code:small",
    "os:system",
    "FOLDER/foreignlab/code.py:FedAvg",
    {"name": "pgct", "base": "foreignlab.code:FedAvg"},
    {"name": "pgct", "base": {"name": "foreignlab.code:FedAvg"}},
]


@pytest.mark.usefixtures("lab")
@pytest.mark.parametrize("policy", [SitePolicy(), SitePolicy(methods=("fedavg", "pgct"))])
@pytest.mark.parametrize("method", HOSTILE, ids=str)
def test_code_that_the_policy_does_not_name_is_not_even_imported(
    method: object, policy: SitePolicy, tmp_path: Path
) -> None:
    asked = json.loads(json.dumps(method).replace("FOLDER", str(tmp_path)))
    with pytest.raises(ProtofedError, match="does not allow it"):
        parse_inquiry(inquiry(asked), policy.code_access)
    with pytest.raises(ProtofedError, match="does not allow it"):
        parse_description(description(method=asked), policy.code_access)
    assert LOADED not in sys.modules
    assert "foreignlab" not in sys.modules


@pytest.mark.usefixtures("lab")
def test_a_net_that_the_policy_does_not_name_is_not_imported() -> None:
    text = description(method="fedavg", net="foreignlab.code:small")
    with pytest.raises(ProtofedError, match="does not allow it"):
        parse_description(text, SitePolicy().code_access)
    assert LOADED not in sys.modules
    known = parse_description(text, SitePolicy(nets=("foreignlab.code:small",)).code_access)
    assert known.experiment.nets == ("foreignlab.code:small",)


@pytest.mark.usefixtures("lab")
def test_a_named_method_is_loaded_and_is_not_taken_for_ours_of_the_same_name() -> None:
    policy = SitePolicy(methods=("foreignlab.code:FedAvg",))
    asked = parse_inquiry(inquiry("foreignlab.code:FedAvg"), policy.code_access)
    assert policy.allows(asked.method, 1) is None
    assert "does not allow fedavg" in str(policy.allows("fedavg", 1))
    for other in (SitePolicy(), SitePolicy(methods=("fedavg",))):
        assert "does not name foreignlab.code:FedAvg" in str(other.allows(asked.method, 1))


@pytest.mark.usefixtures("lab")
def test_a_policy_names_code_by_its_module_alone(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('methods = ["foreignlab.code:FedAvg"]\nnets = ["foreignlab.code:small"]')
    assert read_policy(path).methods == ("foreignlab.code:FedAvg",)
    path.write_text(f'methods = ["{tmp_path}/foreignlab/code.py:FedAvg"]')
    with pytest.raises(ProtofedError, match="name code by its module"):
        read_policy(path)
    path.write_text('methods = ["foreignlab.code:Missing"]')
    with pytest.raises(ProtofedError, match="has no 'Missing'"):
        read_policy(path)


@pytest.mark.usefixtures("lab")
def test_a_submitted_spec_names_code_by_its_module_alone(tmp_path: Path) -> None:
    assert remote_experiment({"method": "foreignlab.code:FedAvg"}).method.info.label == "Lab"
    (tmp_path / "foreignfile.py").write_text(LAB)
    for spec in (
        {"method": f"{tmp_path}/foreignfile.py:FedAvg"},
        {"net": f"{tmp_path}/foreignfile.py:small"},
    ):
        with pytest.raises(ProtofedError, match="code never travels"):
            remote_experiment(spec)
