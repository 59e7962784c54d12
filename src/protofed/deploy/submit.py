"""Plays a run with the sites that have joined the server on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from protofed.core.errors import ProtofedError
from protofed.deploy.coordinate import coordinate
from protofed.deploy.job import Job, Listener
from protofed.deploy.serve import find
from protofed.engines.post import Post
from protofed.experiment.rundir import RunDir
from protofed.experiment.submitted import RECORD, experiment_of, offers_on_record


def finished(job: Job) -> RunDir | None:
    """The folder of a job whose run is finished: to read it, nobody has to be asked.

    The default folder's name depends on the sites' images, so that it is not known here.
    """
    folder = RunDir(Path(job.here) / job.out)
    if not job.out or not folder.done.exists() or not (folder.path / RECORD).exists():
        return None
    folder.check(experiment_of(job.spec, offers_on_record(folder.path)))
    return folder


def submit(job: Job, home: Path, listener: Listener) -> RunDir:
    """Play a job with the server whose files are in `home`; the folder of its run.

    The run ends with this process: who wants it to outlive a terminal lets it run in a service.
    """
    server = find(home)
    if unknown := [name for name in job.sites if server.sites and name not in server.sites]:
        raise ProtofedError(
            f"--sites: the server has no key of {', '.join(unknown)}; it has those of "
            f"{', '.join(server.sites)}\n`protofed keys` adds sites"
        )
    if not job.sites and not job.count:
        job = replace(job, sites=server.sites)
    from protofed.deploy.run_channel import RunChannel  # Flower takes a second to load

    with RunChannel(server.url, server.secret, server.ca) as channel:
        return coordinate(Post(channel), job, listener)
