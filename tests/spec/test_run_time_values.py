"""Values that a program puts into a user's module count as other code, and stay in its process."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from protofed.analysis.run_process import can_travel
from protofed.core import method as core_method
from protofed.core import model as core_model
from protofed.core import training
from protofed.errors import ProtofedError
from protofed.experiment.runner import run
from protofed.experiment.stale_code import StaleRunError, check_unchanged
from protofed.methods import METHODS, fpl
from protofed.methods.fedavg import FedAvg
from protofed.ops.finch import finch_clusters
from protofed.spec.code_fingerprint import changed_files, code_digests, set_at_run_time
from protofed.spec.experiment_spec import Experiment
from protofed.spec.method_lookup import find_method_class
from protofed.spec.run_time_values import changed_values
from protofed.spec.source_files import read_source
from protofed.spec.spec_parser import parse_experiment

HELPER = """
def smooth(loss):
    return loss
"""
WARM = '''
import math
from dataclasses import dataclass as plain
from enum import IntEnum
from typing import ClassVar
import torch.nn.functional as F
from protofed.api import *
from warm_helper import smooth

T = 1.0
EXTRA = {"scale": 1.0, "names": ["a", "b"]}
CACHE = {}
COMPUTED = math.sqrt(2)
if T > 0:
    BRANCH = 1
BRANCH = 2


def weigh(loss):
    return loss / T


class Level(IntEnum):
    LOW = 1


@plain
class Setting:
    level = 3

    def twice(self):
        return 2 * self.level


@dataclass(frozen=True)
class Warm(Method):
    """Cross entropy by a temperature."""

    info: ClassVar[MethodInfo] = MethodInfo(label="Warm", title="A test")
    weight: ClassVar[float] = 1.0
    power: float = 1.0

    def loss(self, site, received, state, model, batch):
        CACHE["seen"] = batch.number
        task = F.cross_entropy(site.forward_train(model, batch.x).logits, batch.y)
        return weigh(smooth(task)) * self.weight * EXTRA["scale"]
'''
CHANGES: dict[str, tuple[Callable[[ModuleType], object], str]] = {
    "a constant": (lambda m: setattr(m, "T", 0.1), "T"),
    "another type": (lambda m: setattr(m, "T", 1), "T"),
    "an entry of a dict": (lambda m: m.EXTRA.update(scale=30.0), "EXTRA"),
    "an item of a list": (lambda m: m.EXTRA["names"].append("c"), "EXTRA"),
    "a class variable": (lambda m: setattr(m.Warm, "weight", 30.0), "Warm.weight"),
    "an attribute of a class": (lambda m: setattr(m.Setting, "level", 4), "Setting.level"),
    "a function": (lambda m: setattr(m, "weigh", lambda loss: loss * 0), "weigh"),
    "a function of a class": (lambda m: setattr(m.Setting, "twice", lambda s: 0), "Setting.twice"),
    "an imported function": (lambda m: setattr(m, "smooth", lambda loss: loss * 0), "smooth"),
    "something deleted": (lambda m: delattr(m, "T"), "T"),
}
UNCHANGED: dict[str, Callable[[ModuleType], object]] = {
    "nothing": lambda m: None,
    "a cache is filled": lambda m: m.CACHE.update(a=1),
    "the same value again": lambda m: setattr(m, "T", 1.0),
    "another name": lambda m: setattr(m, "OTHER", 3),
}


@pytest.fixture
def warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, imported from a file of its own."""
    (tmp_path / "warm_method.py").write_text(WARM)
    (tmp_path / "warm_helper.py").write_text(HELPER)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("warm_method")
    for name in ("warm_method", "warm_helper"):
        sys.modules.pop(name, None)


def told(module: ModuleType) -> dict[str, str | None]:
    return changed_values(vars(module), read_source(Path(str(module.__file__)).resolve()))


@pytest.mark.parametrize("case", CHANGES)
def test_a_change_is_told_with_its_name(case: str, warm: ModuleType) -> None:
    change, name = CHANGES[case]
    change(warm)
    assert list(told(warm)) == [name]


@pytest.mark.parametrize("case", UNCHANGED)
def test_what_is_as_the_file_says_is_not_told(case: str, warm: ModuleType) -> None:
    UNCHANGED[case](warm)
    assert told(warm) == {}


def experiment(module: ModuleType) -> Experiment:
    raw: dict[str, Any] = {
        "data": {"name": "digits-mini", "domains": ["optical", "print"], "side": 8},
        "partition": {"kind": "shares", "clients": 2, "samples": 9},
        "training": {"epochs": 1, "batch": 4},
        "net": "moon-mlp",
        "rounds": 1,
    }
    return parse_experiment(raw).model_copy(update={"method": module.Warm()})


def other_merge(self: Any, site: Any, server: Any, *rest: Any) -> Any:
    return server


HIDDEN: dict[str, tuple[Callable[[pytest.MonkeyPatch, Any], object], str]] = {
    "a hook of another file that the class lacks": (
        lambda patch, m: patch.setattr(type(m), "merge", other_merge, raising=False),
        "warm_method:Warm.merge",
    ),
    "a hook of its own file that the class lacks": (
        lambda patch, m: patch.setattr(
            type(m), "merge", sys.modules["warm_method"].weigh, raising=False
        ),
        "warm_method:Warm.merge",
    ),
    "a value that the class lacks": (
        lambda patch, m: patch.setattr(type(m), "extra", 3, raising=False),
        "warm_method:Warm.extra",
    ),
    "a hook of one object": (
        lambda patch, m: object.__setattr__(m, "loss", other_merge),
        "Warm(), loss",
    ),
    "the training of the package": (
        lambda patch, m: patch.setattr(
            core_method, "fit_model", lambda *words: training.fit_model(*words)
        ),
        "protofed/core/method.py, fit_model",
    ),
    "a class of the package": (
        lambda patch, m: patch.setattr(core_model.Net, "forward", other_merge),
        "protofed/core/model.py, Net.forward",
    ),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_what_no_file_says_is_told(
    case: str, warm: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, name = HIDDEN[case]
    one = experiment(warm)
    before = code_digests(one)
    put(monkeypatch, one.method)
    now = code_digests(one)
    assert changed_files(before, now) == [f"{name} (set at run time)"]
    assert set_at_run_time(now) == [name]


def test_an_operation_that_was_replaced_under_a_method_is_told(
    warm: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = experiment(warm).model_copy(update={"method": fpl.FPL()})
    before = code_digests(one)
    assert set_at_run_time(before) == []

    @functools.wraps(finch_clusters)
    def patched(*words: Any) -> Any:
        return finch_clusters(*words)

    monkeypatch.setattr(fpl, "finch_clusters", patched)
    told_names = changed_files(before, code_digests(one))
    assert told_names == ["protofed/methods/fpl.py, finch_clusters (set at run time)"]


def test_an_older_file_moved_over_a_loaded_one_is_told(warm: ModuleType, tmp_path: Path) -> None:
    one = experiment(warm)
    older = tmp_path / "older.py"
    older.write_text(WARM.replace("T = 1.0", "T = 9.0"))
    os.utime(older, (1e9, 1e9))
    older.replace(tmp_path / "warm_method.py")
    with pytest.raises(ProtofedError, match="was edited after it was imported"):
        code_digests(one)


@pytest.mark.parametrize("name", METHODS)
def test_nothing_of_our_own_is_told(name: str, warm: ModuleType) -> None:
    one = experiment(warm).model_copy(update={"method": find_method_class(name)()})
    assert set_at_run_time(code_digests(one)) == []


def test_no_old_number_comes_back_and_the_same_value_reads_its_own(
    warm: ModuleType, tmp_path: Path
) -> None:
    one = experiment(warm)
    before = run(one, tmp_path / "a", workers=0)
    setattr(warm, "T", 0.02)  # noqa: B010 - a module has no such attribute for the type checker
    with pytest.raises(
        StaleRunError, match=r"changed since: warm_method\.py, T \(set at run time\)"
    ):
        run(one, tmp_path / "a", workers=0)
    after = run(one, tmp_path / "b", workers=0)
    assert run(one, tmp_path / "b", workers=0).history == after.history
    setattr(warm, "T", 1.0)  # noqa: B010
    assert run(one, tmp_path / "a", workers=0).history == before.history
    with pytest.raises(StaleRunError):
        run(one, tmp_path / "b", workers=0)


def test_a_replaced_function_is_never_taken_for_the_same(warm: ModuleType, tmp_path: Path) -> None:
    one = experiment(warm)
    setattr(warm, "weigh", lambda loss: loss * 2)  # noqa: B010
    run(one, tmp_path / "a", workers=0)
    followed = [one]
    assert run(one, tmp_path / "a", lambda report: followed.append(one), workers=0)
    assert len(followed) > 1, "it was run again"


def test_other_processes_do_not_run_it(warm: ModuleType, tmp_path: Path) -> None:
    one = experiment(warm)
    assert can_travel(one)
    assert can_travel(one.model_copy(update={"method": FedAvg()}))
    before = code_digests(one)
    assert set_at_run_time(before) == []
    check_unchanged(one, before)
    warm.EXTRA["scale"] = 3.0
    assert set_at_run_time(code_digests(one)) == ["warm_method.py, EXTRA"]
    assert not can_travel(one)
    with pytest.raises(ProtofedError, match=r"set at run time: warm_method\.py, EXTRA"):
        check_unchanged(one, before)


@pytest.mark.long
def test_workers_give_the_bits_of_this_process(warm: ModuleType, tmp_path: Path) -> None:
    one = experiment(warm)
    setattr(warm, "T", 0.02)  # noqa: B010 - a module has no such attribute for the type checker
    alone = run(one, tmp_path / "a", workers=0)
    told_lines: list[str] = []
    two = run(one, tmp_path / "b", lambda report: told_lines.extend(report.notices), workers=2)
    assert two.history == alone.history
    assert any("one process does it all" in line for line in told_lines)
