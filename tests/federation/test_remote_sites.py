"""A remote site builds the same federation from its description as a local run does."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from protofed.core import tree
from protofed.data.benchmark_info import Domain
from protofed.errors import ProtofedError
from protofed.federation import remote_sites
from protofed.federation.build import build_federation
from protofed.federation.remote_sites import (
    SiteDescription,
    agreed_classes,
    client_sizes,
    remote_clients,
    remote_federation,
    run_description,
    site_place,
    software_versions,
)
from protofed.spec.experiment_spec import Experiment

Make = Callable[..., Experiment]
ALL = {"kind": "shares", "clients": 2, "share": 1.0}


def describe(domain: Domain, classes: tuple[str, ...]) -> SiteDescription:
    """What a site would declare about a domain's images."""
    held = {name: int((domain.train.labels == n).sum()) for n, name in enumerate(classes)}
    return SiteDescription(
        *(domain.name, classes, len(domain.train), held, len(domain.test), "0" * 64)
    )


def offers(experiment: Experiment) -> list[SiteDescription]:
    benchmark = build_federation(experiment).benchmark
    return [describe(domain, benchmark.classes) for domain in benchmark.domains]


@pytest.mark.parametrize("changes", [{}, {"validation": 0.2}, {"leave_out": "print"}])
def test_declared_sizes_are_those_that_sites_then_hold(
    changes: dict[str, object], tiny: Make
) -> None:
    experiment = tiny(partition=ALL, **changes)
    benchmark, declared = build_federation(experiment).benchmark, offers(experiment)
    sizes, tests = client_sizes(experiment, declared), remote_sites.test_sizes(experiment, declared)
    names = remote_clients(experiment)
    for domain in benchmark.domains:
        place = site_place(experiment, benchmark.classes, sizes, domain)
        assert len(place.test) == tests[domain.name]
        if place.own is None:
            assert domain.name == experiment.leave_out
        else:
            assert names[place.own.id] == domain.name
            assert len(place.own.train) == sizes[place.own.id]


def test_no_image_is_both_trained_on_and_held_out(tiny: Make) -> None:
    experiment = tiny(partition=ALL, validation=0.3)
    benchmark, declared = build_federation(experiment).benchmark, offers(experiment)
    for domain in benchmark.domains:
        place = site_place(
            experiment, benchmark.classes, client_sizes(experiment, declared), domain
        )
        assert place.own is not None
        together = torch.cat([place.own.train.images, place.test.images]).flatten(1)
        order, reference = (
            t.double() @ torch.arange(t.shape[1]).double()
            for t in (together, domain.train.images.flatten(1))
        )
        assert torch.equal(order.sort().values, reference.sort().values)


def test_coordinator_and_sites_start_from_the_same_model(tiny: Make) -> None:
    experiment = tiny(partition=ALL)
    benchmark, declared = build_federation(experiment).benchmark, offers(experiment)
    coordinator = remote_federation(experiment, declared)
    described = json.loads(run_description(experiment, declared))
    assert tuple(described["classes"]) == benchmark.classes
    sizes = {int(client): size for client, size in described["sizes"].items()}
    assert sizes == coordinator.server.sizes
    for domain in benchmark.domains:
        place = site_place(experiment, described["classes"], sizes, domain)
        for site in (place.server, place.own):
            assert site is not None
            assert tree.equal(site.initial_model(), coordinator.server.initial_model())
    assert not any(len(site.train) for site in coordinator.sites.values())
    assert sum(len(test) for test in coordinator.tests.values()) == 0


def test_ids_follow_the_order_of_domains_and_skip_the_one_left_out(tiny: Make) -> None:
    domains = ["optical", "print", "syn"]
    data = {"name": "digits-mini", "domains": domains}
    assert remote_clients(tiny(data=data)) == dict(enumerate(domains))
    left = tiny(data=data, leave_out="print")
    assert remote_clients(left) == {0: "optical", 1: "syn"}


def test_sites_that_disagree_are_named_with_what_they_lack() -> None:
    one, two = (
        SiteDescription(name, classes, 5, {}, 5, "0" * 64)
        for name, classes in (("a", ("cat", "dog")), ("b", ("dog", "owl")))
    )
    assert agreed_classes([one, one]) == ("cat", "dog")
    with pytest.raises(ProtofedError) as caught:
        agreed_classes([one, two])
    for line in ("a has no folder for class owl", "b has no folder for class cat"):
        assert line in str(caught.value)


def test_other_versions_than_the_coordinator_s_are_noted(tiny: Make) -> None:
    experiment = tiny(partition=ALL)
    same, other = (
        [offer._replace(versions=versions) for offer in offers(experiment)]
        for versions in (software_versions(), (software_versions()[0], "torch 0.1"))
    )
    assert not [n for n in remote_federation(experiment, same).notices if n.kind == "site"]
    noted = [n for n in remote_federation(experiment, other).notices if n.kind == "site"]
    assert [n.text for n in noted] == ["runs torch 0.1"] * 2
