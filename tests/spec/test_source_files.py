"""The digest of a file moves with its code alone, and old code in memory is noticed."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from protofed.errors import ProtofedError
from protofed.runtime.module_files import find_module
from protofed.spec.source_files import SourceFile, check_not_edited, read_source, script_digest

CODE = '''"""Docs."""
import os
from . import near
from .far import thing as other
RATE = 0.1


def double(x):
    """Docs."""
    return 2 * x  # a comment


class Kind:
    """Docs."""

    size = 3

    def __init__(self):
        def inner():
            return 1
        self.inner = inner
'''


def source(tmp_path: Path, text: str, name: str = "one.py") -> SourceFile:
    file = tmp_path / name
    file.write_text(text)
    return read_source(file)


SAME = {
    "comment": ("# a comment", "# another, longer comment"),
    "docstring": ('"""Docs."""', '"""Other docs."""'),
    "blank lines": ("\n\n\n", "\n\n\n\n\n"),
    "quotes and parentheses": ("return 2 * x", "return (2 *\n        x)"),
}
OTHER = {
    "number": ("2 * x", "3 * x"),
    "constant": ("RATE = 0.1", "RATE = 0.2"),
    "name": ("def double", "def triple"),
    "default": ("def double(x)", "def double(x=1)"),
    "inner function": ("return 1", "return 2"),
    "class field": ("size = 3", "size = 4"),
    "import": ("import os", "import sys"),
    "string that is no docstring": ("size = 3", "size = 'Docs.'"),
    "type": ("size = 3", "size = 3.0"),
}


@pytest.mark.parametrize("change", SAME)
def test_what_does_not_change_the_code_does_not_move_the_digest(
    tmp_path: Path, change: str
) -> None:
    before, after = SAME[change]
    assert before in CODE
    edited = source(tmp_path, CODE.replace(before, after), "two.py")
    assert edited.digest == source(tmp_path, CODE).digest


@pytest.mark.parametrize("change", OTHER)
def test_what_changes_the_code_moves_the_digest(tmp_path: Path, change: str) -> None:
    before, after = OTHER[change]
    assert before in CODE
    edited = source(tmp_path, CODE.replace(before, after, 1), "two.py")
    assert edited.digest != source(tmp_path, CODE).digest


def test_imports_are_listed_with_what_may_be_a_module(tmp_path: Path) -> None:
    assert source(tmp_path, CODE).imports == ("os", ".", ".near", ".far", ".far.thing")


def test_a_module_is_found_without_being_loaded() -> None:
    found = find_module("xml.dom.minidom")
    assert found is not None
    assert found.path.name == "minidom.py"
    assert found.package == "xml.dom"
    assert found.label == "xml/dom/minidom.py"
    assert find_module(".dom.minidom", "xml") == found
    assert find_module("no_such_module_at_all") is None
    assert find_module("sys") is None
    assert find_module("xml.dom.minidom.Document") is None


SCRIPT = """
import math
LAM = 0.5
COLOUR = "red"
def scale(x):
    return LAM * x
def plot(x):
    return COLOUR
class Mine:
    def loss(self, x):
        return scale(x)
result = Mine().loss(1)
print(result)
if __name__ == "__main__":
    math.sqrt(2)
"""
SCRIPT_SAME = [
    ('"red"', '"blue"'),
    ("return COLOUR", "return None"),
    ("loss(1)", "loss(2)"),
    ("print(result)", "print(7)"),
    ("math.sqrt(2)", "math.sqrt(3)"),
]
SCRIPT_OTHER = [
    ("LAM = 0.5", "LAM = 0.6"),
    ("LAM * x", "x"),
    ("return scale(x)", "return 2 * scale(x)"),
    ("import math", "import math, random"),
    ("result = Mine", "Mine.loss = len\nresult = Mine"),
    ("print(result)", "math.factorial(3)"),
    ("print(result)", "for name in ['loss']:\n    setattr(Mine, name, len)"),
    ("print(result)", "try:\n    def scale(x): return 7\nexcept ImportError:\n    pass"),
]


def test_of_a_script_only_what_the_class_may_depend_on_counts(tmp_path: Path) -> None:
    first = script_digest(source(tmp_path, SCRIPT), {"Mine"})
    for before, after in SCRIPT_SAME:
        edited = source(tmp_path, SCRIPT.replace(before, after), "two.py")
        assert script_digest(edited, {"Mine"}) == first, after
    for number, (before, after) in enumerate(SCRIPT_OTHER):
        edited = source(tmp_path, SCRIPT.replace(before, after), f"three{number}.py")
        assert script_digest(edited, {"Mine"}) != first, after


EDITS = [
    ("RATE = 0.1", "RATE = 0.2"),
    ("LIST = [1, 2]", "LIST = [1, 3]"),
    ("2 * x", "3 * x"),
    ("x=1", "x=2"),
    ("size = 3", "size = 4"),
    ("return 5", "return 6"),
]
LOADED = """
import functools
RATE = 0.1
LIST = [1, 2]
HAS = False
try:
    import json
    HAS = True
except ImportError:
    pass
first = lambda: 1
second = lambda: 2
def wrapped(f):
    @functools.wraps(f)
    def call(*args):
        return f(*args)
    return call
@wrapped
def double(x=1):
    return 2 * x
class Kind:
    size = 3
    @property
    def length(self):
        return 5
    @length.setter
    def length(self, value):
        pass
"""


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that a user would write, imported from a file."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "loaded_one.py").write_text(LOADED)
    importlib.invalidate_caches()
    yield importlib.import_module("loaded_one")
    sys.modules.pop("loaded_one", None)


def file_of(module: ModuleType) -> Path:
    assert module.__file__
    return Path(module.__file__)


@pytest.mark.parametrize(("before", "after"), EDITS)
def test_a_file_edited_after_its_import_is_noticed(
    loaded: ModuleType, before: str, after: str
) -> None:
    file = file_of(loaded)
    check_not_edited("loaded_one", read_source(file))
    time.sleep(0.02)
    assert before in LOADED
    file.write_text(LOADED.replace(before, after))
    with pytest.raises(ProtofedError, match="was edited after it was imported"):
        check_not_edited("loaded_one", read_source(file))
    importlib.reload(loaded)
    check_not_edited("loaded_one", read_source(file))


def test_a_comment_after_the_import_is_no_edit(loaded: ModuleType) -> None:
    file = file_of(loaded)
    check_not_edited("loaded_one", read_source(file))
    time.sleep(0.02)
    file.write_text(f"# a comment\n{LOADED}")
    check_not_edited("loaded_one", read_source(file))


def test_a_file_that_is_not_utf8_is_read_as_python_reads_it(tmp_path: Path) -> None:
    plain = source(tmp_path, "x = 1\n")
    (tmp_path / "bom.py").write_bytes(b"\xef\xbb\xbfx = 1\n")
    (tmp_path / "latin.py").write_bytes(
        "# -*- coding: latin-1 -*-\nx = 1  # \xe4\n".encode("latin-1")
    )
    for name in ("bom.py", "latin.py"):
        assert read_source(tmp_path / name).digest == plain.digest
    (tmp_path / "broken.py").write_text("def (:")
    with pytest.raises(ProtofedError, match="is not valid Python"):
        read_source(tmp_path / "broken.py")


def test_finding_a_module_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lazypack" / "deep").mkdir(parents=True)
    for folder in ("lazypack", "lazypack/deep"):
        (tmp_path / folder / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "lazypack" / "deep" / "tools.py").write_text("")
    importlib.invalidate_caches()
    found = find_module("lazypack.deep.tools")
    assert found is not None
    assert found.label == "lazypack/deep/tools.py"
    assert [one.label for one in found.parents()] == [
        "lazypack/deep/__init__.py",
        "lazypack/__init__.py",
    ]
    assert find_module("lazypack.deep.tools.show") is None
    assert "lazypack" not in sys.modules
