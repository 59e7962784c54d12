"""Every figure is there, and each of its runs is a table's run with the fields that it varies."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from protofed.data.digits_mini import DOMAINS
from protofed.errors import ProtofedError
from protofed.figures import shows_models
from protofed.paper_figures.figure_recipe import (
    FigureRecipe,
    Picture,
    figure_names,
    parse_figure,
    read_figure,
)
from protofed.paper_figures.run_figure import list_figures, ready_picture
from protofed.paper_tables.recipe import plan_runs
from protofed.spec.method_lookup import describe_method

FIGURES = [read_figure(name) for name in figure_names()]
PICTURES = [(figure, picture) for figure in FIGURES for picture in figure.pictures]
WANTED = {
    "fedseproto": (2, 3, 4),
    "fpl": (1, 3, 4, 5, 6, 7),
    "fedlsa": (1, 2, 4, 5, 6),
    "pgct": (1, 3, 4),
}
PLAIN: dict[str, Any] = {"figure": "Figure 9", "caption": "a caption", "claim": "a claim"}
CURVES = {"name": "one", "table": "fpl-table2", "part": "digits", "kind": "curves", "rows": ["FPL"]}


def told(case: object) -> str:
    return case.name if isinstance(case, FigureRecipe | Picture) else str(case)


def test_all_figures_are_there() -> None:
    names = {f"{paper}-fig{n}" for paper, numbers in WANTED.items() for n in numbers}
    assert set(figure_names()) == names


@pytest.mark.parametrize("figure", FIGURES, ids=told)
def test_a_figure_says_what_it_claims_and_its_pictures_have_names_of_their_own(
    figure: FigureRecipe,
) -> None:
    assert figure.claim
    assert figure.caption
    names = [picture.name for picture in figure.pictures]
    assert len(set(names)) == len(names)
    assert figure.name.partition("-fig")[2] == figure.figure.partition(" ")[2]
    assert figure.name.startswith(figure.paper.partition(" ")[0].lower())


@pytest.mark.parametrize(("figure", "picture"), PICTURES, ids=told)
def test_rows_are_the_tables_own_runs(
    figure: FigureRecipe, picture: Picture, tmp_path: Path
) -> None:
    recipe = figure.table(picture)
    plan = plan_runs(recipe, recipe.part(picture.part), "paper", None, tmp_path)
    of_table = {(cell.label, cell.seed): cell.folder for cell in plan.cells}
    one = ready_picture(figure, picture, "paper", None, tmp_path)
    seeds = {cell.seed for cell in one.plan.cells}
    assert seeds == ({0} if shows_models(picture.kind) else {cell.seed for cell in plan.cells})
    plain = [cell for cell in one.plan.cells if cell.label in picture.rows]
    assert [(c.label, c.seed) for c in plain] == list(product(picture.rows, sorted(seeds)))
    for cell in plain:
        assert cell.folder == of_table[cell.label, cell.seed]


@pytest.mark.parametrize(("figure", "picture"), PICTURES, ids=told)
def test_variants_differ_from_their_row_in_the_varied_fields_alone(
    figure: FigureRecipe, picture: Picture, tmp_path: Path
) -> None:
    recipe = figure.table(picture)
    plan = plan_runs(recipe, recipe.part(picture.part), "paper", 1, tmp_path)
    one = ready_picture(figure, picture, "paper", 1, tmp_path)
    varied = [cell for cell in one.plan.cells if cell.label not in picture.rows]
    if not picture.of:
        assert varied == []
        return
    (whole,) = [cell.experiment for cell in plan.cells if cell.label == picture.of]
    plain = describe_method(whole.method)
    if picture.sweep:
        fields = [
            dict(zip(picture.sweep, v, strict=True)) for v in product(*picture.sweep.values())
        ]
    else:
        known = {**whole.method.ablations, "full": {}}
        fields = [dict(known[name]) for name in picture.ablations]
    assert [describe_method(cell.experiment.method) for cell in varied] == [
        {**plain, **changed} for changed in fields
    ]
    for cell in varied:
        assert cell.experiment.model_copy(update={"method": whole.method}) == whole


@pytest.mark.parametrize("scale", ["smoke", "quick", "paper"])
@pytest.mark.parametrize(("figure", "picture"), PICTURES, ids=told)
def test_shown_rounds_are_scored_and_the_last_of_them_is_the_runs_last(
    figure: FigureRecipe, picture: Picture, scale: Any, tmp_path: Path
) -> None:
    one = ready_picture(figure, picture, scale, None, tmp_path)
    for cell in one.plan.cells:
        every, rounds = cell.experiment.evaluate_every, cell.experiment.rounds
        assert all(n % every == 0 or n == rounds for n in one.options.rounds)
        assert max(one.options.rounds, default=rounds) == rounds
    most = len(picture.at)
    assert len(one.options.rounds) == most if scale == "paper" else len(one.options.rounds) <= most
    if picture.domain is not None:
        assert one.options.domain in one.plan.cells[0].experiment.data.domains


def test_domains_of_digits_mini_stand_in_by_their_place(tmp_path: Path) -> None:
    figure = read_figure("fedlsa-fig2")
    (picture,) = figure.pictures
    places = list(figure.table(picture).part("digits").columns.values())
    one = ready_picture(figure, picture, "smoke", None, tmp_path)
    assert one.options.domain == DOMAINS[places.index("usps")]
    assert ready_picture(figure, picture, "paper", None, tmp_path).options.domain == "usps"


def test_local_models_keep_the_round_before_so_that_one_round_is_trained_again(
    tmp_path: Path,
) -> None:
    figure = read_figure("fpl-fig7")
    one = ready_picture(figure, figure.pictures[0], "paper", None, tmp_path)
    assert one.options.rounds == (5, 25, 100)
    assert one.keep == {4, 5, 24, 25, 99, 100}
    figure = read_figure("fedlsa-fig4")  # scored every five rounds
    one = ready_picture(figure, figure.pictures[0], "paper", None, tmp_path)
    assert one.keep == {5, 25, 100}


def test_what_all_pictures_share_is_written_once() -> None:
    every = {key: value for key, value in CURVES.items() if key not in ("name", "part")}
    pictures = [{"name": "a", "part": "digits"}, {"name": "b", "part": "office", "rows": ["MOON"]}]
    made = parse_figure("x", {**PLAIN, "every": every, "pictures": pictures})
    assert [(p.kind, p.part, p.rows) for p in made.pictures] == [
        ("curves", "digits", ("FPL",)),
        ("curves", "office", ("MOON",)),
    ]
    assert [p.name for p in made.with_pictures(["b"]).pictures] == ["b"]
    assert made.with_pictures([]) == made
    with pytest.raises(ProtofedError, match="unknown picture of x 'c'"):
        made.with_pictures(["c"])


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"kind": "pie"}, "unknown x, one: kind of figure 'pie'"),
        ({"table": "fpl-table9"}, "unknown recipe 'fpl-table9'"),
        ({"part": "pacs"}, "unknown part of fpl-table2 'pacs'"),
        ({"rows": ["FedLSA"]}, "unknown x, one: row 'FedLSA'"),
        ({"of": "FedLSA"}, "unknown x, one: row 'FedLSA'"),
        ({"domain": "amazon"}, "unknown x, one: domain 'amazon'"),
        ({"colour": "red"}, "figure x: pictures.0.colour"),
    ],
)
def test_what_there_is_not_is_refused(changed: dict[str, Any], fault: str) -> None:
    with pytest.raises(ProtofedError, match=fault):
        parse_figure("x", {**PLAIN, "pictures": [{**CURVES, **changed}]})


def test_an_ablation_that_the_method_lacks_is_refused(tmp_path: Path) -> None:
    picture = {**CURVES, "rows": [], "of": "FPL", "ablations": ["CPCL only", "nothing"]}
    figure = parse_figure("x", {**PLAIN, "pictures": [picture]})
    with pytest.raises(ProtofedError, match="unknown ablation 'nothing'"):
        ready_picture(figure, figure.pictures[0], "smoke", None, tmp_path)


def test_the_list_counts_runs_that_pictures_share_once(tmp_path: Path) -> None:
    for listed, figure in zip(list_figures(), FIGURES, strict=True):
        folders = {
            cell.folder
            for picture in figure.pictures
            for cell in ready_picture(figure, picture, "paper", 1, tmp_path).plan.cells
        }
        assert (listed.name, listed.rows) == (figure.name, len(folders))
