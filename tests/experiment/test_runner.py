from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from protofed.core import tree
from protofed.data.benchmarks import BENCHMARKS
from protofed.engines.local_engine import LocalEngine
from protofed.errors import ProtofedError
from protofed.experiment.checkpoint import load_server_state
from protofed.experiment.round_report import RoundReport
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import run, sample_clients
from protofed.federation.build import build_federation
from protofed.methods import METHODS
from protofed.spec.experiment_spec import Experiment
from tests.experiment.conftest import quick

Make = Callable[..., Experiment]
FILES = {"spec.json", "env.json", "partition.json", "rounds.jsonl", "scores.jsonl"}


def test_the_run_folder_is_complete(tiny: Make, tmp_path: Path) -> None:
    experiment = tiny()
    result = run(experiment, tmp_path / "a")
    assert {p.name for p in (tmp_path / "a").iterdir()} == FILES | {
        "checkpoints",
        "done",
        "card.md",
    }
    spec = json.loads((tmp_path / "a" / "spec.json").read_text())
    assert spec["digest"] == experiment.digest == result.digest
    parts = json.loads((tmp_path / "a" / "partition.json").read_text())
    assert [part["domain"] for part in parts] == ["optical", "optical", "print"]
    assert [len(part["rows"]) for part in parts] == [9, 9, 9]
    rounds = RunDir(tmp_path / "a").lines(tmp_path / "a" / "rounds.jsonl")
    assert [line["round"] for line in rounds] == [1, 2, 3]
    newest = RunDir(tmp_path / "a").newest()
    assert newest is not None
    model = tree.nbytes(load_server_state(newest).model)
    assert rounds[0]["bytes_up"] == rounds[0]["bytes_down"] == 3 * model
    assert rounds[0]["parts"] == {"up": {"model": 3 * model}, "down": {"model": 3 * model}}
    env = json.loads((tmp_path / "a" / "env.json").read_text())
    assert env["torch"] == torch.__version__


def test_what_is_no_experiment_is_refused_with_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match=r"got 'fedavg'\na method .*\(method='fedavg'\)\)"):
        run("fedavg", tmp_path / "a")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", METHODS)
def test_a_second_run_gives_the_same_bytes(name: str, tiny: Make, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        run(tiny(method=quick(name), net="moon-cnn"), tmp_path / folder)
    for file in ("scores.jsonl", "spec.json", "partition.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_a_run_leaves_torchs_threads_and_generator_alone(tiny: Make, tmp_path: Path) -> None:
    before = torch.get_num_threads(), torch.get_rng_state()
    run(tiny(threads=2, rounds=1), tmp_path / "a")
    assert torch.get_num_threads() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


def test_another_seed_gives_other_scores(tiny: Make, tmp_path: Path) -> None:
    for seed in (0, 1):
        run(tiny(seed=seed), tmp_path / str(seed))
    for file in ("partition.json", "scores.jsonl"):
        one, two = ((tmp_path / str(seed) / file).read_text() for seed in (0, 1))
        assert one != two


class StoppedError(Exception):
    """Raised by a watcher in the middle of a run."""


@pytest.mark.parametrize("name", METHODS)
def test_an_interrupted_run_goes_on_and_ends_the_same(
    name: str, tiny: Make, tmp_path: Path
) -> None:
    def stop(report: RoundReport) -> None:
        if report.round == 2 and not report.notices:
            raise StoppedError

    experiment = tiny(method=quick(name), rounds=4)
    whole = run(experiment, tmp_path / "whole")
    with pytest.raises(StoppedError):
        run(experiment, tmp_path / "broken", stop)
    assert not (tmp_path / "broken" / "done").exists()
    seen: list[int] = []
    resumed = run(experiment, tmp_path / "broken", lambda progress: seen.append(progress.round))
    assert seen == [2, 3, 4]  # first where it stands, then each round
    assert resumed.last == whole.last
    one, two = ((tmp_path / folder / "scores.jsonl").read_bytes() for folder in ("whole", "broken"))
    assert one == two


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_schedule_goes_on_where_the_run_was_interrupted(
    workers: int, tiny: Make, tmp_path: Path
) -> None:
    def stop(progress: RoundReport) -> None:
        if progress.round == 2 and not progress.notices:
            raise StoppedError

    training = {"epochs": 1, "batch": 4, "optimizer": "adamw", "schedule": "cosine", "warmup": 1}
    experiment = tiny(rounds=4, training={**training, "clip_norm": 1.0})
    run(experiment, tmp_path / "whole", workers=0)
    with pytest.raises(StoppedError):
        run(experiment, tmp_path / "broken", stop, workers=workers)
    run(experiment, tmp_path / "broken", workers=workers)
    for name in ("scores.jsonl", "checkpoints/round-00004/server.safetensors"):
        one, two = ((tmp_path / folder / name).read_bytes() for folder in ("whole", "broken"))
        assert one == two


def test_a_line_beyond_the_checkpoint_is_dropped_on_resuming(tiny: Make, tmp_path: Path) -> None:
    experiment = tiny(rounds=3)
    whole = run(experiment, tmp_path / "a")
    folder = RunDir(tmp_path / "a")
    before = folder.scores.read_bytes()
    folder.done.unlink()
    newest = folder.newest()
    assert newest is not None
    (newest.folder / "server.safetensors").write_bytes(b"damaged")
    assert run(experiment, tmp_path / "a").last == whole.last
    assert folder.scores.read_bytes() == before


def test_a_finished_run_is_read_not_repeated(tiny: Make, tmp_path: Path) -> None:
    first = run(tiny(), tmp_path / "a")

    def never(report: RoundReport) -> None:
        raise AssertionError("trained again")

    assert run(tiny(), tmp_path / "a", never) == first
    rounds: list[int] = []
    run(tiny(), tmp_path / "a", lambda progress: rounds.append(progress.round), again=True)
    assert rounds == [0, 1, 2, 3]


def test_a_folder_of_another_experiment_is_refused_and_kept(tiny: Make, tmp_path: Path) -> None:
    run(tiny(), tmp_path / "a")
    with pytest.raises(ProtofedError, match="another experiment"):
        run(tiny(seed=5), tmp_path / "a")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(ProtofedError, match="not an empty folder"):
        run(tiny(), tmp_path / "mine", again=True)
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "years of work"


def test_a_folder_that_cannot_be_made_is_one_clear_line(tiny: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProtofedError, match="cannot write"):
        run(tiny(), tmp_path / "file" / "below")


def test_scores_are_taken_at_the_interval_and_after_the_last_round(
    tiny: Make, tmp_path: Path
) -> None:
    result = run(tiny(rounds=5, evaluate_every=2), tmp_path / "a")
    lines = RunDir(tmp_path / "a").lines(tmp_path / "a" / "scores.jsonl")
    assert [line["round"] for line in lines] == [2, 4, 5]
    for domain, score in result.last_five.domains.items():
        assert score == pytest.approx(sum(line["domains"][domain] for line in lines) / 3)
    assert result.last.domains == lines[-1]["domains"]


def test_participants_are_a_share_drawn_anew_each_round(tiny: Make) -> None:
    experiment = tiny(participation=0.3)
    clients = list(range(10))
    drawn = [sample_clients(experiment, clients, number) for number in range(30)]
    assert all(len(who) == 3 and who == sorted(set(who)) for who in drawn)
    assert drawn == [sample_clients(experiment, clients, number) for number in range(30)]
    assert len({tuple(who) for who in drawn}) > 10
    assert {client for who in drawn for client in who} == set(clients)
    assert sample_clients(tiny(participation=0.01), clients, 0) != []


def test_clients_without_images_are_skipped_with_a_notice(tiny: Make, tmp_path: Path) -> None:
    clients, samples = {"optical": 2, "print": 1}, {"optical": 9, "print": 0}
    partition = {"kind": "shares", "clients": clients, "samples": samples}
    result = run(tiny(partition=partition, rounds=1), tmp_path / "a")
    assert any(
        "hold no image" in notice.text and "2 (print)" in notice.text for notice in result.notices
    )
    assert result.last.domains["print"] is not None


def test_a_federation_without_any_image_is_an_error_and_leaves_no_folder(
    tiny: Make, tmp_path: Path
) -> None:
    with pytest.raises(ProtofedError, match="no client holds any image"):
        run(tiny(partition={"kind": "shares", "clients": 2, "samples": 0}), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_a_class_that_nobody_holds_is_noticed_and_breaks_nothing(
    tiny: Make, tmp_path: Path
) -> None:
    experiment = tiny(partition={"kind": "shares", "clients": 2, "samples": 3}, rounds=1)
    result = run(experiment, tmp_path / "a")
    sites = build_federation(experiment).sites.values()
    held = {label for site in sites for label in site.train.labels.tolist()}
    missing = [str(digit) for digit in range(10) if digit not in held]
    assert missing
    assert any(f"class {', '.join(missing)}" in notice.text for notice in result.notices)


@pytest.mark.parametrize(
    "sizes", [(0, 1, 2, 4), pytest.param((5, 4, 1, 2), marks=pytest.mark.long)], ids=str
)
@pytest.mark.parametrize("name", METHODS)
def test_odd_sizes_and_missing_classes_with_batch_norm_stay_finite(
    name: str, sizes: tuple[int, ...], tiny: Make, tmp_path: Path
) -> None:
    """Clients with no image, one, two, a batch, and one more; nobody holds all ten classes."""
    domains = BENCHMARKS["digits-mini"].domains
    samples = dict(zip(domains, sizes, strict=True))
    experiment = tiny(
        method=quick(name),
        net="resnet10",
        data={"side": 8},
        partition={"kind": "shares", "clients": len(domains), "samples": samples},
        rounds=2,
        evaluate_every=2,
    )
    result = run(experiment, tmp_path / "a")
    folder = RunDir(tmp_path / "a")
    newest = folder.newest()
    assert newest is not None
    engine = LocalEngine(METHODS[name](), {})
    engine.load(newest.folder)
    assert tree.finite([load_server_state(newest), engine.states])
    assert result.last.mean is not None


def test_what_a_method_ended_as_is_in_its_notices_card_and_resumed_run(
    tiny: Make, tmp_path: Path
) -> None:
    experiment = tiny(method="fpl")  # of three clients, so each class has one cluster
    result = run(experiment, tmp_path / "whole")
    (notice,) = [notice for notice in result.notices if notice.kind == "method"]
    assert "one cluster per class" in notice.text
    assert str(notice) in (tmp_path / "whole" / "card.md").read_text()
    (tmp_path / "whole" / "done").unlink()  # killed between the last round and its end
    assert run(experiment, tmp_path / "whole").notices == result.notices
    assert not any(n.kind == "method" for n in run(tiny(), tmp_path / "plain").notices)
