"""Labels name what sets runs of one method apart, and nothing else."""

from __future__ import annotations

from protofed.analysis.finished_runs import label_experiments
from protofed.spec.experiment_spec import Experiment
from protofed.spec.spec_parser import parse_experiment


def experiment(method: object, **more: object) -> Experiment:
    return parse_experiment({"method": method, **more})


def test_settings_are_named_only_where_one_method_has_several() -> None:
    cold, warm = {"name": "fpl", "tau": 0.02}, {"name": "fpl", "tau": 0.5}
    found = [experiment("fedavg"), experiment(cold), experiment(warm), experiment(warm, seed=1)]
    assert label_experiments(found) == [
        "FedAvg",
        "FPL (tau=0.02)",
        "FPL (tau=0.5)",
        "FPL (tau=0.5)",
    ]
    assert label_experiments(found[:2]) == ["FedAvg", "FPL"]
    assert label_experiments([]) == []


def test_a_method_within_a_method_and_other_sections_are_named_too() -> None:
    one = experiment({"name": "pgct", "base": "fedavg"})
    other = experiment({"name": "pgct", "base": "fedprox"})
    assert label_experiments([one, other]) == ["PGCT (base=fedavg)", "PGCT (base=fedprox)"]
    slow, fast = (experiment("fedavg", training={"lr": lr}) for lr in (0.01, 0.1))
    assert label_experiments([slow, fast]) == [
        "FedAvg (training.lr=0.01)",
        "FedAvg (training.lr=0.1)",
    ]


def test_a_field_that_one_spec_leaves_out_at_its_default_is_named() -> None:
    plain, other = experiment("fedavg"), experiment("fedavg", training={"optimizer": "adam"})
    assert label_experiments([plain, other]) == [
        "FedAvg (training.optimizer=sgd)",
        "FedAvg (training.optimizer=adam)",
    ]
