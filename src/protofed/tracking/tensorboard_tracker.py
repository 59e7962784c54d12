"""Runs as TensorBoard logs, live or from finished folders (extra ``track``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protofed.errors import ProtofedError
from protofed.experiment.result import RunResult
from protofed.experiment.round_report import RoundReport, read_reports
from protofed.spec.experiment_spec import Experiment
from protofed.tracking.log_identity import log_name
from protofed.tracking.round_scalars import round_scalars

EVENT_FILES = "events.out.tfevents.*"


class TensorBoardTracker:
    """Writes a run to ``to/NAME`` as it makes progress; ``tensorboard --logdir to`` shows it.

    A log of the run that is there is replaced by one with the rounds that the run folder has, so a
    resumed run has every point once. Needs the extra ``track``.
    """

    def __init__(self, to: Path | str = "tensorboard"):
        self.to = Path(to)
        self._writer: Any = None
        _summary_writer()  # told before a run begins, not in the middle

    def start(self, experiment: Experiment, folder: Path) -> None:
        self.open(folder)

    def open(self, folder: Path) -> int:
        """Begin a log with all rounds on record; return how many values these have."""
        place = self.place(folder)
        past = read_reports(folder)
        for old in place.glob(EVENT_FILES):
            old.unlink()
        # The purge is for a TensorBoard that has read the replaced file already.
        self._writer = _summary_writer()(str(place), purge_step=1)
        count = sum(self._write(report) for report in past)
        self._writer.flush()
        return count

    def place(self, folder: Path) -> Path:
        """Where the log of a run folder is."""
        return self.to / log_name(folder)

    def round(self, report: RoundReport) -> None:
        self._write(report)
        self._writer.flush()

    def _write(self, report: RoundReport) -> int:
        values = round_scalars(report)
        for name, value in values.items():
            self._writer.add_scalar(name, value, report.round)
        return len(values)

    def end(self, result: RunResult | None) -> None:
        self._writer.close()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ProtofedError("this needs TensorBoard: pip install 'protofed[track]'") from None
    return SummaryWriter
