"""The fields of specs by their path, and in which of them some runs differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from protofed.experiment.spec import Experiment
from protofed.study.collect import RunRecord


def spec_fields(experiment: Experiment) -> dict[str, Any]:
    """Every field of a spec by its path, as ``training.lr``; methods within methods are opened."""
    found: dict[str, Any] = {}
    for section, content in experiment.to_dict().items():
        if isinstance(content, Mapping):
            for name, value in content.items():
                found |= _opened(f"{section}.{name}", value)
        else:
            found[section] = content
    return found


def _opened(path: str, value: object) -> dict[str, Any]:
    """A method within a method by its fields; any other value as it is."""
    if not isinstance(value, Mapping) or "name" not in value:
        return {path: value}
    return {
        deep: leaf
        for name, inner in value.items()
        for deep, leaf in _opened(f"{path}.{name}", inner).items()
    }


def differing_fields(records: Sequence[RunRecord]) -> list[str]:
    """The paths of the fields in which some runs differ, but for the seed.

    Fields that not all of them have follow from another that differs, as a partition's kind.
    """
    tables = [spec_fields(record.experiment) for record in records]
    return [
        path
        for path, value in tables[0].items()
        if path != "seed"
        and all(path in table for table in tables)
        and any(table[path] != value for table in tables)
    ]


def format_settings(record: RunRecord, paths: Sequence[str]) -> str:
    """Some fields of a run in words: ``mu=0.1, base=fpl``."""
    fields = spec_fields(record.experiment)
    return ", ".join(f"{short_field_name(path)}={format_value(fields[path])}" for path in paths)


def short_field_name(path: str) -> str:
    """A field's path without what a reader can guess."""
    return path.removeprefix("method.").removesuffix(".name")


def format_value(value: object) -> str:
    """A field's value as a label shows it."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)
