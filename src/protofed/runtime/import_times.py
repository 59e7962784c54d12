"""When modules were imported, so that a file which was edited since can be told.

Importing this module is enough: from then on every import is noted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

_began = time.time()
_times: dict[str, float] = {}
_reloads: dict[str, float] = {}


class ImportClock(MetaPathFinder):
    """A finder that finds nothing: it notes when a module is looked for, just before it is read."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        _times[name] = time.time()
        if name in sys.modules:
            _reloads[name] = _times[name]
        return None


def imported_at(module: str) -> float:
    """When a module was last imported or reloaded, in seconds; for older ones, when we began."""
    return _times.get(module, _began)


def may_be_older(module: str, changed: float) -> bool:
    """Whether a module without a noted import may be older than its file, which has `changed`.

    A script that was run by another, as notebooks do, is not imported, so nobody knows when.
    """
    return module not in _times and changed > _began


def reloaded_at(module: str) -> float:
    """When a module was last imported anew although it was there already; 0 if never."""
    return _reloads.get(module, 0.0)


sys.meta_path.insert(0, ImportClock())
