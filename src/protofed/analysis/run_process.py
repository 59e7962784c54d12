"""One run of a grid in a process of its own, started by a command rather than by multiprocessing.

Multiprocessing would run the caller's script a second time. The experiment travels as plain data,
and the code that it names is imported anew.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NamedTuple

from protofed.analysis.sweep import GridCell
from protofed.errors import BusyError, ProtofedError
from protofed.experiment.run_followers import TrackerGuard, Watch
from protofed.experiment.runner import run
from protofed.experiment.stale_code import StaleRule
from protofed.runtime.child_process import exit_with_pipe, ignore_sigint_in_children
from protofed.runtime.code_reference import describe_fault, parse_reference
from protofed.runtime.module_files import MAIN
from protofed.spec.code_fingerprint import code_digests, set_at_run_time
from protofed.spec.experiment_spec import Experiment
from protofed.spec.method_lookup import code_names
from protofed.spec.spec_parser import parse_experiment
from protofed.tracking import TrackerChoice

BUSY = 3  # exit code of a process that found its run held by another
COMMAND = "from protofed.analysis.run_process import process_main; process_main()"


class RunOptions(NamedTuple):
    """How runs are made, beyond what their experiments say.

    `stale` says what happens to runs that other code has made, as for `run`; `track` names the
    trackers that log each run; `keep` names the scored rounds whose models stay.
    """

    stale: StaleRule = "refuse"
    track: TrackerChoice = TrackerChoice()
    keep: tuple[int, ...] = ()


def can_travel(experiment: Experiment) -> bool:
    """Whether another process can make this experiment of its plain data.

    It cannot if a class was defined in the running script, at a prompt, or inside a function, nor
    if this program has set values in its module that another process would not have.
    """
    found = [parse_reference(name) for name in code_names(experiment.to_dict())]
    if any(one.find_module_name() == MAIN or "<" in one.name for one in found):
        return False
    return not found or not set_at_run_time(code_digests(experiment))


class RunProcess:
    """A run in its own process, as its parent sees it.

    What the run has to say comes through `messages`; a fault that ends it is kept in `fault`.
    """

    def __init__(self, cell: GridCell, options: RunOptions):
        self.cell, self.fault = cell, ""
        self.pipe, theirs = Pipe(duplex=True)
        life, self.life = os.pipe()
        command = [sys.executable, "-c", COMMAND, str(theirs.fileno()), str(life)]
        try:
            with ignore_sigint_in_children():  # the parent decides
                self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(), life))
        except OSError:
            self.pipe.close()
            os.close(self.life)
            raise
        finally:
            theirs.close()
            os.close(life)
        with suppress(ConnectionError):  # it died at once, as its exit code will tell
            self.pipe.send_bytes(json.dumps(_job(cell, options)).encode())

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def messages(self) -> Iterator[str]:
        """What the run has said since the last call, without the fault that ended it."""
        with suppress(EOFError, ConnectionError):
            while self.pipe.poll():
                ended, text = json.loads(self.pipe.recv_bytes())
                if ended:
                    self.fault = text
                else:
                    yield text

    def end(self) -> int:
        """Wait until it has ended; returns its exit code."""
        code = self.process.wait()
        self.pipe.close()
        os.close(self.life)
        return code


def _job(cell: GridCell, options: RunOptions) -> dict[str, Any]:
    to = options.track.to
    return {
        "path": sys.path,
        "label": cell.label,
        "seed": cell.seed,
        "spec": cell.experiment.to_dict(),
        "folder": str(cell.folder),
        "stop_after": cell.stop_after,
        "stale": options.stale,
        "trackers": options.track.names,
        "track_to": None if to is None else str(to),
        "keep": options.keep,
    }


def run_cell(
    cell: GridCell, options: RunOptions, note: Callable[[str], None], watch: Watch
) -> None:
    """One run of a grid, which shows the progress of all together; `note` gets trackers' faults."""
    run(
        cell.experiment,
        cell.folder,
        watch,
        workers=0,  # the runs of the grid are side by side already
        trackers=[TrackerGuard(tracker, note) for tracker in options.track.create()],
        progress=False,
        keep=options.keep,
        stale=options.stale,
        stop_after=cell.stop_after,
    )


def process_main() -> None:
    """The entry point of the process, with the descriptors that its command line names.

    It sends pairs: whether a text is the fault that ended the run, and the text.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which its parent ends it
    pipe, life = Connection(int(sys.argv[1])), int(sys.argv[2])
    exit_with_pipe(life)  # its folder keeps the last checkpoint

    def send(ended: bool, text: str) -> None:
        pipe.send_bytes(json.dumps([ended, text]).encode())

    try:
        cell, options = _read_job(json.loads(pipe.recv_bytes()))
        run_cell(cell, options, lambda text: send(False, text), lambda report: None)
    except BusyError:
        raise SystemExit(BUSY) from None
    except ProtofedError as fault:
        send(True, describe_fault(fault))
        raise SystemExit(1) from None
    except Exception as fault:
        send(True, describe_fault(fault))
        raise


def _read_job(job: dict[str, Any]) -> tuple[GridCell, RunOptions]:
    sys.path[:] = job["path"]  # so that the user's own code is found here too
    experiment = parse_experiment(job["spec"])
    to = job["track_to"]
    track = TrackerChoice(tuple(job["trackers"]), None if to is None else Path(to))
    cell = GridCell(job["label"], job["seed"], experiment, Path(job["folder"]), job["stop_after"])
    return cell, RunOptions(job["stale"], track, tuple(job["keep"]))
