"""What the tests of methods share: some rounds on the toy federation."""

from __future__ import annotations

from protofed.core.method import AnyMethod
from protofed.core.model import Model
from protofed.core.site import Step
from protofed.engines.local import LocalEngine
from protofed.engines.rounds import play_round
from protofed.testing import toy_sites


def after(method: AnyMethod, rounds: int = 2, planned: int | None = None) -> Model:
    """The server's model after some rounds, of a run that was planned for so many."""
    site, sites = toy_sites(method)
    engine, server = LocalEngine(method, sites), method.init_server(site)
    for number in range(rounds):
        step = Step(number, rounds if planned is None else planned)
        server = play_round(method, site, server, engine, sorted(sites), step)
    model: Model = server.model
    return model
