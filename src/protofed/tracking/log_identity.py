"""Which log belongs to a run: its name, and its id in a service that hands out ids."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

from protofed.errors import ProtofedError
from protofed.experiment.run_folder import RunDir
from protofed.experiment.run_records import TRACKING, TrackingRecord, read_record_file

Service: TypeAlias = Literal["wandb", "mlflow"]  # those that hand out ids


def log_name(folder: Path) -> str:
    """The name of a run in a log: its folder's, with a piece of the digest.

    Two experiments in folders of one name thus never share a log.
    """
    digest, name = RunDir(folder).digest()[:8], folder.resolve().name
    return name if digest in name else f"{name}-{digest}"


def known_log_id(folder: Path, tracker: Service) -> str:
    """The id under which a tracker has begun to log a run, or an empty text."""
    return _ids(folder).get(tracker, "")


def keep_log_id(folder: Path, tracker: Service, name: str) -> None:
    """Put the id of a log on record in the run folder, so that a resumed run finds it."""
    place = RunDir(folder)
    place.write(place.tracking.name, {**_ids(folder), tracker: name})


def _ids(folder: Path) -> TrackingRecord:
    file = RunDir(folder).tracking
    return read_record_file(TRACKING, file) if file.exists() else {}


def require_package(module: str, name: str, extra: str) -> None:
    """Refuse to go on without a package that an extra installs; it is not loaded yet."""
    if find_spec(module) is None:
        raise ProtofedError(f"this needs {name}: pip install 'protofed[{extra}]'")
