from __future__ import annotations

import pytest

from protofed.methods import METHODS
from protofed.testing import check_method


@pytest.mark.parametrize("name", METHODS)
def test_it_holds_the_contract(name: str) -> None:
    check_method(METHODS[name]())
