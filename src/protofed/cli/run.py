"""``protofed run`` and ``protofed resume``: one experiment from flags, TOML or its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofed.cli.compare import LeaveOut, run_leave_out_each

if TYPE_CHECKING:
    from protofed.experiment.result import RunResult
    from protofed.experiment.runner import Workers
    from protofed.spec.experiment_spec import Experiment

MOST_WORKERS = 256
WORKERS = typer.Option(
    "--workers", help="Processes that share the clients, 0 for none; the scores stay equal."
)


def run_command(
    method: Annotated[str | None, typer.Option(help="Method, see `protofed methods`.")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Benchmark, see `protofed data list`; or a folder of your images."),
    ] = None,
    net: Annotated[
        str | None,
        typer.Option(help="Net; default: the benchmark's. Several, as a,b: clients take turns."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds; default 20.")] = None,
    clients: Annotated[
        int | None, typer.Option(help="Clients, spread evenly over the domains.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random stream.")] = None,
    leave_out: LeaveOut = None,
    spec: Annotated[Path | None, typer.Option(help="TOML file with the experiment.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.field=value, e.g. training.epochs=1; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; default: runs/METHOD-DATA-DIGEST.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Start over, also if the run is finished.")
    ] = False,
    keep: Annotated[
        str, typer.Option(help="Rounds whose models stay on disk for figures, e.g. 1,10,40.")
    ] = "",
    workers: Annotated[str, WORKERS] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Train one federation and score it on every domain.

    A flag goes before --set, --set before the file, the file before the default. The same
    experiment run again is read from its folder, or goes on where it was interrupted.
    """
    flags = {
        "method.name": method,
        "data.name": data,
        "net": split_commas(net),
        "rounds": rounds,
        "partition.clients": clients,
        "seed": seed,
        "leave_out": None if leave_out == "each" else leave_out,
    }
    given = {field: value for field, value in flags.items() if value is not None}
    if leave_out == "each":
        if out or again or keep:
            raise typer.BadParameter("--leave-out each: no --out, --again or --keep")
        _each(spec, assignments or [], given, _side_by_side(parse_workers(workers)), as_json)
        return
    experiment = _experiment_from_flags(spec, assignments or [], given)
    from protofed.experiment.runner import default_folder

    place = out or default_folder(experiment)
    show_result(
        run_with_progress(experiment, place, again, _rounds(keep), parse_workers(workers)), as_json
    )


def show_result(result: RunResult, as_json: bool) -> None:
    """The result on stdout."""
    from protofed.cli.output import print_result

    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2))
    else:
        print_result(result)


def _side_by_side(workers: Workers) -> int:
    """How many runs of a grid may be at work at once, of which none has workers; 0: all cores."""
    return 0 if workers == "auto" else max(1, workers)


def _each(
    spec: Path | None,
    assignments: list[str],
    flags: Mapping[str, object],
    workers: int,
    as_json: bool,
) -> None:
    """One run for each domain that is left out, side by side."""
    from protofed.analysis.grid import GridVariant

    raw, _ = raw_spec(spec, assignments, flags)
    label = _experiment_from_flags(spec, assignments, flags).method.info.label
    seed = raw.pop("seed", 0)
    form = "json" if as_json else "table"
    run_leave_out_each([GridVariant(label, raw)], [seed], "last_five", workers, form, Path("runs"))


def _experiment_from_flags(
    spec: Path | None, assignments: list[str], flags: Mapping[str, object]
) -> Experiment:
    """The experiment that file, --set and flags together describe."""
    from protofed.errors import ProtofedError
    from protofed.spec.spec_parser import parse_experiment

    raw, from_file = raw_spec(spec, assignments, flags)
    try:
        return parse_experiment(raw)
    except ProtofedError:
        if spec:
            parse_experiment(from_file, str(spec))  # a fault of the file is told with its name
        raise


def split_commas(words: str | None) -> str | list[str] | None:
    """A name as it is, and ``a,b`` as a list."""
    return words.split(",") if words and "," in words else words


def raw_spec(
    spec: Path | None, assignments: list[str], flags: Mapping[str, object]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """File, --set and flags together as plain data, and what the file alone says."""
    from protofed.spec.spec_parser import choose_named, read_spec, set_field

    raw = from_file = read_spec(spec) if spec else {}
    for section in ("method", "data"):
        if f"{section}.name" in flags:
            raw = choose_named(raw, section, str(flags[f"{section}.name"]))
    spoken = [f"{field}={json.dumps(value)}" for field, value in flags.items()]
    for assignment in [*assignments, *spoken]:
        raw = set_field(raw, assignment)
    return raw, from_file


def _rounds(words: str) -> set[int]:
    """The round numbers of ``1,10,40``."""
    try:
        return {int(word) for word in words.split(",") if word.strip()}
    except ValueError:
        raise typer.BadParameter(f"--keep {words}: write round numbers, as 1,10,40") from None


def parse_workers(words: str) -> Workers:
    """The number of ``--workers``."""
    if words.isdecimal() and int(words) <= MOST_WORKERS:
        return int(words)
    if words != "auto":
        raise typer.BadParameter(f"--workers {words}: write auto, or a number up to {MOST_WORKERS}")
    return "auto"


def run_with_progress(
    experiment: Experiment, folder: Path, again: bool, keep: set[int], workers: Workers
) -> RunResult:
    """Run with progress on stderr, or read what is finished; Ctrl-C says how to go on."""
    from protofed.cli.output import RunWatcher
    from protofed.experiment.run_folder import RunDir
    from protofed.experiment.runner import run as run

    place = RunDir(folder)
    place.check(experiment)
    if place.done.exists() and not again:
        result = run(experiment, folder)
        typer.echo(f"already finished, read from {folder} (--again repeats it)", err=True)
        return result
    begun = None if again else place.newest()
    with RunWatcher(experiment, folder, begun.round if begun else 0) as watch:
        try:
            return run(experiment, folder, watch, again, keep, workers)
        except KeyboardInterrupt:
            same = "the same command without --again" if again else "the same command"
            watch.say(f"stopped; {same} goes on from {folder}")
            raise typer.Exit(130) from None


def resume_command(
    run: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False)],
    workers: Annotated[str, WORKERS] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Go on with an interrupted run from its newest checkpoint.

    The folder knows the experiment, so no flag is repeated. It ends with the same scores, bit for
    bit, as if it had never stopped. Of a finished run the table is printed.
    """
    from protofed.experiment.result import read_result
    from protofed.experiment.run_folder import RunDir, check_is_run

    check_is_run(run)
    place = RunDir(run)
    if place.done.exists():
        result = read_result(place)
    else:
        result = run_with_progress(
            _experiment_of_run(run), run, False, set(), parse_workers(workers)
        )
    show_result(result, as_json)


def _experiment_of_run(folder: Path) -> Experiment:
    """What the folder's spec says, if this machine can go on with it."""
    import shlex

    from protofed.errors import ProtofedError
    from protofed.experiment.remote_experiment import is_remote
    from protofed.experiment.run_records import load_spec

    experiment = load_spec(folder)
    if is_remote(experiment):
        spec, out = shlex.quote(str(folder / "spec.json")), shlex.quote(str(folder))
        raise ProtofedError(
            f"{folder} holds a run across machines: its sites must be asked\n"
            f"type, on the machine that serves: protofed submit {spec} --out {out} --resume"
        )
    return experiment
