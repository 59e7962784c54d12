"""Suggested specs: each rule on counts made for it, and every suggestion a spec that can be run."""

from __future__ import annotations

import tomllib

import pytest

from protofed.data.domain_shift import AccuracyDrop, DomainShift
from protofed.data.image_traits import ImageTraits
from protofed.data.spec_suggestion import (
    DataFacts,
    conditions,
    format_suggestion,
    suggest_fields,
    suggested_side,
)
from protofed.spec.spec_parser import parse_experiment

EVEN = {"a": {"x": (200, 50), "y": (200, 50)}, "b": {"x": (200, 50), "y": (200, 50)}}
LARGE_AND_SMALL = {"a": {"x": (400, 50), "y": (400, 50)}, "b": {"x": (40, 10), "y": (40, 10)}}
RARE = {"a": {"x": (200, 50), "y": (10, 2)}, "b": {"x": (200, 50), "y": (200, 50)}}
CELLS, PHOTOS = ImageTraits(0.05, 1.0), ImageTraits(0.8, 1.0)


def facts(counts: object = EVEN, **more: object) -> DataFacts:
    return DataFacts("digits-mini", "some images", counts, None, **more)  # type: ignore[arg-type]


def values(of: DataFacts) -> dict[str, object]:
    return {field.path: field.value for field in suggest_fields(of)}


def shift(points: float) -> DomainShift:
    return DomainShift({}, [AccuracyDrop("a", "b", points, 1.0)], 100)


def test_even_data_get_no_more_than_they_need() -> None:
    found = values(facts(side=32))
    assert "weights" not in found
    assert "training.sampling" not in found
    assert not [path for path in found if path.startswith("augment.")]
    assert (found["training.batch"], found["rounds"]) == (64, 60)  # 35 steps a round


def test_places_of_unlike_size_are_weighted_by_the_root() -> None:
    found = facts(LARGE_AND_SMALL, side=32)
    assert values(found)["weights"] == "sqrt"
    assert values(found)["training.batch"] == 16
    assert conditions(found) == ("domain shift", "unequal sizes")


def test_rare_classes_are_drawn_as_often() -> None:
    found = {field.path: field for field in suggest_fields(facts(RARE, side=32))}
    assert found["training.sampling"].value == "balanced"
    assert found["training.sampling"].reason == "a has 200 of x and 10 of y"


def test_only_what_has_no_up_is_turned_and_stained() -> None:
    cells, photos = (values(facts(side=32, traits=traits)) for traits in (CELLS, PHOTOS))
    assert (cells["augment.rotate"], cells["augment.stain"]) == (180, 0.2)
    assert "augment.rotate" not in photos
    assert "augment.stain" not in photos
    assert cells["augment.jitter"] == photos["augment.jitter"] == 0.3
    assert "augment.jitter" not in values(facts(side=32, traits=ImageTraits(0.05, 0.1)))


@pytest.mark.parametrize(("images", "rounds"), [(40, 60), (1200, 30), (100_000, 20)])
def test_small_data_get_more_rounds(images: int, rounds: int) -> None:
    counts = {"a": {"x": (images, 10), "y": (images, 10)}}
    assert values(facts(counts, side=32))["rounds"] == rounds


@pytest.mark.parametrize(("median", "side"), [(28, 32), (95, 32), (96, 64), (2000, 64)])
def test_the_side_follows_that_of_the_files(median: int, side: int) -> None:
    assert suggested_side(median) == side
    (field,) = [
        f for f in suggest_fields(facts(side=side, median_side=median)) if f.path == "data.side"
    ]
    assert str(median) in field.reason


def test_averaging_may_be_enough() -> None:
    assert conditions(facts(side=32)._replace(shift=shift(3.0))) == ()
    assert conditions(facts(side=32)._replace(shift=shift(30.0))) == ("domain shift",)


@pytest.mark.parametrize("counts", [EVEN, LARGE_AND_SMALL, RARE])
@pytest.mark.parametrize("traits", [None, CELLS, PHOTOS])
def test_every_suggestion_can_be_run_as_it_is(counts: object, traits: ImageTraits | None) -> None:
    names = {"a": "optical", "b": "print"}
    own = {names[domain]: classes for domain, classes in counts.items()}  # type: ignore[attr-defined]
    made = facts(own, side=32, traits=traits)
    text = format_suggestion(made)
    table = tomllib.loads(text)
    table["data"]["domains"] = ["optical", "print"]
    experiment = parse_experiment(table)
    flat = experiment.flat_fields()
    for field in suggest_fields(made):
        assert flat[field.path] == field.value, field
        assert field.reason in text


def test_rows_have_no_side_and_names_are_quoted() -> None:
    odd = {'say "hi"\x7f': {"x": (300, 10)}}
    table = tomllib.loads(format_suggestion(facts(odd)))
    assert table["partition"]["clients"] == {'say "hi"\x7f': 1}
    assert "side" not in table["data"]
    assert "rows" in format_suggestion(facts(odd))
