from __future__ import annotations

import json
import shlex
import statistics
from pathlib import Path

import pytest

from protofed.analysis.comparison_table import (
    compare_records,
    largest_row,
    table_footnotes,
    table_header,
    table_row,
)
from protofed.analysis.finished_runs import check_comparable, read_record
from protofed.errors import ProtofedError
from protofed.experiment.runner import run
from protofed.federation.remote_sites import KEPT_BACK
from protofed.report.load_runs import read_runs
from protofed.report.page import render_report
from protofed.spec.spec_parser import parse_experiment, read_spec
from tests.report.conftest import TINY, Copy, lines_of, rewrite_scores, unfinish
from tests.report.reading import Page

EVIL = "<script>alert(1)</script>"
FOUR = ("fedavg-0", "fedavg-1", "fpl-0", "fpl-1")


def page_of(*folders: Path, baseline: str | None = None) -> Page:
    return Page(render_report(read_runs(folders), baseline=baseline))


def test_the_table_is_the_one_that_study_makes(made: Path) -> None:
    folders = [made / name for name in FOUR]
    records = [read_record(folder) for folder in folders]
    table = compare_records(records, "FPL", notes=check_comparable(records))
    page = page_of(*folders, baseline="FPL")
    assert page.tables["results-table"] == [
        table_header(table),
        *(table_row(table, r) for r in table.rows),
        largest_row(table),
    ]
    assert table.largest is not None
    for note in table_footnotes(table):
        assert note in page.text


def test_numbers_follow_from_the_lines_of_the_runs(made: Path) -> None:
    page = page_of(*(made / name for name in FOUR))
    head, *rows, last = page.tables["results-table"]
    assert last[:2] == ["largest class", "10.00"]
    for row, method in zip(rows, ("fedavg", "fpl"), strict=True):
        means = []
        for seed in (0, 1):
            scores = lines_of(made / f"{method}-{seed}" / "scores.jsonl")
            means.append(statistics.fmean(scores[-1]["domains"][d] for d in head[1:3]))
        assert row[head.index("AVG")] == (
            f"{statistics.fmean(means):.2f} ± {statistics.stdev(means):.2f}"
        )


def test_one_sentence_says_what_came_out(copy: Copy) -> None:
    good, bad = copy("fpl-0"), copy("fedavg-0")
    for folder, shift in ((good, 40.0), (bad, 20.0)):
        scores = {"optical": shift + 10, "print": shift}
        rewrite_scores(folder, [{"round": n, "domains": scores} for n in (1, 2, 3)])
    page = page_of(bad, good)
    assert (
        "FPL is the best of 2 methods with 45.00 % mean accuracy over 2 domains (last round); "
        "it does worst on print (40.00 %); that is 20.00 points above FedAvg "
        "(one seed: no interval)." in page.text
    )
    assert "FedAvg, the next one, is 20.00 points below FPL" in page_of(good, bad).text
    assert "FPL reaches 45.00 %" in page_of(good).text
    rewrite_scores(bad, lines_of(good / "scores.jsonl"))
    same = page_of(bad, good)
    assert "FedAvg and FPL are identical in every score, with 45.00 %" in same.text
    assert same.tables["results-table"][2][-2:] == ["identical", ""]
    level = [{"round": 3, "domains": {"optical": 40.0, "print": 50.0}}]
    rewrite_scores(bad, [*lines_of(bad / "scores.jsonl")[:2], *level])
    assert "FedAvg and FPL are level with 45.00 %" in page_of(bad, good).text


def test_an_interval_that_holds_zero_is_called_so(copy: Copy) -> None:
    means = {"fedavg-0": 50, "fedavg-1": 50, "fpl-0": 58, "fpl-1": 44}
    folders = [copy(name) for name in means]
    for folder, mean in zip(folders, means.values(), strict=True):
        rewrite_scores(folder, [{"round": 3, "domains": {"optical": mean, "print": mean}}])
    text = page_of(*folders).text
    # gaps 8 and -6: 1 +- 12.706 * 9.899 / sqrt(2)
    assert "1.00 points above FedAvg (95 % interval -87.94 to +89.94, which includes no" in text


def test_names_of_strangers_are_text(copy: Copy) -> None:
    folder = copy("local-0")
    for scores in (scored := lines_of(folder / "scores.jsonl")):
        scores["domains"][EVIL] = scores["domains"].pop("print")
        scores["own"]["domains"][EVIL] = scores["own"]["domains"].pop("print")
        scores["counts"][EVIL] = scores["counts"].pop("print")
        scores["clients"] = {f"{c}{EVIL}": scores["domains"] for c in scores["clients"]}
    scored[-1]["classes"][0] = EVIL
    rewrite_scores(folder, scored)
    parts = json.loads((folder / "partition.json").read_text())
    parts[0] |= {"domain": EVIL, "held": {EVIL: 3}}
    (folder / "partition.json").write_text(json.dumps(parts))
    world = json.loads((folder / "env.json").read_text())
    (folder / "env.json").write_text(json.dumps({**world, EVIL: EVIL}))
    rounds = lines_of(folder / "rounds.jsonl")
    rounds[0]["parts"] = {"up": {EVIL: 5}, "down": {'" onload="alert(1)': 6}}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rounds))
    text = render_report(read_runs([folder]))
    assert EVIL not in text
    page = Page(text)
    assert [tag for tag, _ in page.elements].count("script") == 1
    assert not any(name.startswith("on") for _, found in page.elements for name in found)
    for table in (
        "results-table",
        "clients-0",
        "holdings",
        "traffic",
        "world",
        "metrics-0",
        "classes-0",
    ):
        assert any(EVIL in cell for row in page.tables[table] for cell in row), table


def test_nothing_is_fetched_and_equal_runs_give_equal_bytes(made: Path) -> None:
    folders = [made / name for name in FOUR]
    text = render_report(read_runs(folders))
    assert "http:" not in text
    assert "https:" not in text
    page = Page(text)
    assert page.attributes("src") == []
    assert all(link.startswith(("#", "data:")) for link in page.attributes("href"))
    assert render_report(read_runs(folders)) == text
    assert len(text) < 100_000


def test_runs_of_different_length_are_refused(made: Path, tmp_path: Path) -> None:
    run(parse_experiment({**TINY, "rounds": 1}), tmp_path / "short")
    with pytest.raises(ProtofedError, match="differ in rounds"):
        read_runs([made / "fpl-0", tmp_path / "short"])
    with pytest.raises(ProtofedError, match="is not a run folder"):
        read_runs([tmp_path])


def test_settings_of_one_method_are_rows_of_their_own(made: Path, tmp_path: Path) -> None:
    other = {**TINY, "method": {"name": "fpl", "tau": 0.5}, "seed": 1}
    run(parse_experiment(other), tmp_path / "warm")
    page = page_of(made / "fpl-0", tmp_path / "warm", made / "fpl-0")
    assert [row[0] for row in page.tables["results-table"]] == [
        "method",
        "FPL (tau=0.1)",
        "FPL (tau=0.5)",
        "largest class",
    ]
    assert ["method.tau", "0.5", "0.1", "FPL (tau=0.5)"] in page.tables["changed"]
    assert "FPL (tau=0.5), the next one" in page.text or "FPL (tau=0.5) is the best" in page.text


def test_a_changed_optimiser_stands_beside_its_default(tmp_path: Path) -> None:
    run(parse_experiment({**TINY, "training": {"optimizer": "adam"}}), tmp_path / "adam")
    rows = page_of(tmp_path / "adam").tables["changed"]
    assert ["training.optimizer", "adam", "sgd", "all"] in rows
    assert "training.schedule" not in {row[0] for row in rows}


def test_bytes_are_those_of_the_rounds(made: Path) -> None:
    lines = lines_of(made / "fpl-0" / "rounds.jsonl")
    protos = statistics.fmean(one["parts"]["up"]["protos"] for one in lines)
    up = statistics.fmean(one["bytes_up"] for one in lines)
    page = page_of(made / "fpl-0")
    first = page.tables["traffic"][1]
    assert f"protos {protos / 1000:.2f} kB" in first[3]
    assert first[4] == f"{up / 1e6:.2f} MB"
    assert f"{up * len(lines):,.0f} bytes" in page.attributes("title")


def test_clients_of_a_personal_method_stand_by_domain(made: Path) -> None:
    last = lines_of(made / "local-0" / "scores.jsonl")[-1]["clients"]
    head, *rows = page_of(made / "local-0").tables["clients-0"]
    assert head == ["client", "own domain", "optical", "print"]
    for name, home, *scores in rows:
        found = last[name.removeprefix("client ")]
        assert home in ("optical", "print")
        assert scores == [f"{found[domain]:.2f}" for domain in head[2:]]
    assert "clients-0" not in page_of(made / "fpl-0").tables


def test_a_run_on_its_way_is_shown_but_not_scored(made: Path, copy: Copy) -> None:
    begun = copy("fpl-0")
    unfinish(begun, 2)
    page = page_of(made / "fedavg-0", begun)
    assert [row[0] for row in page.tables["results-table"]][:2] == ["method", "FedAvg"]
    mean = lines_of(begun / "scores.jsonl")[-1]["mean"]
    assert f"FPL, seed 0: round 2 of 3, mean accuracy {mean:.2f} %" in page.text
    assert "1 of 2 runs are finished" in page.text
    unfinish_all = copy("fedavg-0")
    unfinish(unfinish_all, 0)
    for name in ("env.json", "partition.json"):
        (unfinish_all / name).unlink()  # as it is in a run's first moment
    page = page_of(unfinish_all)
    assert "results-table" not in page.tables
    assert "round 0 of 3, not scored yet" in page.text


def test_only_what_was_said_stands_in_the_spec_table(made: Path) -> None:
    rows = page_of(made / "fedavg-0", made / "fedavg-1").tables["changed"]
    fields = {row[0]: row[1] for row in rows[1:]}
    assert fields["training.lr"] == "0.02"
    assert fields["rounds"] == "3"
    assert not fields.keys() & {"seed", "training.momentum", "threads", "data.name"}


def test_the_command_makes_the_same_run_again(copy: Copy, tmp_path: Path) -> None:
    folder = copy("fpl-0").rename(tmp_path / "a run's folder")
    page = page_of(folder)
    command = next(row for row in page.text.splitlines() if row.startswith("protofed run"))
    _, _, _, spec, _, out = shlex.split(command)
    assert parse_experiment(read_spec(Path(spec))).digest == read_record(folder).result.digest
    assert not Path(out).exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("scores.jsonl", '{"round": 1}\n'),
        ("scores.jsonl", '{"round": 1, "domains": {"optical": NaN}}\n'),
        ("scores.jsonl", "[1]\n"),
        ("rounds.jsonl", '{"round": 1}\n'),
        ("partition.json", '{"a": 1}'),
        ("partition.json", "nothing"),
    ],
)
def test_a_damaged_folder_is_told_by_name(copy: Copy, name: str, text: str) -> None:
    folder = copy("fpl-0")
    (folder / name).write_text(text)
    with pytest.raises(ProtofedError, match="fpl-0"):
        read_runs([folder])


def test_counts_that_a_site_keeps_back_are_called_so(copy: Copy) -> None:
    folder = copy("fpl-0")
    parts = json.loads((folder / "partition.json").read_text())
    parts[0]["held"] = {KEPT_BACK: 32}
    parts[1]["held"] = {"7": 4, "10": 5}
    (folder / "partition.json").write_text(json.dumps(parts[:2]))
    head, first, second = page_of(folder).tables["holdings"]
    assert head == ["client", "domain", "images", "classes", "7", "10"]
    assert first[2:] == ["32", "kept back", "-", "-"]
    assert second[2:] == ["9", "2", "4", "5"]
    (folder / "partition.json").write_text(json.dumps(parts[:1]))
    assert page_of(folder).tables["holdings"][1][2:] == ["32", "kept back"]


def test_two_folders_with_one_run_are_named(made: Path, copy: Copy) -> None:
    one, other = made / "fedavg-0", copy("fedavg-0")
    with pytest.raises(ProtofedError, match=f"{one} and {other} hold the same run"):
        read_runs([one, other])
