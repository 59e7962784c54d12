"""What to call a run in a table or figure: its method, and the settings that set it apart."""

from __future__ import annotations

import json
from collections.abc import Sequence

from protofed.spec.experiment_spec import Experiment, flatten_spec


def label_experiments(experiments: Sequence[Experiment]) -> list[str]:
    """One label per experiment, as ``FPL`` or, beside another FPL, ``FPL (tau=0.5)``.

    Settings are named only where experiments of one method differ in them. The seed never is, so
    the runs of one table row share their label.
    """
    names = [experiment.method.info.label for experiment in experiments]
    by_method = {
        name: [e for e, other in zip(experiments, names, strict=True) if other == name]
        for name in dict.fromkeys(names)
    }
    paths = {name: differing_fields(group) for name, group in by_method.items()}
    return [
        add_settings(name, format_settings(experiment, paths[name]))
        for name, experiment in zip(names, experiments, strict=True)
    ]


def add_settings(label: str, settings: str) -> str:
    """A label with its settings in parentheses, ``FPL (tau=0.5)``, or alone if there are none."""
    return f"{label} ({settings})" if settings else label


def differing_fields(experiments: Sequence[Experiment]) -> list[str]:
    """The paths of the fields in which some experiments differ, except the seed.

    A field that not all of them have follows from another one that differs, for example from the
    partition's kind, so it is left out.
    """
    tables = [flatten_spec(experiment.to_dict()) for experiment in experiments]
    return [
        path
        for path, value in tables[0].items()
        if path != "seed"
        and all(path in table for table in tables)
        and any(table[path] != value for table in tables)
    ]


def format_settings(experiment: Experiment, paths: Sequence[str]) -> str:
    """Some fields of an experiment in short form, as ``mu=0.1, base=fpl``.

    `paths` are dotted, as `differing_fields` returns them.
    """
    fields = flatten_spec(experiment.to_dict())
    return ", ".join(f"{short_field_name(path)}={format_value(fields[path])}" for path in paths)


def short_field_name(path: str) -> str:
    """A field's path without what a reader can guess: ``method.base.name`` is ``base``."""
    return path.removeprefix("method.").removesuffix(".name")


def format_value(value: object) -> str:
    """A field's value as a label shows it: numbers are short, text has no quotes."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)
