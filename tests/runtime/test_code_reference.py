"""Code by name: files, modules, entry points, and every way in which a name can be wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from protofed.errors import ProtofedError
from protofed.runtime import code_reference
from protofed.runtime.code_reference import (
    OUR_CODE,
    CodeAccess,
    load_plugin,
    load_reference,
    parse_reference,
    reference_to,
)


@pytest.fixture(autouse=True)
def _forget_imports() -> Iterator[None]:
    """Leave no module and no path of a test behind."""
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path


def write(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def load(text: str) -> object:
    return load_reference(parse_reference(text))


def test_a_file_is_imported_with_its_neighbours_and_found_again(tmp_path: Path) -> None:
    write(tmp_path / "neighbour_one.py", "VALUE = 7\n")
    file = write(
        tmp_path / "mine_one.py",
        "import neighbour_one\nclass A:\n    class B: pass\ndef f(): return neighbour_one.VALUE\n",
    )
    function = load(f"{file}:f")
    assert callable(function)
    assert function() == 7
    inner = load(f"{file}:A.B")
    assert isinstance(inner, type)
    assert str(reference_to(inner)) == f"{file}:A.B"
    assert parse_reference(f"{file}:A.B").label == "mine_one:A.B"
    assert load(str(reference_to(inner))) is inner
    assert not (tmp_path / "__pycache__").exists()


def test_a_relative_path_means_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "deep" / "mine_two.py", "A = 1\n")
    monkeypatch.chdir(tmp_path)
    assert parse_reference("deep/mine_two.py:A").module == str(tmp_path / "deep" / "mine_two.py")
    assert load("deep/mine_two.py:A") == 1


def test_a_file_inside_a_package_is_imported_as_a_part_of_it(tmp_path: Path) -> None:
    write(tmp_path / "pack_three" / "__init__.py", "")
    write(tmp_path / "pack_three" / "other.py", "VALUE = 3\n")
    file = write(tmp_path / "pack_three" / "mine.py", "from .other import VALUE\n")
    assert load(f"{file}:VALUE") == 3
    assert load("pack_three.mine:VALUE") == 3


def test_a_module_is_found_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "mine_four.py", "class Mine: pass\n")
    monkeypatch.chdir(tmp_path)
    assert load("mine_four:Mine").__name__ == "Mine"  # type: ignore[attr-defined]


def test_what_a_running_script_or_prompt_defines_is_found_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "typed_in", 5, raising=False)
    assert load("__main__:typed_in") == 5
    with pytest.raises(ProtofedError, match="a notebook that has ended"):
        load("__main__:never_typed")


WRONG = {
    "mine.py": "names no code",
    ":Mine": "names no code",
    "mine.py:": "names no code",
    "mine.py:Mine:eps=0.3": "has settings, .*\n.*as `method.eps=0.3`",
    "fpl:tau=1": "has settings, .*\n.*as `method.tau=1`",
    "a b:Mine": "names no code",
    "FOLDER/none.py:Mine": "there is no file",
    "FOLDER/good_five.py:Min": "did you mean 'Mine'",
    "FOLDER/not-a-name.py:Mine": "rename it",
    "FOLDER/json.py:Mine": "rename it; the module 'json' that Python imports is",
    "FOLDER/syntax.py:Mine": r"syntax.py, line 2: cannot be imported: SyntaxError",
    "FOLDER/raises.py:Mine": r"raises.py, line 3: cannot be imported: ZeroDivisionError",
    "FOLDER/lacks.py:Mine": "ModuleNotFoundError: No module named 'no_such_one'",
    "no_such_package.module:Mine": "there is no module 'no_such_package.module'",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_name_is_told(text: str, tmp_path: Path) -> None:
    write(tmp_path / "good_five.py", "class Mine: pass\n")
    write(tmp_path / "not-a-name.py", "class Mine: pass\n")
    write(tmp_path / "json.py", "class Mine: pass\n")
    write(tmp_path / "syntax.py", "x = 1\ndef (:\n")
    write(tmp_path / "raises.py", "x = 1\n\ny = 1 / 0\n")
    write(tmp_path / "lacks.py", "import no_such_one\n")
    with pytest.raises(ProtofedError, match=WRONG[text]):
        load(text.replace("FOLDER", str(tmp_path)))


def test_python_keeps_its_own_modules(tmp_path: Path) -> None:
    write(tmp_path / "random.py", "broken = True\n")
    write(tmp_path / "mine_six.py", "import random\nA = random.random\n")
    assert callable(load(f"{tmp_path / 'mine_six.py'}:A"))


def test_access_decides_before_anything_is_imported(tmp_path: Path) -> None:
    file = write(tmp_path / "mine_seven.py", "raise SystemExit\n")
    with pytest.raises(ProtofedError, match="does not allow it"):
        OUR_CODE.check(f"{file}:Mine")
    CodeAccess(allowed=frozenset({"a.b:C"})).check("a.b:C")


def test_a_plugin_that_cannot_be_loaded_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    good = EntryPoint("good", "collections:OrderedDict", "group")
    bad = EntryPoint("bad", "no_such_module:Thing", "group")
    found = {"good": good, "bad": bad}
    monkeypatch.setattr(code_reference, "installed_plugins", lambda group: found)
    assert load_plugin("group", "good").__name__ == "OrderedDict"
    with pytest.raises(ProtofedError, match="bad: the package no_such_module:Thing offers it"):
        load_plugin("group", "bad")
