"""Fields that came later: absent at their defaults, so that older digests stay."""

from __future__ import annotations

import json
from typing import Any

import pytest

from protofed.errors import ProtofedError
from protofed.federation.build import build_federation
from protofed.spec.experiment_spec import LATER_FIELDS, Experiment, flatten_spec
from protofed.spec.spec_parser import parse_experiment, set_value

# Of runs on record, made before these fields existed, and before these defaults changed.
OLD_DEFAULTS: dict[str, dict[str, Any]] = {
    "partition": {"clients": {"optical": 1, "print": 1, "syn": 1, "street": 1}},
    "fpl": {"tau": 0.02},
}
OLD_DIGESTS = {
    "fedavg": "b2242d14e9f6",
    "fpl": "8e9ae316491c",
}
OTHERS: list[dict[str, Any]] = [
    {"optimizer": "adam"},
    {"optimizer": "adamw", "weight_decay": 0.01},
    {"clip_norm": 10},
    {"warmup": 2},
    {"schedule": "cosine"},
    {"schedule": "cosine", "final_lr_share": 0.1},
    {"schedule": "step", "step_every": 3},
    {"schedule": "step", "step_every": 3, "step_factor": 0.5},
]


@pytest.mark.parametrize("name", OLD_DIGESTS)
def test_an_older_spec_has_the_digest_that_it_had(name: str) -> None:
    method = {"name": name, **OLD_DEFAULTS.get(name, {})}
    partition = OLD_DEFAULTS["partition"]
    made = parse_experiment({"method": method, "partition": partition, "device": "cpu"})
    assert made.digest[:12] == OLD_DIGESTS[name]


def test_a_later_field_stands_for_what_its_absence_means() -> None:
    made = Experiment()
    assert LATER_FIELDS.items() <= made.flat_fields().items()
    assert not LATER_FIELDS.keys() & flatten_spec(made.to_dict()).keys()


def test_defaults_that_are_written_out_make_the_same_experiment() -> None:
    raw: dict[str, Any] = {}
    for path, value in LATER_FIELDS.items():
        raw = set_value(raw, path, value)
    made = parse_experiment(raw)
    assert (made, made.digest) == (Experiment(), Experiment().digest)


def test_the_initial_weights_are_in_the_spec_and_its_digest_if_they_are_torchs() -> None:
    made = parse_experiment({"net": "resnet10", "initial_weights": "torch"})
    plain = json.loads(json.dumps(made.to_dict()))
    assert plain["initial_weights"] == "torch"
    assert parse_experiment(plain) == made
    assert made.digest != parse_experiment({"net": "resnet10"}).digest
    with pytest.raises(ProtofedError, match=r"initial_weights: .*'net' or 'torch', got 'kaiming'"):
        parse_experiment({"initial_weights": "kaiming"})


def test_a_federation_starts_with_the_weights_that_were_asked_for() -> None:
    shares = {"kind": "shares", "clients": 4, "samples": 2}
    spec = {"net": "resnet10", "partition": shares}
    own, torchs = (
        build_federation(parse_experiment({**spec, "initial_weights": rule})).server.initial_model()
        for rule in ("net", "torch")
    )
    stem = "encoder.conv1.weight"
    fan_in = torchs.weights[stem][0].numel()
    assert torchs.weights[stem].abs().max() <= fan_in**-0.5 < own.weights[stem].abs().max()


@pytest.mark.parametrize("training", OTHERS)
def test_other_values_are_in_the_spec_and_its_digest_and_read_back(
    training: dict[str, Any],
) -> None:
    made = parse_experiment({"training": training})
    plain = json.loads(json.dumps(made.to_dict()))
    assert plain["training"].items() >= training.items()
    assert parse_experiment(plain) == made
    assert made.flat_fields().items() >= {f"training.{n}": v for n, v in training.items()}.items()
    digests = {parse_experiment({"training": other}).digest for other in ({}, *OTHERS)}
    assert len(digests) == len(OTHERS) + 1


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"optimizer": "adma"}, "training.optimizer: .*'adma'; did you mean 'adam'?"),
        ({"optimiser": "adam"}, "training.optimiser: no such field; did you mean 'optimizer'?"),
        ({"optimizer": 1}, "training.optimizer: input should be 'sgd', 'adam' or 'adamw', got 1$"),
        ({"schedule": "cosin"}, "training.schedule: .*'cosin'; did you mean 'cosine'?"),
        ({"optimizer": "adam", "momentum": 0.5}, "momentum belongs to sgd, adam has none"),
        ({"schedule": "step"}, 'schedule "step" needs step_every'),
        ({"step_every": 2}, 'step_every and step_factor belong to schedule "step"'),
        ({"schedule": "cosine", "step_factor": 0.5}, 'belong to schedule "step"'),
        ({"schedule": "step", "step_every": 1, "final_lr_share": 0.5}, 'to schedule "cosine"'),
        ({"warmup": 20}, "training.warmup: must be less than rounds, which is 20, got 20"),
        ({"clip_norm": -1}, "training.clip_norm: input should be greater than or equal to 0"),
        ({"clip_norm": float("nan")}, "training.clip_norm: input should be a finite number"),
        ({"final_lr_share": 1.5}, "training.final_lr_share: .* less than or equal to 1"),
    ],
)
def test_a_fault_names_its_field_and_what_is_allowed(training: dict[str, Any], words: str) -> None:
    with pytest.raises(ProtofedError, match=words):
        parse_experiment({"training": training})
