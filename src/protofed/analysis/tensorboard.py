"""Run folders as TensorBoard logs (extra ``track``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protofed.errors import ProtofedError
from protofed.experiment.result import read_evaluations
from protofed.experiment.run_folder import RunDir


def run_scalars(folder: Path) -> list[tuple[int, str, float]]:
    """All numbers of a run by round, as (round, name, value).

    Accuracy by domain and summary, bytes and seconds, and the metrics that each client reported.
    """
    place = RunDir(folder)
    if not place.rounds.exists():
        raise ProtofedError(f"{folder} is not a run folder: it has no rounds.jsonl")
    found: list[tuple[int, str, float]] = []
    for scored in read_evaluations(place):
        told = scored.scores.to_dict()
        values = {**scored.scores.domains, **{k: told[k] for k in ("mean", "worst", "spread")}}
        found += [(scored.round, f"accuracy/{k}", v) for k, v in values.items() if v is not None]
    for line in place.lines(place.rounds):
        found += [
            (line["round"], f"cost/{k}", line[k]) for k in ("bytes_up", "bytes_down", "seconds")
        ]
        for leg, clients in enumerate(line["legs"]):
            for client, metrics in clients.items():
                found += [
                    (line["round"], f"leg {leg}/{name}/client {client}", value)
                    for name, value in metrics.items()
                    if value is not None
                ]
    return found


def write_tensorboard(folder: Path, to: Path) -> int:
    """Write a run as TensorBoard events into ``to/NAME``; return how many values were written.

    Needs the extra ``track``.
    """
    values = run_scalars(folder)
    writer = _writer(to / folder.name)
    for number, name, value in values:
        writer.add_scalar(name, value, number)
    writer.close()
    return len(values)


def _writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ProtofedError("this needs TensorBoard: pip install 'protofed[track]'") from None
    return SummaryWriter(str(folder))
