from __future__ import annotations

import pytest

from protofed.core.method import AnyMethod
from protofed.methods import METHODS
from protofed.methods.fedgh import FedGH
from protofed.methods.fedlsa import FedLSA
from protofed.methods.fedtgp import FedTGP
from protofed.testing import check_method

# The same code with less of it: these train at the server for many steps a round.
QUICK: dict[str, AnyMethod] = {
    "fedgh": FedGH(server_epochs=5),
    "fedlsa": FedLSA(server_epochs=10),
    "fedtgp": FedTGP(server_epochs=5),
}


@pytest.mark.parametrize("name", METHODS)
def test_it_holds_the_contract(name: str) -> None:
    check_method(QUICK.get(name) or METHODS[name]())
