"""Every recipe is complete, every value has one source, every row is a method of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from protofed.data.benchmarks import BENCHMARKS, load_benchmark
from protofed.data.download import missing_sources
from protofed.data.partition import partition_clients
from protofed.errors import ProtofedError
from protofed.methods.fedlsa import FedLSA
from protofed.paper_tables.recipe import (
    PACE,
    SOURCES,
    Recipe,
    nest_values,
    parse_recipe,
    plan_runs,
    printed_table,
    read_recipe,
    recipe_names,
)
from protofed.spec.method_lookup import parse_method

RECIPES = [read_recipe(name) for name in recipe_names()]
PLACES = [(recipe, part.name) for recipe in RECIPES for part in recipe.parts]
KNOWN = [(r, name) for r, name in PLACES if r.part(name).benchmark in BENCHMARKS]
# What a reader needs to know of any of these tables.
NEEDED = {
    *("net", "rounds", "data.name", "data.domains", "data.side", "data.pad", "data.flip"),
    *(f"training.{field}" for field in ("epochs", "batch", "lr", "momentum", "weight_decay")),
    *("partition.kind", "scoring.rule", "scoring.seeds", "scoring.quick_rounds"),
}


def told(case: object) -> str:
    return case.name if isinstance(case, Recipe) else str(case)


def test_all_twelve_tables_are_there() -> None:
    tables = {"fedseproto": (1, 2, 3), "fpl": (1, 2, 3), "pgct": (1, 3), "fedlsa": (2, 3, 4, 5)}
    wanted = {f"{paper}-table{n}" for paper, numbers in tables.items() for n in numbers}
    assert set(recipe_names()) == wanted


@pytest.mark.parametrize(("recipe", "name"), PLACES, ids=told)
def test_rows_and_columns_are_the_printed_ones_and_rows_of_our_own_come_last(
    recipe: Recipe, name: str
) -> None:
    facts = printed_table()[recipe.name].parts[name]
    assert [row.label for row in recipe.rows][: len(facts.rows)] == list(facts.rows)
    assert tuple(recipe.part(name).columns) == facts.columns
    assert [part.name for part in recipe.parts] == list(printed_table()[recipe.name].parts)


@pytest.mark.parametrize(("recipe", "name"), PLACES, ids=told)
def test_every_value_has_a_source_and_nothing_needed_is_left_out(recipe: Recipe, name: str) -> None:
    part = recipe.part(name)
    settings = recipe.settings(part)
    assert settings.keys() >= NEEDED
    assert any(key.startswith("partition.clients") for key in settings)
    fields = [recipe.fields(part, row) for row in recipe.rows]
    sources = {value.source for values in (settings, *fields) for value in values.values()}
    assert sources <= set(SOURCES)


@pytest.mark.parametrize(("recipe", "name"), PLACES, ids=told)
def test_rows_parse_to_methods_with_the_recipes_values(recipe: Recipe, name: str) -> None:
    part = recipe.part(name)
    for row in recipe.rows:
        method = parse_method(recipe.raw(part, row)["method"])
        training = recipe.raw(part, row)["training"]
        for field, (value, _) in recipe.fields(part, row).items():
            if field.startswith("training."):
                assert training[field.removeprefix("training.")] == value
                continue
            got: object = method
            for step in field.removesuffix(".name").split("."):
                got = getattr(got, step)
            if field.endswith(".name"):
                assert got.info.label.lower() == value  # type: ignore[attr-defined]
            else:
                assert got == value


@pytest.mark.parametrize(("recipe", "name"), KNOWN, ids=told)
def test_a_part_is_the_experiment_that_its_settings_say(
    recipe: Recipe, name: str, tmp_path: Path
) -> None:
    part = recipe.part(name)
    made = plan_runs(recipe, part, "paper", None, tmp_path)
    wanted = nest_values(recipe.settings(part))
    scoring = wanted.pop("scoring")
    assert len(made.cells) == len(recipe.rows) * scoring["seeds"]
    assert made.rule == scoring["rule"]
    for cell in made.cells:
        plain = cell.experiment.to_dict()
        own = nest_values(part.row_training(cell.label)).get("training", {})
        for section, value in wanted.items():
            if section == "training":
                assert plain[section].items() >= {**value, **own}.items()
            elif isinstance(value, dict):
                assert plain[section].items() >= value.items()
            else:
                assert plain[section] == value


@pytest.mark.parametrize(("recipe", "name"), KNOWN, ids=told)
def test_the_number_of_images_is_what_the_clients_get(
    recipe: Recipe, name: str, tmp_path: Path, real_data: Path
) -> None:
    part = recipe.part(name)
    if absent := missing_sources(part.benchmark):
        pytest.skip(f"needs real images of {', '.join(absent)}")
    experiment = plan_runs(recipe, part, "paper", 1, tmp_path).cells[0].experiment
    benchmark = load_benchmark(part.benchmark, experiment.data.domains)
    dealt = partition_clients(experiment.partition, benchmark, 0)
    assert sum(len(one.rows) for one in dealt) == part.images


def test_every_net_has_a_pace_for_the_estimate() -> None:
    for recipe, name in PLACES:
        net = nest_values(recipe.settings(recipe.part(name)))["net"]
        assert set([net] if isinstance(net, str) else net) <= set(PACE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("fpl-table1", "fpl-table2"),
        ("fpl-table2", "fpl-table3"),
        ("fedlsa-table2", "fedlsa-table4"),
        ("fedlsa-table2", "fedlsa-table5"),
        ("fedseproto-table1", "fedseproto-table2"),
        ("pgct-table1", "pgct-table3"),
    ],
)
def test_tables_of_one_paper_have_the_same_settings(one: str, other: str) -> None:
    first, second = read_recipe(one), read_recipe(other)
    assert first.values() == second.values()
    for part in second.parts:
        if part.name in {mine.name for mine in first.parts}:
            assert first.settings(first.part(part.name)) == second.settings(part)


def test_unknown_names_are_told_with_the_known_ones() -> None:
    with pytest.raises(ProtofedError, match=r"unknown recipe 'fpl-tabel2'.*'fpl-table2'"):
        read_recipe("fpl-tabel2")
    with pytest.raises(ProtofedError, match=r"unknown part of fpl-table2 'ofice'(.|\n)*office"):
        read_recipe("fpl-table2").part("ofice")


ROW = {"label": "FedAvg", "method": "fedavg"}
PART = {"name": "p", "benchmark": "digits", "columns": {"MNIST": "mnist"}}
WHOLE = {"baseline": "FedAvg", "rows": [ROW], "parts": [PART]}


def test_a_value_with_two_sources_is_refused() -> None:
    both = {**WHOLE, "paper": {"training": {"lr": 1}}, "our_choice": {"training": {"lr": 2}}}
    with pytest.raises(ProtofedError, match=r"recipe mine: .*two sources for training\.lr"):
        parse_recipe("mine", both)


def test_a_value_without_a_source_is_refused() -> None:
    with pytest.raises(ProtofedError, match="recipe mine: rounds: Extra inputs"):
        parse_recipe("mine", {**WHOLE, "rounds": 3})


def test_a_baseline_that_is_no_row_is_refused() -> None:
    with pytest.raises(ProtofedError, match="unknown row of mine 'FedSGD'"):
        parse_recipe("mine", {**WHOLE, "baseline": "FedSGD"})


def test_what_a_part_says_goes_before_the_recipe() -> None:
    part = {**PART, "our_choice": {"rounds": 2}, "rows": {"FedAvg": {"paper": {"mu": 1.0}}}}
    recipe = parse_recipe("mine", {**WHOLE, "paper": {"rounds": 100}, "parts": [part]})
    here = recipe.parts[0]
    assert recipe.settings(here)["rounds"] == (2, "our_choice")
    assert recipe.fields(here, recipe.rows[0]) == {"mu": (1.0, "paper")}


def test_the_page_tells_fedlsa_s_values() -> None:
    page = Path(__file__).parents[2] / "docs" / "reproduce.md"
    lines = page.read_text(encoding="utf-8").partition("## FedLSA's values")[2].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    (_, *fields), _, *rows = cells
    told = {part: dict(zip(fields, map(float, row), strict=True)) for part, *row in rows}
    seen = set()
    for recipe in (read_recipe("fedlsa-table2"), read_recipe("fedlsa-table3")):
        row = next(row for row in recipe.rows if row.label == "FedLSA")
        for part in recipe.parts:
            values = recipe.fields(part, row)
            assert told[part.name] == {field: values[field].value for field in fields}
            assert {values[field].source for field in fields} == {"our_choice"}
            seen.add(part.name)
    assert seen == told.keys()
    assert told["office"] == {field: getattr(FedLSA(), field) for field in fields}


def test_tuned_values_stand_beside_their_command() -> None:
    tuned = {"rows": {"FedAvg": {"tuned": {"training": {"lr": 0.02}}}}}
    with pytest.raises(ProtofedError, match="p: tuned values stand beside their command"):
        parse_recipe("mine", {**WHOLE, "parts": [{**PART, **tuned}]})
    with pytest.raises(ProtofedError, match="p: tuned values stand beside their command"):
        parse_recipe("mine", {**WHOLE, "parts": [{**PART, "tuning": "protofed tune fedavg"}]})
    recipe = parse_recipe(
        "mine", {**WHOLE, "parts": [{**PART, **tuned, "tuning": "protofed tune fedavg"}]}
    )
    (part,), (row,) = recipe.parts, recipe.rows
    assert recipe.fields(part, row)["training.lr"] == (0.02, "tuned")


def test_some_rows_keep_the_baseline_and_their_order() -> None:
    recipe = read_recipe("fpl-table2")
    some = recipe.with_rows(["FPL", "FedProx"])
    assert [row.label for row in some.rows] == ["FedAvg", "FedProx", "FPL"]
    assert some.settings(some.parts[0]) == recipe.settings(recipe.parts[0])
    assert recipe.with_rows([]) == recipe
    with pytest.raises(ProtofedError, match=r"unknown row of fpl-table2 'FLP'.*'FPL'"):
        recipe.with_rows(["FLP"])


def test_another_precision_moves_every_run_and_is_listed(tmp_path: Path) -> None:
    recipe = read_recipe("fedlsa-table5").with_precision("bfloat16")
    other = recipe.with_precision("float32")
    assert other.differences[0] == "computed in float32, the recipe in bfloat16"
    plans = [plan_runs(r, r.parts[0], "paper", 1, tmp_path) for r in (recipe, other)]
    for ours, theirs in zip(plans[0].cells, plans[1].cells, strict=True):
        assert (ours.experiment.precision, theirs.experiment.precision) == ("bfloat16", "float32")
        moved = theirs.experiment.model_copy(update={"precision": "bfloat16"})
        assert moved.digest == ours.experiment.digest != theirs.experiment.digest
    assert recipe.with_precision("bfloat16") == recipe.with_precision(None) == recipe


def test_a_row_with_its_own_training_leaves_the_others_alone() -> None:
    own = {"rows": {"FedProx": {"our_choice": {"mu": 0.1, "training": {"lr": 0.02}}}}}
    shared = {"our_choice": {"training": {"lr": 0.1, "momentum": 0.5}}}
    rows = [ROW, {"label": "FedProx", "method": "fedprox"}]
    recipe = parse_recipe("mine", {**WHOLE, **shared, "rows": rows, "parts": [{**PART, **own}]})
    raws = [recipe.raw(recipe.parts[0], row) for row in recipe.rows]
    assert [raw["training"]["lr"] for raw in raws] == [0.1, 0.02]
    assert [raw["training"]["momentum"] for raw in raws] == [0.5, 0.5]
    assert raws[1]["method"] == {"name": "fedprox", "mu": 0.1}
