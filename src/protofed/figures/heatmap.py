"""How two hyperparameters matter together: a coloured cell for each pair of values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from protofed.core.errors import ProtofedError
from protofed.figures.fields import format_value, short_field_name
from protofed.figures.series import (
    accuracy_spread,
    axis_label,
    figure_heading,
    group_by_method,
    group_by_setting,
    missing_seed_notes,
    read_run_records,
)
from protofed.figures.style import (
    COLOURS,
    FAINT,
    FigureOptions,
    add_footnotes,
    new_figure,
    set_title,
    write_cells,
)
from protofed.figures.sweep import (
    check_sweep_records,
    field_value,
    group_by_value,
    require_varied_fields,
    sorted_values,
)

HEATMAP_HINT = "give runs of one grid, as method.tau x method.lam; for a single field see sensitivity"


def draw_heatmap(runs: Sequence[Path], options: FigureOptions) -> Figure:
    """The mean accuracy over seeds for each pair of values of the two fields that differ."""
    options.only("heatmap", "domain", "rule")
    records = read_run_records(runs)
    methods = list(group_by_method(records))
    if len(methods) > 1:
        raise ProtofedError(f"heatmap: shows one method, here are {', '.join(methods)}")
    down, across = require_varied_fields("heatmap", 2, records, HEATMAP_HINT)
    notes = [
        *missing_seed_notes(group_by_setting(records)),
        *check_sweep_records(records, [down, across]),
    ]
    rows = sorted_values([field_value(record, down) for record in records])
    columns = sorted_values([field_value(record, across) for record in records])
    cells = np.full((len(rows), len(columns)), np.nan)
    for group in group_by_value(records, [down, across]).values():
        place = (
            rows.index(field_value(group[0], down)),
            columns.index(field_value(group[0], across)),
        )
        cells[place] = accuracy_spread(group, options).mean
    figure = new_figure(3.0 + 0.62 * len(columns), 1.7 + 0.45 * len(rows))
    axes = figure.add_subplot()
    axes.set_facecolor(FAINT)  # pairs without a run
    image = axes.imshow(cells, cmap=COLOURS, aspect="auto", origin="lower")
    figure.colorbar(image, ax=axes, label=axis_label(options))
    axes.set_xticks(range(len(columns)), [format_value(value) for value in columns])
    axes.set_yticks(range(len(rows)), [format_value(value) for value in rows])
    axes.set(xlabel=short_field_name(across), ylabel=short_field_name(down))
    set_title(axes, f"{methods[0]}, {figure_heading(records, options.rule)}")
    write_cells(image, cells, lambda cell: "-" if math.isnan(cell) else f"{cell:.2f}")
    add_footnotes(figure, notes)
    return figure
