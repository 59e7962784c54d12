"""How two hyperparameters matter together: a coloured cell for each pair of values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from protofed.core.errors import ProtofedError
from protofed.figures.fields import short, show
from protofed.figures.series import axis_label, by_method, grouped, heading, reached, read, uneven
from protofed.figures.style import COLOURS, FAINT, Options, footnote, new_figure, title, write_cells
from protofed.figures.sweep import by_value, check, exactly, ordered, value_of

HINT = "give runs of one grid, as method.tau x method.lam; for a single field see sensitivity"


def draw(runs: Sequence[Path], options: Options) -> Figure:
    """The mean accuracy over seeds for each pair of values of the two fields that differ."""
    options.only("heatmap", "domain", "rule")
    records = read(runs)
    methods = list(by_method(records))
    if len(methods) > 1:
        raise ProtofedError(f"heatmap: shows one method, here are {', '.join(methods)}")
    down, across = exactly("heatmap", 2, records, HINT)
    notes = [*uneven(grouped(records)), *check(records, [down, across])]
    rows = ordered([value_of(record, down) for record in records])
    columns = ordered([value_of(record, across) for record in records])
    cells = np.full((len(rows), len(columns)), np.nan)
    for group in by_value(records, [down, across]).values():
        place = rows.index(value_of(group[0], down)), columns.index(value_of(group[0], across))
        cells[place] = reached(group, options).mean
    figure = new_figure(3.0 + 0.62 * len(columns), 1.7 + 0.45 * len(rows))
    axes = figure.add_subplot()
    axes.set_facecolor(FAINT)  # pairs without a run
    image = axes.imshow(cells, cmap=COLOURS, aspect="auto", origin="lower")
    figure.colorbar(image, ax=axes, label=axis_label(options))
    axes.set_xticks(range(len(columns)), [show(value) for value in columns])
    axes.set_yticks(range(len(rows)), [show(value) for value in rows])
    axes.set(xlabel=short(across), ylabel=short(down))
    title(axes, f"{methods[0]}, {heading(records, options.rule)}")
    write_cells(image, cells, lambda cell: "-" if math.isnan(cell) else f"{cell:.2f}")
    footnote(figure, notes)
    return figure
