"""``protofed run`` and ``protofed resume``: one experiment from flags, TOML or its folder."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofed.cli.compare import run_leave_out_each
from protofed.cli.options import (
    FormatOption,
    JsonOption,
    LeaveOutOption,
    SetOption,
    StaleOption,
    TrackOption,
    TrackToOption,
    WorkersOption,
    chosen_format,
    parse_rounds,
    parse_workers,
    run_options,
)

if TYPE_CHECKING:
    from protofed.analysis.run_process import RunOptions
    from protofed.experiment.result import RunResult
    from protofed.experiment.run_folder import RunDir
    from protofed.experiment.run_followers import RunWatcher
    from protofed.experiment.runner import Workers
    from protofed.runtime.text_tables import TableFormat
    from protofed.spec.experiment_spec import Experiment


def run_command(
    method: Annotated[
        str | None, typer.Option(help="Method, see `protofed methods`; or path/to/mine.py:Mine.")
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Benchmark, see `protofed data list`; or a folder of your data."),
    ] = None,
    net: Annotated[
        str | None,
        typer.Option(help="Net; default: the benchmark's. With a,b the clients take turns."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Communication rounds; default 20.")] = None,
    clients: Annotated[
        int | None, typer.Option(help="Clients, spread evenly over the domains.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of every random stream.")] = None,
    leave_out: LeaveOutOption = None,
    spec: Annotated[Path | None, typer.Option(help="TOML file with the experiment.")] = None,
    assignments: SetOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder; default: runs/METHOD-DATA-DIGEST.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Start over, even if the run is finished.")
    ] = False,
    keep: Annotated[
        str, typer.Option(help="Rounds whose models are kept for figures, e.g. 1,10,40.")
    ] = "",
    workers: WorkersOption = "auto",
    stale: StaleOption = "refuse",
    track: TrackOption = None,
    track_to: TrackToOption = None,
    form: FormatOption = "terminal",
    as_json: JsonOption = False,
) -> None:
    """Train one federation and score it on every domain.

    Precedence: flags, then --set, then the spec file, then defaults. If the experiment is already
    finished, its result is read from its folder; if it was interrupted, it resumes.
    """
    form = chosen_format(form, as_json)
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
        options = run_options(stale, track, track_to)
        _each(spec, assignments or [], given, parse_workers(workers), form, options)
        return
    experiment = _experiment_from_flags(spec, assignments or [], given)
    from protofed.experiment.runner import default_folder

    place, options = out or default_folder(experiment), run_options(stale, track, track_to)
    kept, count = set(parse_rounds("--keep", keep)), parse_workers(workers)
    show_result(run_with_progress(experiment, place, again, kept, count, options), form)


def show_result(result: RunResult, form: TableFormat) -> None:
    """Print the result of a run on stdout in one of the formats."""
    from protofed.cli.output import print_result

    print_result(result, form)


def _each(
    spec: Path | None,
    assignments: list[str],
    flags: Mapping[str, object],
    workers: Workers,
    form: TableFormat,
    options: RunOptions,
) -> None:
    """One run per domain that is left out."""
    from protofed.analysis.sweep import GridVariant

    raw, _ = raw_spec(spec, assignments, flags)
    label = _experiment_from_flags(spec, assignments, flags).method.info.label
    seed = raw.pop("seed", 0)
    variants, runs = [GridVariant(label, raw)], Path("runs")
    run_leave_out_each(variants, [seed], None, workers, form, runs, options)


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
    """A name as it is, and ``a,b`` as a list of names, for options that take both."""
    return words.split(",") if words and "," in words else words


def raw_spec(
    spec: Path | None, assignments: list[str], flags: Mapping[str, object]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """File, --set and flags combined as plain data, and the file's own content.

    Precedence: flags, then --set, then the file. The second value serves error messages, which name
    the file if the fault is in it.
    """
    from protofed.spec.spec_parser import choose_named, read_spec, set_field, set_value

    raw = from_file = read_spec(spec) if spec else {}
    for section in ("method", "data"):
        if f"{section}.name" in flags:
            raw = choose_named(raw, section, str(flags[f"{section}.name"]))
    for assignment in assignments:
        raw = set_field(raw, assignment)
    for field, value in flags.items():
        raw = set_value(raw, field, value)
    return raw, from_file


def run_with_progress(
    experiment: Experiment,
    folder: Path,
    again: bool,
    keep: set[int],
    workers: Workers,
    options: RunOptions,
) -> RunResult:
    """Run with progress on stderr, or read a finished run.

    Ctrl-C ends with exit code 130 and a line on how to resume.
    """
    from protofed.experiment.run_folder import RunDir
    from protofed.experiment.run_followers import RunWatcher, TrackerGuard
    from protofed.experiment.runner import run
    from protofed.experiment.stale_code import must_repeat

    place = RunDir(folder)
    place.check(experiment)
    repeat = again or bool(must_repeat(place, experiment, options.stale))
    if place.done.exists() and not repeat:
        result = run(experiment, folder, stale=options.stale)
        typer.echo(f"already finished, read from {folder} (--again repeats it)", err=True)
        return result
    begun = None if repeat else place.newest()
    with RunWatcher(experiment, folder, begun.round if begun else 0) as watch:
        note = partial(_note, watch)
        trackers = [TrackerGuard(tracker, note) for tracker in options.track.create()]
        plain = partial(run, progress=False, stale=options.stale)
        try:
            return plain(experiment, folder, watch, again, keep, workers, trackers)
        except KeyboardInterrupt:
            same = "the same command without --again" if again else "the same command"
            watch.say(f"stopped; {same} resumes from {folder}")
            raise typer.Exit(130) from None


def _note(watch: RunWatcher, text: str) -> None:
    watch.say(f"note: {text}")


def resume_command(
    run: Annotated[Path, typer.Argument(help="The run's folder.", show_default=False)],
    workers: WorkersOption = "auto",
    track: TrackOption = None,
    track_to: TrackToOption = None,
    form: FormatOption = "terminal",
    as_json: JsonOption = False,
) -> None:
    """Resume an interrupted run from its newest checkpoint.

    The folder holds the experiment, so no other flag is needed. The scores are bit for bit those
    of a run that was never interrupted. For a finished run, the table is printed again.
    """
    form = chosen_format(form, as_json)
    from protofed.experiment.result import read_result
    from protofed.experiment.run_folder import RunDir, check_is_run

    check_is_run(run)
    place = RunDir(run)
    if place.done.exists():
        result = read_result(place)
        _note_changed_code(place)
    else:
        how, count = run_options("refuse", track, track_to), parse_workers(workers)
        result = run_with_progress(_experiment_of_run(run), run, False, set(), count, how)
    show_result(result, form)


def _note_changed_code(folder: RunDir) -> None:
    """Say on stderr if a finished run of a method of ours was made by other code than today's."""
    from protofed.experiment.run_records import load_spec
    from protofed.experiment.stale_code import code_changes, describe_files
    from protofed.spec.method_lookup import UnloadedMethod, code_names

    experiment = load_spec(folder.path)
    if isinstance(experiment.method, UnloadedMethod) or code_names(experiment.to_dict()):
        typer.echo("note: read from the record; its code is compared by `run`", err=True)
        return  # nothing is loaded for a note
    if changed := code_changes(folder, experiment):
        typer.echo(f"note: made by other code; changed since: {describe_files(changed)}", err=True)


def _experiment_of_run(folder: Path) -> Experiment:
    """What the folder's spec says, if this machine can go on with it."""
    import shlex

    from protofed.errors import ProtofedError
    from protofed.experiment.run_records import load_spec
    from protofed.runtime.code_reference import ANY_CODE
    from protofed.spec.experiment_spec import SiteData

    experiment = load_spec(folder, ANY_CODE)
    if isinstance(experiment.data, SiteData):
        spec, out = shlex.quote(str(folder / "spec.json")), shlex.quote(str(folder))
        raise ProtofedError(
            f"{folder} holds a run across machines: its sites must be asked\n"
            f"type, on the machine that serves: protofed submit {spec} --out {out} --resume"
        )
    return experiment
