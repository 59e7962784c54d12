from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from protofed.experiment.trained_run import open_trained_run
from protofed.report.confusion import (
    ConfusionCache,
    ConfusionMatrix,
    draw_confusion,
    frequent_mistakes,
    matrix_accuracy,
    run_confusion,
)
from protofed.report.load_runs import read_runs
from protofed.report.page import render_report
from protofed.spec.experiment_spec import SiteData
from tests.report.conftest import Copy, lines_of, unfinish
from tests.report.reading import Page

EVIL = "<script>alert(1)</script>"


def test_right_answers_are_those_that_were_scored(made: Path) -> None:
    said: list[str] = []
    runs = read_runs([made / "fpl-0"])
    found = ConfusionCache(said.append).of(runs)[made / "fpl-0"]
    assert said == ["confusion matrices 1/1: FPL, seed 0"]
    scored = lines_of(made / "fpl-0" / "scores.jsonl")[-1]["domains"]
    tests = open_trained_run(made / "fpl-0").federation.tests
    assert [matrix.domain for matrix in found.matrices] == list(scored)
    for domain, counts in found.matrices:
        assert matrix_accuracy(counts) == pytest.approx(scored[domain])
        assert [sum(row) for row in counts] == tests[domain].labels.bincount().tolist()


def test_a_cell_counts_images_of_a_class_by_answer(made: Path) -> None:
    runs = read_runs([made / "fedavg-0"])
    found = ConfusionCache(print).of(runs)[made / "fedavg-0"]
    opened = open_trained_run(made / "fedavg-0")
    test = opened.federation.tests["print"]
    slow = [[0] * 10 for _ in range(10)]
    for true, said in zip(test.labels.tolist(), opened.predictions(test).tolist(), strict=True):
        slow[true][said] += 1
    assert found.matrices[1].counts == slow


def test_each_run_is_asked_once_and_only_when_finished(made: Path, copy: Copy) -> None:
    begun = copy("fpl-1")
    unfinish(begun, 2)
    said: list[str] = []
    confusions = ConfusionCache(said.append)
    runs = read_runs([made / "fedavg-0", begun])
    assert confusions.of(runs) == confusions.of(runs)
    assert list(confusions.of(runs)) == [made / "fedavg-0"]
    assert len(said) == 1


def test_a_run_whose_images_are_elsewhere_is_not_opened(made: Path) -> None:
    said: list[str] = []
    here, there = read_runs([made / "fedavg-0", made / "fpl-0"])
    data = SiteData(domains=there.experiment.data.domains, revision="0" * 12)
    away = there._replace(experiment=there.experiment.model_copy(update={"data": data}))
    found = ConfusionCache(said.append).of([here, away])
    assert said == ["confusion matrices 1/1: FedAvg, seed 0"]
    assert found[here.folder].matrices
    assert found[away.folder].owner == "as the sites counted"
    opened = run_confusion(there)  # here the images are at hand: the sites would count the same
    assert found[away.folder].matrices == opened.matrices
    assert found[away.folder].classes == opened.classes
    *begun, last = away.evaluations
    hidden = away._replace(evaluations=[*begun, replace(last, counts={})])
    (told,) = ConfusionCache(said.append).of([hidden]).values()
    assert told.fault == "the images of this run are at its sites"


def test_missing_data_is_told_in_the_page(copy: Copy) -> None:
    folder = copy("fpl-0")
    world = json.loads((folder / "env.json").read_text())
    world["data"]["print"] = "0" * 64
    (folder / "env.json").write_text(json.dumps(world))
    runs = read_runs([folder])
    page = Page(render_report(runs, ConfusionCache(print).of(runs)))
    assert "No matrices: the images found here are not those that this run" in page.text
    assert "matrix" not in page.attributes("class")


def test_a_checkpoint_that_is_gone_is_told_in_the_page(copy: Copy) -> None:
    folder = copy("fpl-0")
    for file in folder.glob("checkpoints/*/manifest.json"):
        file.unlink()
    runs = read_runs([folder])
    assert "No matrices: " in Page(render_report(runs, ConfusionCache(print).of(runs))).text


def test_a_personal_method_says_whose_model_it_is(made: Path) -> None:
    runs = read_runs([made / "local-0"])
    page = Page(render_report(runs, ConfusionCache(print).of(runs)))
    assert "Local, seed 0 (client 0's own model)" in page.text
    scored = lines_of(made / "local-0" / "scores.jsonl")[-1]["clients"]["0"]
    for accuracy_there in scored.values():
        assert f"{accuracy_there:.2f} % right" in page.text


def test_the_worst_mistakes_come_first_and_names_are_escaped() -> None:
    counts = [[5, 2, 0], [9, 1, 3], [0, 0, 4]]
    classes = ("cat", EVIL, "a name that is very long")
    assert frequent_mistakes(counts, classes) == [
        f"{EVIL} taken for cat (9 of 13)",
        f"{EVIL} taken for a name that is very long (3 of 13)",
        f"cat taken for {EVIL} (2 of 7)",
    ]
    drawn = draw_confusion(ConfusionMatrix(EVIL, counts), classes)
    assert EVIL not in drawn
    assert drawn.count("<script") == 0
    texts = Page(drawn).text
    assert "71" in texts, "5 of 7 in per cent"
    assert "a name th…" in texts


def test_many_classes_are_drawn_small() -> None:
    counts = [[int(i == j) for j in range(100)] for i in range(100)]
    drawn = draw_confusion(ConfusionMatrix("photos", counts), [f"class {n}" for n in range(100)])
    assert len(drawn) < 3_000
    assert "no mistakes" in drawn
