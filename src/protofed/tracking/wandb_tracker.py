"""Runs in Weights & Biases (extra ``wandb``)."""

from __future__ import annotations

import glob
import secrets
import shutil
from pathlib import Path
from typing import Any

from protofed.experiment.result import RunResult
from protofed.experiment.round_report import RoundReport, read_reports
from protofed.spec.experiment_spec import Experiment
from protofed.tracking.log_identity import (
    keep_log_id,
    known_log_id,
    log_name,
    require_package,
)
from protofed.tracking.round_scalars import round_scalars


class WandbTracker:
    """Logs a run to Weights & Biases, in the project that you name; the round is the step.

    Sign in with ``wandb login``, or set ``WANDB_MODE=offline`` and send the files later with
    ``wandb sync``. They are in ``to/wandb``; without `to`, where W&B puts them. A resumed run
    continues its W&B run. Needs the extra ``wandb``.
    """

    def __init__(self, to: Path | str | None = None, project: str = "protofed"):
        self.to, self.project = None if to is None else Path(to), project
        self._run: Any = None
        require_package("wandb", "Weights & Biases", "wandb")

    def start(self, experiment: Experiment, folder: Path) -> None:
        import wandb

        if self.to:
            self.to.mkdir(parents=True, exist_ok=True)
        known = known_log_id(folder, "wandb")
        name = known or secrets.token_hex(8)
        self._run = wandb.init(
            project=self.project,
            id=name,
            name=log_name(folder),
            dir=self.to,
            config=experiment.to_dict(),
            resume="allow",
            reinit="create_new",  # beside a run that the caller may have
            settings=wandb.Settings(console="off", quiet=True),
        )
        keep_log_id(folder, "wandb", name)
        if known and self._run.offline:
            self._drop_older_files(name)
        for report in read_reports(folder):
            self.round(report)

    def _drop_older_files(self, name: str) -> None:
        """Delete what was written before: offline, every start writes all rounds to a new file."""
        newest = Path(self._run.dir).parent
        for old in newest.parent.glob(f"offline-run-*-{glob.escape(name)}"):
            if old != newest:
                shutil.rmtree(old)

    def round(self, report: RoundReport) -> None:
        if report.round >= self._run.starting_step:  # W&B has the rounds before
            self._run.log(round_scalars(report), step=report.round)

    def end(self, result: RunResult | None) -> None:
        self._run.finish(exit_code=1 if result is None else 0)
