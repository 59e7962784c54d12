"""``protofed resume``: an interrupted run, from its folder alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofed.cli.run import WORKERS, parse_workers, run_with_progress, show_result

if TYPE_CHECKING:
    from protofed.experiment.spec import Experiment


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
    from protofed.experiment.rundir import RunDir, check_is_run

    check_is_run(run)
    place = RunDir(run)
    if place.done.exists():
        result = read_result(place)
    else:
        result = run_with_progress(_experiment_of_run(run), run, False, set(), parse_workers(workers))
    show_result(result, as_json)


def _experiment_of_run(folder: Path) -> Experiment:
    """What the folder's spec says, if this machine can go on with it."""
    import shlex

    from protofed.core.errors import ProtofedError
    from protofed.experiment.parse import load_spec
    from protofed.experiment.submitted import is_remote

    experiment = load_spec(folder)
    if is_remote(experiment):
        spec, out = shlex.quote(str(folder / "spec.json")), shlex.quote(str(folder))
        raise ProtofedError(
            f"{folder} holds a run across machines: its sites must be asked\n"
            f"type, on the machine that serves: protofed submit {spec} --out {out} --resume"
        )
    return experiment
