"""A method that is not protofed's own, across a federation: installed everywhere, named by all."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from protofed.deploy.policy import SitePolicy
from protofed.errors import ProtofedError
from protofed.experiment.runner import run
from protofed.spec.spec_parser import parse_experiment
from tests.fleet.desks import SPEC, Known, desks, job, submitted

PAGE = Path(__file__).parents[2] / "docs" / "add-a-method.md"
NAME = "ourlab.methods:Steady"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The second method of the page, as a package that is installed on this machine."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (code,) = [block for block in blocks if "class Steady(" in block]
    package = tmp_path / "installed" / "ourlab"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "methods.py").write_text(code)
    monkeypatch.syspath_prepend(package.parent)
    yield
    for name in ("ourlab", "ourlab.methods"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("lab")
def test_it_gives_the_bits_of_the_local_engine_where_every_policy_names_it(
    images: Path, tmp_path: Path
) -> None:
    sites = desks(images, tmp_path)
    for site in sites.values():
        site.policy = site.judge.policy = SitePolicy(methods=(NAME,))
    spec = {**SPEC, "method": NAME}
    submitted(Known(sites), job(tmp_path, spec=spec))
    whole = {**spec, "data": {**SPEC["data"], "name": str(images)}}
    alone = run(parse_experiment(whole), tmp_path / "local", workers=0)
    fed = tmp_path / "out"
    assert (fed / "scores.jsonl").read_bytes() == (alone.folder / "scores.jsonl").read_bytes()
    state = "checkpoints/round-00002/server.safetensors"
    assert (fed / state).read_bytes() == (alone.folder / state).read_bytes()


@pytest.mark.usefixtures("lab")
def test_one_policy_that_does_not_name_it_stops_the_run_before_it_starts(
    images: Path, tmp_path: Path
) -> None:
    sites = desks(images, tmp_path)
    for name, site in sites.items():
        allowed = ("fedavg",) if name == "site-b" else (NAME,)
        site.policy = site.judge.policy = SitePolicy(methods=allowed)
    with pytest.raises(ProtofedError, match=r"site-b: .*ourlab\.methods:Steady.*not allow"):
        submitted(Known(sites), job(tmp_path, spec={**SPEC, "method": NAME}))
    assert not (tmp_path / "out" / "scores.jsonl").exists()
