from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from protofed.errors import ProtofedError
from protofed.experiment.runner import run
from protofed.federation import build
from protofed.federation.build import build_federation
from protofed.methods import METHODS
from protofed.spec.experiment_spec import Experiment
from protofed.spec.spec_parser import parse_experiment
from tests.experiment.conftest import quick

Make = Callable[..., Experiment]
TWINS = ["seproto-cnn", "seproto-cnn2"]
FOUR = {"kind": "shares", "clients": 4, "samples": 9}
APART = {"fedproto": False, "fedseproto": False, "fedtgp": False}  # param_avg


def test_clients_take_the_nets_in_turn(tiny: Make) -> None:
    federation = build_federation(tiny(net=TWINS, method="local"))
    convolutions = [
        sum(isinstance(layer, torch.nn.Conv2d) for layer in site.net.modules())
        for site in federation.sites.values()
    ]
    assert convolutions == [3, 2, 3]


def test_one_net_in_a_list_is_the_net_of_all(tiny: Make) -> None:
    federation = build_federation(tiny(net=["moon-mlp"]))
    assert {id(site.net) for site in federation.sites.values()} == {id(federation.server.net)}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_that_needs_equal_nets_says_so_before_anything_starts(
    name: str, tiny: Make, tmp_path: Path
) -> None:
    experiment = tiny(net=TWINS, method=name)
    if "equal nets" in METHODS[name]().needs:
        with pytest.raises(ProtofedError) as caught:
            run(experiment, tmp_path / "a")
        for part in (METHODS[name].info.label, *TWINS, "same net", "local"):
            assert part in str(caught.value)
        assert not (tmp_path / "a").exists()
    else:
        build_federation(experiment)


def test_features_of_different_width_are_refused_where_prototypes_meet(tiny: Make) -> None:
    for name in ("fedproto", "fedseproto", "fedtgp"):
        method = {"name": name, "param_avg": False}
        build_federation(tiny(net=TWINS, method=method))
        if name != "fedseproto":  # there the features are as wide as the encoder, 512 in both
            with pytest.raises(ProtofedError, match="lsa-cnn: 128, seproto-cnn: 512"):
                build_federation(tiny(net=["lsa-cnn", "seproto-cnn"], method=method))


@pytest.mark.parametrize("name", [*APART, "fedgh", "fedmd", "local"])
def test_methods_for_different_nets_score_every_client_on_every_domain(
    name: str, tiny: Make, tmp_path: Path
) -> None:
    method = {"name": name, **({"param_avg": False} if name in APART else {})}
    method |= quick(name)
    result = run(tiny(net=TWINS, method=method, rounds=2), tmp_path / "a")
    assert result.clients is not None
    assert {client: set(row) for client, row in result.clients.items()} == {
        str(client): {"optical", "print"} for client in range(3)
    }
    for domain, mean in result.last.domains.items():
        each = [row[domain] or 0.0 for row in result.clients.values()]
        assert mean == pytest.approx(sum(each) / 3)


def test_public_images_are_training_images_of_no_client(tiny: Make, tmp_path: Path) -> None:
    experiment = tiny(method="fedmd", public={"samples": 40})
    federation = build_federation(experiment)
    trains = {domain.name: domain.train for domain in federation.benchmark.domains}
    held = {name: set[int]() for name in trains}
    for part in federation.parts:
        held[part.domain] |= set(part.rows.tolist())
    for name, rows in federation.public.items():
        assert len(rows) == 20
        assert not held[name] & set(rows.tolist())
    images = torch.cat([trains[name].images[rows] for name, rows in federation.public.items()])
    for site in (federation.server, *federation.sites.values()):
        assert torch.equal(site.public, images)
    result = run(experiment, tmp_path / "a")
    assert any(
        "public images" in note.text and "optical 20" in note.text for note in result.notices
    )
    rows_written = json.loads((tmp_path / "a" / "public.json").read_text())
    assert rows_written == {name: rows.tolist() for name, rows in federation.public.items()}
    spec = json.loads((tmp_path / "a" / "spec.json").read_text())
    assert spec["public"] == {"samples": 40}


def test_public_images_come_with_a_method_that_needs_them_and_only_there(tiny: Make) -> None:
    assert tiny(method="fedmd").to_dict()["public"] == {"samples": 1000}
    assert "public" not in tiny(method="fedavg").to_dict()
    with pytest.raises(ProtofedError, match="public: not used by FedAvg: leave it out"):
        parse_experiment({"method": "fedavg", "public": {"samples": 10}})


def test_a_domain_gives_what_is_left_and_none_left_is_an_error(tiny: Make) -> None:
    sizes = {
        name: len(rows) for name, rows in build_federation(tiny(method="fedmd")).public.items()
    }  # far more are left than 500 a domain
    assert sizes == {"optical": 500, "print": 500}
    whole = {"kind": "shares", "clients": {"optical": 1, "print": 1}, "share": 1.0}
    with pytest.raises(ProtofedError, match="none are left"):
        build_federation(tiny(method="fedmd", partition=whole))


def test_grey_and_coloured_public_images_lie_in_one_tensor(tiny: Make) -> None:
    federation = build_federation(
        tiny(method="fedmd", data="digits-mini", partition=FOUR, public={"samples": 8})
    )
    trains = {domain.name: domain.train.images for domain in federation.benchmark.domains}
    assert {images.shape[-1] for images in trains.values()} == {1, 3}
    parts = federation.server.public.split(2)
    for (name, rows), images in zip(federation.public.items(), parts, strict=True):
        assert torch.equal(images, trains[name][rows].expand(-1, -1, -1, 3))


def test_validation_images_are_held_out_from_the_clients_and_scored_in_place_of_the_tests(
    tiny: Make,
) -> None:
    whole, part = build_federation(tiny()), build_federation(tiny(validation=0.33))
    for client, site in whole.sites.items():
        mine = {bytes(image.numpy()) for image in site.train.images}
        kept = {bytes(image.numpy()) for image in part.sites[client].train.images}
        assert kept < mine
        assert len(part.sites[client].train) == 6  # of 9
    held = {name: len(test) for name, test in part.tests.items()}
    assert held == {"optical": 6, "print": 3}  # three of each client
    trains = torch.cat([site.train.images for site in whole.sites.values()])
    scored = torch.cat([test.images for test in part.tests.values()])
    every = {bytes(image.numpy()) for image in trains}
    assert {bytes(image.numpy()) for image in scored} < every
    assert any("not on the test images" in notice.text for notice in part.notices)
    assert "validation" not in tiny().to_dict()


def pictures(images: torch.Tensor) -> set[bytes]:
    return {bytes(image.numpy()) for image in images}


def test_unused_validation_images_are_nobodys_and_cost_no_client_an_image(tiny: Make) -> None:
    shown = {"method": "fedmd", "public": {"samples": 40}}
    whole, part = (build_federation(tiny(**shown, **v)) for v in ({}, {"validation": "unused"}))
    for client, site in whole.sites.items():
        assert torch.equal(site.train.images, part.sites[client].train.images)
    used = pictures(part.server.public)
    for site in part.sites.values():
        used |= pictures(site.train.images)
    for domain in part.benchmark.domains:
        scored = pictures(part.tests[domain.name].images)
        assert scored <= pictures(domain.train.images) - used
        assert len(scored) > 100  # nearly all, as digits-mini is small
    assert any("that no client holds, not on the test images" in n.text for n in part.notices)


def test_unused_validation_images_are_a_draw_of_at_most_so_many(
    tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "UNUSED_MOST", 7)
    tests = [build_federation(tiny(validation="unused", seed=seed)).tests for seed in (0, 0, 1)]
    assert {len(test) for test in tests[0].values()} == {7}
    assert [torch.equal(tests[0]["print"].images, t["print"].images) for t in tests] == [1, 1, 0]


def test_unused_images_are_needed_in_every_domain(tiny: Make) -> None:
    whole = {"kind": "shares", "clients": {"optical": 1, "print": 1}, "share": 1.0}
    with pytest.raises(ProtofedError, match="all training images of optical, print"):
        build_federation(tiny(partition=whole, validation="unused"))
    for wrong in ("used", 0.0, 1.0, True):
        with pytest.raises(
            ProtofedError, match=r"a share between 0 and 1, such as 0\.2, or unused"
        ):
            tiny(validation=wrong)
    with pytest.raises(ProtofedError, match="a site holds all its images"):
        tiny(data={"at": "sites", "domains": ["a"], "revision": "1"}, validation="unused")


def test_held_out_images_are_never_public(tiny: Make) -> None:
    """A method must not train on what it is scored with."""
    whole = {"kind": "shares", "clients": {"optical": 1, "print": 1}, "share": 1.0}
    with pytest.raises(ProtofedError, match="none are left"):
        build_federation(tiny(method="fedmd", partition=whole, validation=0.2))
    federation = build_federation(tiny(method="fedmd", validation=0.4, public={"samples": 400}))
    shown = {bytes(image.numpy()) for image in federation.server.public}
    for test in federation.tests.values():
        assert not shown & {bytes(image.numpy()) for image in test.images}


def test_a_domain_without_clients_has_no_score_on_held_out_images(
    tiny: Make, tmp_path: Path
) -> None:
    only = {"kind": "shares", "clients": {"optical": 2, "print": 0}, "samples": 9}
    experiment = tiny(method=quick("fedgh"), partition=only, validation=0.4, rounds=1)
    result = run(experiment, tmp_path / "a")
    assert list(result.last.domains) == ["optical"]
    assert "global head" in result.opinions


@pytest.mark.parametrize(("share", "held"), [(0.01, 1), (0.99, 8)])
def test_one_image_at_least_is_held_out_and_one_is_left(
    share: float, held: int, tiny: Make
) -> None:
    federation = build_federation(tiny(validation=share))
    assert {len(site.train) for site in federation.sites.values()} == {9 - held}
    single = {"kind": "shares", "clients": 2, "samples": 1}
    with pytest.raises(ProtofedError, match="validation: no client has two images"):
        build_federation(tiny(validation=share, partition=single))


def test_public_images_must_be_there_for_who_needs_them_and_one_for_each_domain(
    tiny: Make,
) -> None:
    with pytest.raises(ProtofedError, match="public: needed by FedMD"):
        tiny(method="fedmd", public=None)
    with pytest.raises(ProtofedError, match=r"public\.samples: at least one for each of the 2"):
        build_federation(tiny(method="fedmd", public={"samples": 1}))


def test_a_domain_with_few_images_left_gives_what_it_has(tiny: Make) -> None:
    data = build_federation(tiny()).benchmark
    (size,) = {len(domain.train) for domain in data.domains}
    most = {"kind": "shares", "clients": 2, "samples": {"optical": size - 3, "print": 9}}
    federation = build_federation(tiny(method="fedmd", partition=most, public={"samples": 40}))
    assert {name: len(rows) for name, rows in federation.public.items()} == {
        "optical": 3,
        "print": 20,
    }


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_precision_reaches_all_nets(tiny: Make, precision: str) -> None:
    federation = build_federation(tiny(precision=precision, method="fedseproto"))
    assert {site.net.precision for site in federation.everyone.values()} == {precision}
