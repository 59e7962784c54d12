"""Files of equal bytes, options that are heard, looks that differ in more than colour."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import pytest
from PIL import Image

from protofed.errors import ProtofedError
from protofed.figures import KINDS, draw_figure
from protofed.figures.style import (
    HATCHES,
    PALETTE,
    FigureOptions,
    figure_settings,
    new_figure,
    save_figure,
    series_style,
)


def test_saving_twice_gives_the_same_bytes_without_dates_and_versions(tmp_path: Path) -> None:
    for name in ("one", "two"):
        figure = new_figure()
        figure.add_subplot().plot([1, 2], [3, 4], label="a line")
        save_figure(figure, tmp_path / name)
    for ending in ("svg", "png"):
        one, two = ((tmp_path / f"{name}.{ending}").read_bytes() for name in ("one", "two"))
        assert one == two
        assert b"atplotlib" not in one.replace(b'id="matplotlib', b"")
    assert b"dc:date" not in (tmp_path / "one.svg").read_bytes()
    with Image.open(tmp_path / "one.png") as picture:
        assert set(picture.info) <= {"dpi"}


@pytest.mark.parametrize("name", ["new/fig", "new/fig.svg", "new/fig.png"])
def test_both_formats_are_written_whatever_the_ending(tmp_path: Path, name: str) -> None:
    written = save_figure(new_figure(), tmp_path / name)
    assert written == [tmp_path / "new/fig.svg", tmp_path / "new/fig.png"]
    assert all(file.stat().st_size for file in written)


def test_a_dot_in_a_name_is_no_ending(tmp_path: Path) -> None:
    assert save_figure(new_figure(), tmp_path / "lr-0.5")[1] == tmp_path / "lr-0.5.png"


def test_other_formats_and_places_that_cannot_be_written_are_told(tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match=r"\.svg and \.png"):
        save_figure(new_figure(), tmp_path / "fig.pdf")
    (tmp_path / "file").touch()
    with pytest.raises(ProtofedError, match="cannot write"):
        save_figure(new_figure(), tmp_path / "file" / "fig")


def test_the_user_s_own_settings_neither_matter_nor_change(tmp_path: Path) -> None:
    def drawn(name: str) -> bytes:
        with figure_settings():
            figure = new_figure()
            figure.add_subplot().plot([1, 2])
        return save_figure(figure, tmp_path / name)[0].read_bytes()

    plain = drawn("plain")
    with matplotlib.rc_context({"lines.linewidth": 9, "svg.hashsalt": "mine", "font.size": 20}):
        assert drawn("own") == plain
        assert matplotlib.rcParams["lines.linewidth"] == 9


def test_no_two_series_differ_by_colour_alone() -> None:
    looks = [series_style(place) for place in range(2 * len(PALETTE))]
    assert len({(one.marker, one.line) for one in looks}) == len(looks)
    assert len({one.hatch for one in looks[: len(HATCHES)]}) == len(HATCHES)
    assert len({one.colour for one in looks}) == len(PALETTE)


def test_an_option_that_a_kind_does_not_know_is_refused() -> None:
    FigureOptions(domain="print", score="last").only("bars", "domain", "score")
    with pytest.raises(
        ProtofedError, match=r"bars does not use the option 'by'\noptions it uses: `domain`"
    ):
        FigureOptions(by="domain").only("bars", "domain")


def test_draw_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match="did you mean 'curves'"):
        draw_figure("curve", [tmp_path], FigureOptions())
    for kind in KINDS:
        with pytest.raises(ProtofedError, match="no runs given"):
            draw_figure(kind, [], FigureOptions())


def test_every_kind_has_a_module() -> None:
    folder = Path(matplotlib.__file__).parent  # only to have a path that is no run
    for kind in KINDS:
        with pytest.raises(ProtofedError):
            draw_figure(kind, [folder], FigureOptions())
