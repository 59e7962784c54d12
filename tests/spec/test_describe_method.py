"""What a digest knows of a method that is not ours."""

from __future__ import annotations

import importlib.util
import linecache
import sys
from pathlib import Path
from typing import Any

from protofed.spec.experiment_spec import describe_method

METHOD = """
from pydantic.dataclasses import dataclass
from protofed.core.method import Method

STRENGTH = 1.0

@dataclass(frozen=True)
class Mine(Method):
    def loss(self, site, received, state, model, batch):
        return STRENGTH * super().loss(site, received, state, model, batch)
"""


def described(file: Path) -> dict[str, Any]:
    """The method `Mine` of a file, read anew."""
    linecache.checkcache(str(file))
    spec = importlib.util.spec_from_file_location("mine", file)
    assert spec
    assert spec.loader
    module = sys.modules["mine"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        return describe_method(module.Mine())
    finally:
        del sys.modules["mine"]


def test_a_changed_constant_of_its_file_makes_it_another_method(tmp_path: Path) -> None:
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text(METHOD)
    two.write_text(METHOD.replace("STRENGTH = 1.0", "STRENGTH = 2.0"))
    assert described(one) == described(one)
    assert described(one)["name"] == described(two)["name"] == "mine.Mine"
    assert described(one)["source"] != described(two)["source"]
