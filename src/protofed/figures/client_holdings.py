"""Which client holds how many images of which class, grouped by domain."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from protofed.analysis.finished_runs import format_value
from protofed.data.benchmarks import benchmark_info
from protofed.data.partition import ClientPartRecord
from protofed.errors import ProtofedError, require_known_name
from protofed.experiment import run_records
from protofed.experiment.run_records import load_spec
from protofed.figures.style import BLACK, COUNTS, FigureOptions, new_figure, set_title, write_cells
from protofed.spec.experiment_spec import Experiment, SiteData

MOST_NUMBERS = 400  # cells up to which each shows its number
MOST_NAMES = 40  # clients or classes up to which each is named


def draw_partition(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """Draw clients x classes as a heat map of image counts, from a run's partition.json.

    The run need not be finished. Takes one run; `options.domain` restricts it to one domain.
    """
    options.only("partition", "domain")
    if len(runs) != 1:
        raise ProtofedError(f"partition: shows one run, {len(runs)} were given")
    experiment = load_spec(runs[0])
    held = run_records.read_record_file(run_records.HOLDINGS, runs[0] / "partition.json")
    parts = sorted(held, key=lambda part: part["client"])
    if options.domain is not None:
        require_known_name(
            "domain with clients", options.domain, dict.fromkeys(p["domain"] for p in parts)
        )
        parts = [part for part in parts if part["domain"] == options.domain]
    classes = _classes(experiment, parts)
    counts = np.array([[part["held"].get(name, 0) for name in classes] for part in parts])
    if not counts.size:
        raise ProtofedError(f"{runs[0] / 'partition.json'} is damaged: no client holds an image")
    figure = new_figure(2.4 + min(8.0, 0.36 * len(classes)), 1.5 + min(8.0, 0.24 * len(parts)))
    axes = figure.add_subplot()
    image = axes.imshow(counts, cmap=COUNTS, aspect="auto", vmin=0)
    figure.colorbar(image, ax=axes, label="images")
    if counts.size <= MOST_NUMBERS:
        write_cells(image, counts, lambda count: str(count or ""))
    _names(axes, parts, classes)
    set_title(axes, _heading(experiment))
    return figure


def _classes(experiment: Experiment, parts: Sequence[ClientPartRecord]) -> Sequence[str]:
    """All classes; where the run's data are not here, those that a client holds."""
    held = {name for part in parts for name in part["held"]}
    try:
        if not isinstance(experiment.data, SiteData):
            known = benchmark_info(experiment.data.name).classes
            return known if held <= set(known) else sorted(held)  # a folder may hold other data now
    except ProtofedError:
        pass  # a folder that is gone
    return sorted(held)


def _names(axes: Axes, parts: Sequence[ClientPartRecord], classes: Sequence[str]) -> None:
    """Classes below, clients with their number of images to the left, lines between domains."""
    if len(classes) <= MOST_NAMES:
        turned = sum(map(len, classes)) > 40
        axes.set_xticks(range(len(classes)), classes, rotation=90 if turned else 0)
    axes.set_xlabel("class")
    names = [f"{part['domain']} {part['client']} ({sum(part['held'].values())})" for part in parts]
    homes = [part["domain"] for part in parts]
    starts = [place for place, home in enumerate(homes) if home not in homes[:place]]
    if len(parts) <= MOST_NAMES:
        axes.set_yticks(range(len(parts)), names)
        axes.set_ylabel("client (images)")
    else:
        ends = [*starts[1:], len(parts)]
        middles = [(start + end - 1) / 2 for start, end in zip(starts, ends, strict=True)]
        axes.set_yticks(middles, [homes[start] for start in starts])
        axes.set_ylabel(f"{len(parts)} clients")
    axes.tick_params(length=0)
    for start in starts[1:]:
        axes.axhline(start - 0.5, color=BLACK, linewidth=1.2)


def _heading(experiment: Experiment) -> str:
    rule = {k: v for k, v in experiment.to_dict()["partition"].items() if k != "clients"}
    kind = rule.pop("kind")
    known = ", ".join(f"{name}={format_value(v)}" for name, v in rule.items() if v)
    return f"{experiment.data.label}, {kind}{f' ({known})' if known else ''}"
