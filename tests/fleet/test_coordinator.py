"""Who is there when a run starts or goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protofed.deploy import coordinator
from protofed.deploy.coordinator import SubmittedJob, gather_descriptions
from protofed.deploy.policy import SitePolicy
from protofed.deploy.site_worker import RequestHandler
from protofed.errors import ProtofedError
from protofed.experiment.run_records import FEDERATION_FILE
from protofed.runtime.atomic_io import atomic_write_json
from tests.fleet.desks import SITES, Known, desks, job, offers


def asked(post: Known, work: SubmittedJob) -> list[str]:
    carrier: Any = post
    return [offer.site for offer in gather_descriptions(carrier, work, lambda words: None)]


def test_all_who_must_be_there_are_asked(images: Path, tmp_path: Path) -> None:
    post = Known(desks(images, tmp_path))
    assert asked(post, job(tmp_path)) == [*SITES]
    assert asked(post, job(tmp_path, sites=SITES[:2])) == [*SITES[:2]]
    assert asked(post, job(tmp_path, sites=(), count=3)) == [*SITES]


def test_who_is_missing_is_named(images: Path, tmp_path: Path) -> None:
    post = Known(desks(images, tmp_path))
    post.here = SITES[:2]
    with pytest.raises(ProtofedError, match=r"missing: site-c"):
        asked(post, job(tmp_path))
    with pytest.raises(ProtofedError, match="3 are needed"):
        asked(post, job(tmp_path, sites=(), count=3))


def test_a_run_goes_on_without_a_site_that_has_gone(images: Path, tmp_path: Path) -> None:
    post = Known(desks(images, tmp_path))
    (tmp_path / "out").mkdir()
    atomic_write_json(tmp_path / "out" / FEDERATION_FILE, {"run": "", "offers": offers(post.desks)})
    post.here = SITES[:2]
    assert asked(post, job(tmp_path, resume=True)) == [*SITES]
    post.here = ()
    with pytest.raises(ProtofedError, match="missing"):
        asked(post, job(tmp_path, resume=True))


class Coming(Known):
    """Sites that come one after the other, and say their names later still."""

    def online(self) -> dict[str, int]:
        """One more at each look."""
        self.here = SITES[: len(self.here) + 1]
        self.nameless = len(SITES) - len(self.here)
        return super().online()


def test_who_is_waited_for_is_told_when_that_changes(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "PAUSE", 0.0)
    post: Any = Coming(desks(images, tmp_path))
    post.here = ()
    told: list[str] = []
    gather_descriptions(post, job(tmp_path, wait=60), told.append)
    assert told == [
        "waiting for site-b, site-c (there: site-a; 2 more are connected but have not said their "
        "names yet)",
        "waiting for site-c (there: site-a, site-b; 1 more is connected but has not said its name "
        "yet)",
        "asking site-a, site-b, site-c what they hold",
    ]


def test_a_site_that_has_not_said_its_name_is_counted(images: Path, tmp_path: Path) -> None:
    post = Known(desks(images, tmp_path))
    post.here, post.nameless = (), 1
    with pytest.raises(ProtofedError, match="there: none; 1 more is connected but has not said"):
        asked(post, job(tmp_path))


def test_waiting_and_describing_share_the_time(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "LEAST_SECONDS", 0.0)
    post = Known(desks(images, tmp_path))
    asked(post, job(tmp_path, wait=60))
    assert 55 < post.seconds[-1] <= 60
    (tmp_path / "out").mkdir()
    atomic_write_json(tmp_path / "out" / FEDERATION_FILE, {"run": "", "offers": offers(post.desks)})
    post.here = SITES[:2]
    asked(post, job(tmp_path, wait=2, resume=True))
    assert post.seconds[-1] <= 1  # the other half went to a site that may never come


class Strict(SitePolicy):
    """A site that wants nothing."""

    def allows(self, method: Any, rounds: int) -> str | None:
        """Nothing."""
        return "not here"


def test_a_site_whose_policy_says_no_stops_the_run_before_it_starts(
    images: Path, tmp_path: Path
) -> None:
    post = Known(desks(images, tmp_path))
    strict = RequestHandler(
        "site-b", images / "site-b", tmp_path / "strict", Strict(min_examples=1)
    )
    post.desks = {**post.desks, "site-b": strict}
    with pytest.raises(ProtofedError, match=r"site-b: not here"):
        asked(post, job(tmp_path))
