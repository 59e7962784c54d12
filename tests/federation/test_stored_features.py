"""Features that are computed once are those of the encoder, for every client and every view."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from protofed.core.rng import rng
from protofed.core.site import SERVER
from protofed.data.npz_store import cache_folder
from protofed.experiment.runner import run
from protofed.federation import stored_features
from protofed.federation.build import build_federation
from protofed.federation.stored_features import FeatureViews, embed_data, with_stored_features
from protofed.spec.experiment_spec import ArrayData, Experiment

Make = Callable[..., Experiment]
FROZEN: dict[str, Any] = {"net": "moon-cnn", "train": "neck", "feature_views": 3}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))


def test_views_are_the_encoders_output_for_the_image_and_for_augmented_ones(tiny: Make) -> None:
    made = tiny(**FROZEN)
    plain = build_federation(made)
    stored = with_stored_features(made, plain)
    assert stored.everyone.keys() == plain.everyone.keys()
    for client, site in plain.everyone.items():
        images, features = site.train.images, stored.everyone[client].train.images
        assert features.shape == (len(images), 3, 84)
        draw = rng(made.seed, "site", client, "views")
        inputs = (
            [site.pixels.normalize(images)] + [site.pixels.augment(images, draw) for _ in range(2)]
            if len(images)
            else []
        )
        for view, x in enumerate(inputs):
            with torch.no_grad():
                assert torch.equal(features[:, view], site.net.eval().encode(x))
        if len(images):
            assert not torch.equal(features[:, 0], features[:, 1])
        assert torch.equal(stored.everyone[client].train.labels, site.train.labels)
    for name, test in plain.tests.items():
        x = plain.server.pixels.normalize(test.images)
        with torch.no_grad():
            found = torch.cat([plain.server.net.eval().encode(some) for some in x.split(64)])
        assert torch.equal(stored.tests[name].images[:, 0], found)


def test_training_draws_every_view_and_scoring_takes_the_first() -> None:
    images = torch.arange(4.0).view(1, 4, 1).expand(4000, 4, 2)
    views = FeatureViews()
    drawn = views.augment(images, torch.Generator().manual_seed(1))
    assert drawn.shape == (4000, 2)
    counts = drawn[:, 0].long().bincount(minlength=4)
    assert counts.min() > 900
    assert torch.equal(views.normalize(images), images[:, 0])


def test_without_augmentation_a_run_on_features_is_a_run_on_images(
    tiny: Make, tmp_path: Path
) -> None:
    data = {"name": "digits-mini", "domains": ["optical", "print"], "side": 16}
    still = {"data": {**data, "pad": 0, "flip": False}, "net": "moon-cnn", "train": "neck"}
    results = [
        run(tiny(**still, feature_views=views, method="fedproto"), tmp_path / str(views), workers=0)
        for views in (0, 1)
    ]
    first, second = (result.last.domains for result in results)
    for name, score in first.items():
        assert score is not None
        assert second[name] == pytest.approx(score, abs=1)


def test_workers_change_no_bit(tiny: Make, tmp_path: Path) -> None:
    made = tiny(**FROZEN, rounds=2)
    for workers in (0, 2):
        run(made, tmp_path / str(workers), workers=workers)
    texts = [(tmp_path / str(w) / "scores.jsonl").read_text() for w in (0, 2)]
    assert texts[0] == texts[1]


def test_features_are_computed_once_for_all_methods_and_seeds_without_views(
    tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    compute = stored_features.FrozenEncoder._compute

    def counted(self: Any, images: torch.Tensor, *more: Any) -> torch.Tensor:
        computed.append(len(images))
        return compute(self, images, *more)

    monkeypatch.setattr(stored_features.FrozenEncoder, "_compute", counted)
    one = {**FROZEN, "feature_views": 1}
    first = with_stored_features(tiny(**one), build_federation(tiny(**one)))
    count = len(computed)
    assert count > 0
    other = tiny(**one, method="fpl")
    second = with_stored_features(other, build_federation(other))
    assert len(computed) == count
    assert all(
        torch.equal(first.sites[c].train.images, second.sites[c].train.images) for c in first.sites
    )
    changed = tiny(**{**one, "precision": "float32", "threads": 2})
    with_stored_features(changed, build_federation(changed))
    assert len(computed) > count


def test_a_damaged_or_missing_cache_only_costs_time(
    tiny: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tiny(**FROZEN)
    first = with_stored_features(made, build_federation(made))
    files = sorted((cache_folder() / "features").glob("*.npz"))
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:50])
    second = with_stored_features(made, build_federation(made))
    monkeypatch.setenv("PROTOFED_CACHE", os.devnull)
    third = with_stored_features(made, build_federation(made))
    for client, site in first.sites.items():
        for other in (second, third):
            assert torch.equal(site.train.images, other.sites[client].train.images)


def test_the_server_holds_no_features_but_the_public_ones(tiny: Make) -> None:
    made = tiny(**FROZEN, method="fedmd", public={"samples": 8})
    stored = with_stored_features(made, build_federation(made))
    assert len(stored.everyone[SERVER].train) == 0
    assert stored.server.public.shape == (8, 1, 84)


def test_embedded_data_are_the_same_examples_as_rows(tiny: Make, tmp_path: Path) -> None:
    made = tiny(**{**FROZEN, "feature_views": 1})
    pack = embed_data(made, tmp_path / "rows")
    rows = Experiment(data=ArrayData(name=str(pack.place)), rounds=1)
    assert rows.data.shape == (84,)  # type: ignore[union-attr]
    ours, theirs = build_federation(made), build_federation(rows)
    assert theirs.benchmark.classes == ours.benchmark.classes
    for name, test in theirs.tests.items():
        image_test = ours.tests[name]
        assert torch.equal(test.labels, image_test.labels)
        x = ours.server.pixels.normalize(image_test.images[:9])
        with torch.no_grad():
            wanted = ours.server.net.eval().encode(x)
        assert torch.allclose(test.images[:9], wanted, atol=1e-5)
    result = run(replace_rounds(rows), tmp_path / "run", workers=0)
    assert result.last.mean is not None


def replace_rounds(made: Experiment) -> Experiment:
    return made.model_copy(update={"training": replace(made.training, epochs=1)})
