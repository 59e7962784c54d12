"""``protofed keys``, ``serve``, ``join`` and ``submit``: a federation across machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from protofed.cli.options import FormatOption, JsonOption, chosen_format, option_flag
from protofed.errors import ProtofedError, printable_text, render_options

if TYPE_CHECKING:
    from protofed.deploy.coordinator import SubmittedJob
    from protofed.deploy.keys import MadeKeys
    from protofed.deploy.preflight import JoiningSite
    from protofed.experiment.round_report import RoundReport
    from protofed.experiment.run_folder import RunDir
    from protofed.experiment.run_followers import RunWatcher
    from protofed.spec.experiment_spec import Experiment


def keys_command(
    folder: Annotated[Path, typer.Argument(help="Where the keys are kept.", show_default=False)],
    server: Annotated[
        str, typer.Option(metavar="HOST[:PORT]", help="Where sites will reach the server.")
    ],
    sites: Annotated[
        list[str],
        typer.Option(metavar="NAME ...", help="Names of the sites; existing ones keep their keys."),
    ],
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="How long the server's certificate is valid.")
    ] = 365,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Make the keys of a federation across machines; add sites to it later.

    Existing files are never overwritten. Private files can be read by their owner alone.
    """
    from protofed.deploy.keys import make_keys

    made = make_keys(folder, server, sites, days)
    if as_json:
        told = {"folder": str(made.folder), "server": str(made.server), "new": made.new}
        more = {"kept": made.kept, "new_certificate": made.certificate}
        typer.echo(json.dumps({**told, **more, "commands": _commands(made)}, indent=2))
        return
    for name in made.new:
        typer.echo(f"{name}: new key in {made.folder / name}: hand this folder to the site alone")
    for name in made.kept:
        typer.echo(f"{name}: keeps its key")
    if made.certificate:
        typer.echo(f"{made.server.host}: new certificate for {days} days in {made.folder}/server")
    typer.echo(f"keep {made.folder / 'ca'} to yourself: whoever has it can impersonate the server")
    typer.echo("\nwhat to type:")
    for where, command in _commands(made).items():
        typer.echo(f"  {where:<{max(map(len, _commands(made)))}}  {command}")


def _commands(made: MadeKeys) -> dict[str, str]:
    """By place, the command to type there."""
    joins = {
        f"at {name}": f"protofed join {made.server} --name {name} --keys {made.folder / name} "
        f"--data IMAGES"
        for name in (*made.new, *made.kept)
    }
    return {
        "at the server": f"protofed serve --keys {made.folder} --port {made.server.port}",
        **joins,
        "then, at the server": "protofed submit SPEC.toml",
    }


def run_join_check(site: JoiningSite, as_json: bool = False) -> NoReturn:
    """Check what a site needs to join, print a line per check, and exit.

    The exit code is 1 if any check failed. `as_json` prints a list of objects instead.
    """
    from protofed.deploy.preflight import format_check_lines, run_preflight

    lines = [
        line._replace(fix="" if line.ok else render_options(line.fix, option_flag))
        for line in run_preflight(site)
    ]
    found = [line._asdict() for line in lines]
    typer.echo(json.dumps(found, indent=2) if as_json else format_check_lines(lines))
    raise typer.Exit(1 if any(line.ok is False for line in lines) else 0)


Home = Annotated[
    Path | None, typer.Option(help="Folder for its files; default: below ~/.protofed.")
]
LOCAL = "127.0.0.1"


def serve_command(
    keys: Annotated[Path | None, typer.Option(help="Folder of keys, see `protofed keys`.")] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(min=1, max=65535, help="The one public port.")] = 8443,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="No keys, no TLS: only for trials on one machine.")
    ] = False,
    home: Home = None,
) -> None:
    """Serve a federation: sites join here, and runs are submitted on this machine.

    Ctrl-C stops it. Sites stay and join again when it is back; a run that was under way can be
    resumed.
    """
    _needs_flower()
    from protofed.deploy.serve import serve_federation as stand
    from protofed.deploy.serve import state_folder

    if insecure == bool(keys):
        raise typer.BadParameter("give --keys, or --insecure for a trial on one machine")
    if insecure:
        typer.echo(
            "warning: --insecure: any user of this machine can join and start runs", err=True
        )
        typer.echo("listening on 127.0.0.1 only; give --keys for other machines", err=True)
        host = LOCAL
    stand(_full(home) or state_folder("server"), (host, port), _full(keys))


def join_command(
    server: Annotated[str, typer.Argument(help="HOST:PORT of the server.")],
    name: Annotated[str, typer.Option(help="Name of this site.")],
    data: Annotated[Path, typer.Option(help="Folder of this site's images: class/image.")],
    keys: Annotated[
        Path | None, typer.Option(help="Folder of this site's keys, from the coordinator.")
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(help="TOML file: what may leave this site.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check everything that is needed, without joining.")
    ] = False,
    home: Home = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --check: print the results as JSON.")
    ] = False,
) -> None:
    """Take part in a federation with the images of this site, which never leave it.

    Ctrl-C leaves the federation. The policy is read at the start: restart to apply a change.
    """
    _needs_flower()
    from protofed.cli.federation import run_join_check
    from protofed.deploy.join import join_federation as take_part
    from protofed.deploy.preflight import JoiningSite
    from protofed.deploy.serve import state_folder

    if as_json and not check:
        raise typer.BadParameter("--json goes with --check alone: joining prints lines")
    place = _full(home) or state_folder(f"site-{name}")
    site = JoiningSite(server, name, data.expanduser().resolve(), place, _full(keys), _full(policy))
    if check:
        run_join_check(site, as_json)
    take_part(site)


def submit_command(
    spec: Annotated[Path, typer.Argument(help="TOML file with the experiment, without images.")],
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="section.field=value, e.g. training.epochs=1; repeatable."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default as for `run`.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume an interrupted run.")] = False,
    sites: Annotated[
        str, typer.Option(help="Sites that take part: a,b,c, or a number; default: all with a key.")
    ] = "",
    deadline: Annotated[
        float, typer.Option(min=1, help="Seconds a site has for one exchange.")
    ] = 600.0,
    wait: Annotated[
        float, typer.Option(min=1, help="Seconds to wait for the sites to come online.")
    ] = 120.0,
    home: Home = None,
    form: FormatOption = "terminal",
    as_json: JsonOption = False,
) -> None:
    """Train with the sites that have joined; on the machine that serves.

    Ctrl-C stops the run; the same command with --resume continues it.
    """
    _needs_flower()
    from protofed.cli.run import raw_spec, show_result
    from protofed.deploy.coordinator import SubmittedJob
    from protofed.experiment.result import read_result
    from protofed.federation.remote_sites import remote_experiment

    raw, _ = raw_spec(spec, assignments or [], {})
    remote_experiment(raw)  # to find a fault before any site is asked
    names, count = ((), int(sites)) if sites.isdecimal() else (_listed(sites), 0)
    here, told = str(Path.cwd()), str(out or "")
    job = SubmittedJob(raw, here, told, names, count, deadline, wait, resume)
    show_result(read_result(_played(job, home)), chosen_format(form, as_json))


def _played(job: SubmittedJob, home: Path | None) -> RunDir:
    """The folder of a job's run, once that is finished, or at once if it was before."""
    from protofed.deploy.coordinator import finished_run
    from protofed.deploy.coordinator import submit_job as play
    from protofed.deploy.serve import state_folder

    if folder := finished_run(job):
        typer.echo(f"already finished, read from {folder.path}", err=True)
        return folder
    follower = JobFollower()
    try:
        return play(job, _full(home) or state_folder("server"), follower)
    except KeyboardInterrupt:
        typer.echo("stopped; run the same command with --resume to continue", err=True)
        raise typer.Exit(130) from None
    finally:
        follower.end()


class JobFollower:
    """Shows the progress of a submitted run, as `run` shows its own.

    Lines on what is waited for appear beside the progress bar.
    """

    def __init__(self) -> None:
        self.watcher: RunWatcher | None = None

    def waiting(self, words: str) -> None:
        """Report what is waited for; beside the progress bar, once there is one."""
        if self.watcher:
            self.watcher.say(words)
        else:
            typer.echo(printable_text(words), err=True)

    def begins(self, experiment: Experiment, folder: Path, finished: int) -> None:
        """What the run is, where it goes, and how many rounds are behind it."""
        from protofed.experiment.run_followers import RunWatcher

        self.watcher = RunWatcher(experiment, folder, finished).__enter__()

    def watch(self, report: RoundReport) -> None:
        """How far the run is."""
        if self.watcher:
            self.watcher(report)

    def end(self) -> None:
        """Leave the terminal as it was."""
        if self.watcher:
            self.watcher.__exit__(None, None, None)


def _listed(words: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in words.split(",") if word.strip())


def _full(path: Path | None) -> Path | None:
    return path.expanduser().resolve() if path else None


def _needs_flower() -> None:
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise ProtofedError("this needs Flower: pip install 'protofed[flower]'")
