from __future__ import annotations

from pathlib import Path

import pytest

from protofed.analysis.sweep import ablation_variants, grid_cells, grid_variants, named_variants
from protofed.errors import ProtofedError
from protofed.methods import METHODS
from protofed.spec.method_lookup import parse_method


def test_words_name_methods_and_their_fields() -> None:
    plain, changed = named_variants(["fedavg", "fpl:tau=0.05,upcr=0"], {"rounds": 3})
    assert (plain.label, changed.label) == ("FedAvg", "FPL (tau=0.05,upcr=0)")
    assert changed.raw == {"rounds": 3, "method": {"name": "fpl", "tau": 0.05, "upcr": 0}}


@pytest.mark.parametrize("words", [["fedavg", "fedavg"], ["fpl:tau=1", "fpl:tau=1"]])
def test_a_row_that_is_named_twice_is_refused(words: list[str]) -> None:
    with pytest.raises(ProtofedError, match="more than once"):
        named_variants(words, {})


def test_an_unknown_method_or_field_is_told_before_anything_runs() -> None:
    with pytest.raises(ProtofedError, match="fpll"):
        named_variants(["fpll"], {})
    with pytest.raises(ProtofedError, match=r"method\.tauu"):
        named_variants(["fpl:tauu=1"], {})


def test_a_grid_has_every_combination() -> None:
    rows = grid_variants(
        "fedlsa", ["method.alpha=0.1,0.4", "training.lr=0.01,0.1,1"], {"rounds": 2}
    )
    assert len(rows) == 6
    assert rows[1].label == "alpha=0.1, training.lr=0.1"
    assert rows[1].raw["method"] == {"name": "fedlsa", "alpha": 0.1}
    assert rows[1].raw["training"] == {"lr": 0.1}


@pytest.mark.parametrize("axis", ["method.alpha", "method.alpha="])
def test_an_axis_without_values_is_refused(axis: str) -> None:
    with pytest.raises(ProtofedError, match="grid "):
        grid_variants("fedlsa", [axis], {})


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.ablations])
def test_declared_ablations_are_methods_that_differ_from_the_whole(name: str) -> None:
    rows = ablation_variants(name, {})
    made = [parse_method(row.raw["method"]) for row in rows]
    assert rows[-1].label == f"{METHODS[name].info.label} (full)"
    assert made[-1] == METHODS[name]()
    assert len({repr(method) for method in made}) == len(made)


def test_the_four_papers_declare_their_ablations() -> None:
    assert {"fpl", "fedlsa", "fedseproto", "pgct"} <= {n for n, m in METHODS.items() if m.ablations}
    with pytest.raises(ProtofedError, match="declares no ablations"):
        ablation_variants("fedavg", {})


def test_cells_are_variants_by_seeds_in_folders_of_their_digests(tmp_path: Path) -> None:
    made = grid_cells(named_variants(["fedavg", "fedprox"], {"rounds": 1}), range(2), tmp_path)
    assert [(c.label, c.seed) for c in made] == [
        ("FedAvg", 0),
        ("FedAvg", 1),
        ("FedProx", 0),
        ("FedProx", 1),
    ]
    assert all(c.folder.name.endswith(c.experiment.digest[:8]) for c in made)
    assert len({c.folder for c in made}) == 4
