"""docs/gallery.md says what the recipes say, and has a small picture wherever it names one."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from PIL import Image

from protofed.paper_figures.figure_recipe import figure_names, read_figure
from protofed.paper_figures.run_figure import prepare_figure

ROOT = Path(__file__).parent.parent.parent
GALLERY = runpy.run_path(str(ROOT / "docs" / "build_gallery.py"))
PAGE = (ROOT / "docs" / "gallery.md").read_text()
PICTURE = re.compile(r"!\[[^\]]*\]\((images/gallery/[^)]+)\)")


def test_the_page_is_what_the_command_writes() -> None:
    assert GALLERY["main"](["--check"]) == 0, "run python docs/build_gallery.py"


def test_every_figure_has_one_block_with_its_claim() -> None:
    named = re.findall(r"<!-- figure (\S+): begin -->", PAGE)
    assert sorted(named) == list(figure_names())
    words = " ".join(PAGE.split())
    for name in named:
        assert f"**It claims:** {read_figure(name).claim}." in words
        assert f"protofed reproduce {name} --scale paper" in words


def test_pictures_are_there_and_small_and_none_is_left_over() -> None:
    named = {ROOT / "docs" / file for file in PICTURE.findall(PAGE)}
    there = set((ROOT / "docs" / "images" / "gallery").glob("*"))
    assert named == there
    assert all(file.stat().st_size <= GALLERY["LARGEST"] for file in there)


def test_the_digests_are_those_of_the_runs_that_the_command_makes(tmp_path: Path) -> None:
    for name in figure_names():
        block = PAGE.partition(f"<!-- figure {name}: begin -->")[2].partition("<!-- end -->")[0]
        ready = prepare_figure(read_figure(name), "smoke", None, tmp_path)
        shown = [one for one in ready.pictures if f"{name}-{one.picture.name}-smoke.png" in block]
        digests = {cell.experiment.digest[:12] for one in shown for cell in one.plan.cells}
        assert set(re.findall(r"`([0-9a-f]{12})`", block)) == digests


def test_pictures_become_small_by_losing_width(tmp_path: Path) -> None:
    noise = Image.effect_noise((900, 600), 90).convert("RGB")
    noise.save(tmp_path / "noise.png")
    (tmp_path / "small.png").write_bytes(GALLERY["small_png"](tmp_path / "noise.png"))
    assert (tmp_path / "small.png").stat().st_size <= GALLERY["LARGEST"]
    with Image.open(tmp_path / "small.png") as small:
        assert small.width < noise.width
        assert abs(small.width / small.height - 1.5) < 0.05
