"""What a reader of scores must know is said once, and only where it is true."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from protofed.federation.build import build_federation
from protofed.federation.notices import left_out_note, method_warnings
from protofed.spec.experiment_spec import Experiment

Make = Callable[..., Experiment]


def test_a_plain_federation_has_nothing_to_explain(tiny: Make) -> None:
    general = build_federation(tiny()).notices
    assert not [note for note in general if note.kind == "unseen" or "skipped" in note.text]
    assert left_out_note(tiny()) == []


def test_a_domain_that_is_left_out_is_named_with_what_it_is_scored_on(tiny: Make) -> None:
    (note,) = left_out_note(tiny(leave_out="print"))
    assert str(note).startswith("print: left out of training")
    assert (note.kind, note.domain) == ("unseen", "print")
    assert "its training images" not in note.text
    (note,) = left_out_note(tiny(leave_out="print", validation=0.2))
    assert note.text.endswith("scored on its training images")


def test_a_warning_of_several_equal_nets_is_given_once(tiny: Make) -> None:
    experiment = tiny(method="fedbn")  # on a net without batch norm
    net = build_federation(experiment).server.net
    once, thrice = (method_warnings(experiment, [net] * number) for number in (1, 3))
    assert once == thrice
    assert len(once) == 1
    assert "batch norm" in once[0].text


@pytest.mark.parametrize(
    ("net", "batch", "expected"),
    [("resnet10", 1, True), ("resnet10", 4, False), ("moon-mlp", 1, False)],
)
def test_batches_of_one_matter_only_to_batch_norm(
    net: str, batch: int, expected: bool, tiny: Make
) -> None:
    experiment = tiny(net=net, training={"epochs": 1, "batch": batch})
    warned = method_warnings(experiment, [build_federation(experiment).server.net])
    assert any("batches of one" in notice.text for notice in warned) is expected


def test_classes_and_clients_without_images_are_counted_by_hand(tiny: Make) -> None:
    federation = build_federation(tiny(partition={"kind": "shares", "clients": 3, "samples": 3}))
    held = {int(label) for site in federation.sites.values() for label in site.train.labels}
    classes = federation.benchmark.classes
    missing = [name for label, name in enumerate(classes) if label not in held]
    said = [str(note) for note in federation.notices if "holds class" in note.text]
    expected = f"no client holds class {', '.join(missing)}: it cannot be learnt"
    assert said == ([expected] if missing else [])
