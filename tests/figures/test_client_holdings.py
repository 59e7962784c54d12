from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protofed.errors import ProtofedError
from protofed.figures import draw_figure
from protofed.figures.style import FigureOptions, save_figure
from tests.figures.conftest import Made, cells, ys


def test_a_cell_is_how_many_images_of_a_class_a_client_holds(made: Made) -> None:
    axes, bar = draw_figure("partition", [made()], FigureOptions()).axes
    parts = json.loads((made() / "partition.json").read_text())
    counts = np.array([[part["held"].get(str(digit), 0) for digit in range(10)] for part in parts])
    np.testing.assert_array_equal(cells(axes), counts)
    assert counts.sum(1).tolist() == [len(part["rows"]) for part in parts]
    shown = [text.get_text() for text in axes.texts]
    assert shown == [str(count or "") for count in counts.flat]
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["optical 0 (20)", "optical 1 (20)", "print 2 (20)"]
    assert [ys(line)[0] for line in axes.lines] == [1.5], "a line between the domains"
    assert bar.get_ylabel() == "images"


def test_one_domain_alone(made: Made) -> None:
    axes, _ = draw_figure("partition", [made()], FigureOptions(domain="print")).axes
    assert cells(axes).shape == (1, 10)
    with pytest.raises(ProtofedError, match="known: optical, print"):
        draw_figure("partition", [made()], FigureOptions(domain="street"))


def test_a_run_need_not_be_finished(made: Made, tmp_path: Path) -> None:
    for name in ("spec.json", "partition.json"):
        shutil.copy(made() / name, tmp_path)
    one = save_figure(draw_figure("partition", [tmp_path], FigureOptions()), tmp_path / "a")
    two = save_figure(draw_figure("partition", [made()], FigureOptions()), tmp_path / "b")
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in two]


def test_many_clients_are_named_by_their_domain(made: Made, tmp_path: Path) -> None:
    shutil.copy(made() / "spec.json", tmp_path)
    parts: list[dict[str, Any]] = [
        {"client": n, "domain": "optical" if n < 40 else "print", "held": {"3": n}, "rows": []}
        for n in range(60)
    ]
    (tmp_path / "partition.json").write_text(json.dumps(parts))
    axes, _ = draw_figure("partition", [tmp_path], FigureOptions()).axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["optical", "print"]
    assert axes.get_yticks().tolist() == [19.5, 49.5]


def test_folders_that_are_no_run_and_too_many_are_refused(made: Made, tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match="one run, 2 were given"):
        draw_figure("partition", [made(), made("fedprox")], FigureOptions())
    with pytest.raises(ProtofedError, match=r"spec\.json"):
        draw_figure("partition", [tmp_path], FigureOptions())
    shutil.copy(made() / "spec.json", tmp_path)
    (tmp_path / "partition.json").write_text('{"client": 0}')
    with pytest.raises(ProtofedError, match=r"partition\.json is damaged"):
        draw_figure("partition", [tmp_path], FigureOptions())
    (tmp_path / "partition.json").write_text("[]")
    with pytest.raises(ProtofedError, match="no client holds an image"):
        draw_figure("partition", [tmp_path], FigureOptions())
