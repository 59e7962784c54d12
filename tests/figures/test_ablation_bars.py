from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from protofed.errors import ProtofedError
from protofed.figures import draw_figure
from protofed.figures.style import FigureOptions, save_figure
from protofed.methods.fedprox import FedProx
from tests.figures.conftest import Made, mean_of_last, xs


def bars(figure: Figure) -> dict[str, float]:
    """The lengths of the bars by their labels."""
    (axes,) = figure.axes
    lengths = [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]
    labels = [text.get_text() for text in axes.get_yticklabels()]
    return dict(zip(labels, lengths, strict=True))


def test_a_bar_a_variant_and_the_baseline_dashed(made: Made) -> None:
    some, more, base = made("fedprox"), made("fedprox", {"mu": 0.5}), made()
    figure = draw_figure("ablation", [some, more, base], FigureOptions(score="last_five"))
    wanted = {"FedAvg": base, "FedProx (mu=0.01)": some, "FedProx (mu=0.5)": more}
    assert list(bars(figure)) == list(wanted)  # the baseline is the first
    assert bars(figure) == pytest.approx({name: mean_of_last(run) for name, run in wanted.items()})
    (axes,) = figure.axes
    dashed = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert [xs(line)[0] for line in dashed] == pytest.approx([mean_of_last(base)])
    assert axes.get_xlim()[0] == 0, "bars that do not start at 0 lie"


def test_the_ablations_that_a_method_declares_give_names_and_order(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [made("fedprox", {"mu": 0.5}), made("fedprox"), made("fedprox", {"mu": 0.0})]
    other = made("fedprox", {"mu": 2.0})
    monkeypatch.setattr(FedProx, "ablations", {"without": {"mu": 0.0}, "weak": {"mu": 0.01}})
    figure = draw_figure("ablation", runs, FigureOptions(score="last"))
    assert list(bars(figure)) == ["without", "weak", "FedProx (full)"]
    assert bars(figure)["FedProx (full)"] == pytest.approx(mean_of_last(runs[0], 1))
    # two settings without anything taken away: which is the full one cannot be known
    strange = [*runs, other]
    assert next(iter(bars(draw_figure("ablation", strange, FigureOptions())))) == "FedProx (mu=0.5)"


def test_the_same_runs_give_the_same_bytes(made: Made, tmp_path: Path) -> None:
    runs = [made(seed=0), made(seed=1), made("fedprox")]
    one, two = (
        save_figure(draw_figure("ablation", runs, FigureOptions()), tmp_path / name)
        for name in "ab"
    )
    assert [file.read_bytes() for file in one] == [file.read_bytes() for file in two]


def test_runs_with_other_training_are_refused(made: Made) -> None:
    with pytest.raises(ProtofedError, match="differ in rounds"):
        draw_figure("ablation", [made(), made(rounds=2)], FigureOptions())
