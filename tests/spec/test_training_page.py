"""The page on local training lists every field with its default."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path

from protofed.core.training import Training

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
ROW = re.compile(r"^\| `training\.(\w+)` \| (\S+) \|", re.MULTILINE)


def test_the_table_has_each_field_with_its_default() -> None:
    rows = {name: json.loads(value) for name, value in ROW.findall(PAGE.read_text())}
    assert rows == asdict(Training())
    assert list(rows) == list(asdict(Training()))
