"""`help` says what every field means."""

from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

from protofed import Data, Experiment, Training
from protofed.core.method import Method
from protofed.methods import METHODS
from protofed.spec.spec_faults import field_names


def documented(kind: type) -> list[str]:
    text = (inspect.getdoc(kind) or "").partition("Fields:")[2]
    return re.findall(r"^ *(\w+): \S", text, re.MULTILINE)


def test_the_sections_of_a_spec_name_every_field_in_order() -> None:
    assert documented(Experiment) == list(Experiment.model_fields)
    assert documented(Data) == list(Data.model_fields)
    assert documented(Training) == field_names(Training)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_names_every_field(name: str) -> None:
    fields = dataclasses.fields(METHODS[name])
    named = [field.name for field in fields if not isinstance(field.default, Method)]
    assert documented(METHODS[name]) == named
