"""Write the blocks of docs/gallery.md from the figures' recipes, and draw its pictures.

    python docs/build_gallery.py                             # bring the page in line
    python docs/build_gallery.py --check                     # exit with 1 if it is out of date
    python docs/build_gallery.py --draw smoke --runs runs    # train and draw at scale smoke
    python docs/build_gallery.py --draw paper --runs results/runs  # draw what kept runs allow

The page has a block `<!-- figure NAME: begin -->` ... `<!-- end -->` for each figure. What stands
between the blocks, above all what ours shows, is written by hand.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from protofed.analysis.parallel_runs import GridWatcher
from protofed.errors import ProtofedError
from protofed.figures import shows_models
from protofed.paper_figures.figure_recipe import FigureRecipe, figure_names, read_figure
from protofed.paper_figures.run_figure import (
    FigureReport,
    ReadyFigure,
    ReadyPicture,
    draw_kept_runs,
    prepare_figure,
    run_figure,
)
from protofed.paper_tables.recipe import Scale

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "gallery.md"
PICTURES = ROOT / "docs" / "images" / "gallery"
BLOCK = re.compile(r"(<!-- figure (?P<name>\S+): begin -->\n).*?(<!-- end -->)", re.S)
NOWHERE = Path("runs")  # names folders; nothing is read
LARGEST = 60_000  # bytes of a picture
WIDTH = 120


def build_page(text: str) -> str:
    """The page with every block written anew."""
    return BLOCK.sub(lambda found: f"{found[1]}{figure_block(found['name'])}{found[3]}", text)


def figure_block(name: str) -> str:
    """What the paper's figure claims, what differs, and our pictures with what made them."""
    figure = read_figure(name)
    ready = prepare_figure(figure, "smoke", None, NOWHERE)
    lines = [
        _wrap(f"The paper shows {figure.caption}."),
        "",
        _wrap(f"**It claims:** {figure.claim}."),
        "",
        *(_wrap(f"- {difference}", "  ") for difference in figure.differences),
        *([""] if figure.differences else []),
        "```",
        f"protofed reproduce {name} --scale paper",
        "```",
        "",
        *_of_paper_scale(figure),
        *_of_smoke_scale(ready),
    ]
    return "\n".join(lines)


def _of_paper_scale(figure: FigureRecipe) -> list[str]:
    """The pictures of the paper's own experiment, as far as they have been drawn."""
    found = [
        picture.name for picture in figure.pictures if _file(figure.name, picture.name, "paper")
    ]
    if not found:
        return ["*On the paper's data: not drawn yet.*", ""]
    return [line for name in found for line in (_image(figure.name, name, "paper"), "")]


def _of_smoke_scale(ready: ReadyFigure) -> list[str]:
    """Our pictures on digits-mini; parts that show the same runs share one."""
    shown = smoke_pictures(ready)
    if not shown:
        return ["*At scale smoke most methods still guess, so no picture of scores is shown.*", ""]
    lines = ["<details>", "<summary>At scale smoke, on digits-mini</summary>", ""]
    for one in shown:
        lines += [_image(ready.name, one.picture.name, "smoke"), "", _wrap(_facts(one)), ""]
    return [*lines, "```", f"protofed reproduce {ready.name}", "```", "", "</details>", ""]


def _facts(one: ReadyPicture) -> str:
    first = one.plan.cells[0].experiment
    size = f"{first.data.label}, {first.rounds} rounds, seed {first.seed}"
    runs = ", ".join(f"{c.label} `{c.experiment.digest[:12]}`" for c in one.plan.cells)
    return f"*Not comparable with the paper: {size}.* {runs}"


def smoke_pictures(ready: ReadyFigure) -> list[ReadyPicture]:
    """The pictures of models, without those that show the same as an earlier one."""
    seen: dict[object, ReadyPicture] = {}
    for one in ready.pictures:
        folders = tuple(cell.folder for cell in one.plan.cells)
        if shows_models(one.picture.kind):
            seen.setdefault((one.picture.kind, folders, one.options), one)
    return list(seen.values())


def _image(figure: str, picture: str, scale: Scale) -> str:
    return f"![{figure}, {picture}, {scale}](images/gallery/{_name(figure, picture, scale)})"


def _name(figure: str, picture: str, scale: Scale) -> str:
    return f"{figure}-{picture}-{scale}.png"


def _file(figure: str, picture: str, scale: Scale) -> bool:
    return (PICTURES / _name(figure, picture, scale)).exists()


def _wrap(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def draw_all(scale: Scale, runs: Path, names: Sequence[str]) -> None:
    """Draw the pictures of some figures; at scale smoke, train what they need."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in names or figure_names():
        with tempfile.TemporaryDirectory() as folder:
            try:
                report = _drawn(read_figure(name), scale, runs, Path(folder))
            except ProtofedError as fault:
                print(f"{name}: {fault}", file=sys.stderr)
                continue
            for one in report.pictures:
                png = next(file for file in one.files if file.suffix == ".png")
                (PICTURES / _name(name, one.name, scale)).write_bytes(small_png(png))
            for picture, why in report.failed.items():
                print(f"{name}, {picture}: {why}", file=sys.stderr)


def _drawn(figure: FigureRecipe, scale: Scale, runs: Path, out: Path) -> FigureReport:
    if scale != "smoke":
        return draw_kept_runs(figure, scale, None, runs, out)
    ready = prepare_figure(figure, scale, None, runs)
    ready = ready._replace(pictures=tuple(smoke_pictures(ready)))
    with GridWatcher() as watch:
        return run_figure(ready, 0, out, watch)


def small_png(file: Path) -> bytes:
    """A picture in 256 colours, none of them lost to larger areas, narrower until it is small."""
    with Image.open(file) as whole:
        picture = whole.convert("RGB")
    while True:
        stream = io.BytesIO()
        picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(
            stream, "PNG", optimize=True
        )
        if stream.tell() <= LARGEST:
            return stream.getvalue()
        picture = picture.resize(
            [side * 9 // 10 for side in picture.size], Image.Resampling.LANCZOS
        )


def main(words: Sequence[str] | None = None) -> int:
    """Write the page, compare it with what would be written, or draw its pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--draw", choices=["smoke", "quick", "paper"])
    parser.add_argument("--runs", type=Path, default=NOWHERE)
    parser.add_argument("figures", nargs="*")
    args: Any = parser.parse_args(words)
    if args.draw:
        draw_all(args.draw, args.runs, args.figures)
    text = PAGE.read_text(encoding="utf-8")
    made = build_page(text)
    if args.check:
        return int(made != text)
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
