"""Plays a run with the sites that have joined the server on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from protofed.core.errors import ProtofedError
from protofed.deploy.coordinate import coordinate_run
from protofed.deploy.job import JobListener, SubmittedJob
from protofed.deploy.serve import find_server
from protofed.engines.post import SiteMessenger
from protofed.experiment.rundir import RunDir
from protofed.experiment.submitted import RECORD, recorded_descriptions, remote_experiment


def finished_run(job: SubmittedJob) -> RunDir | None:
    """The folder of a job whose run is finished: to read it, nobody has to be asked.

    The default folder's name depends on the sites' images, so that it is not known here.
    """
    folder = RunDir(Path(job.here) / job.out)
    if not job.out or not folder.done.exists() or not (folder.path / RECORD).exists():
        return None
    folder.check(remote_experiment(job.spec, recorded_descriptions(folder.path)))
    return folder


def submit_job(job: SubmittedJob, home: Path, listener: JobListener) -> RunDir:
    """Play a job with the server whose files are in `home`; the folder of its run.

    The run ends with this process: who wants it to outlive a terminal lets it run in a service.
    """
    server = find_server(home)
    if unknown := [name for name in job.sites if server.sites and name not in server.sites]:
        raise ProtofedError(
            f"--sites: the server has no key of {', '.join(unknown)}; it has those of "
            f"{', '.join(server.sites)}\n`protofed keys` adds sites"
        )
    if not job.sites and not job.count:
        job = replace(job, sites=server.sites)
    from protofed.deploy.run_channel import RunChannel  # Flower takes a second to load

    with RunChannel(server.url, server.secret, server.ca) as channel:
        return coordinate_run(SiteMessenger(channel), job, listener)
