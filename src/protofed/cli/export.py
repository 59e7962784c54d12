"""``protofed export``: a run's model as one file to take along."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

Kind = Literal["onnx", "safetensors", "torchscript"]


def export_command(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    to: Annotated[Kind, typer.Option("--to", help="Kind of file.")] = "onnx",
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="The file; default: the run folder's name.")
    ] = None,
    client: Annotated[
        int | None, typer.Option(min=0, help="Whose model, in methods that leave each its own.")
    ] = None,
) -> None:
    """Write a run's newest model as one file, and check that it answers as the run does.

    The file takes uint8 pixels and holds classes, normalisation, scores and the run's digest. It
    is read anew and compared with the run on test images before it comes to its place; of a
    federation across machines, whose images are at its sites, on noise.
    """
    from protofed.cli.show import echo_line
    from protofed.core.errors import ProtofedError
    from protofed.product.formats import FORMATS, write_export
    from protofed.product.source import load_trained_model

    kind = FORMATS[to]
    place = out or Path(f"{run.resolve().name}{kind.ending}")
    if place.suffix.lower() != kind.ending:
        raise ProtofedError(f"-o {place}: a file of this kind ends in {kind.ending}")
    if place.is_dir() or not place.parent.is_dir():
        raise ProtofedError(f"-o {place}: name a file in a folder that is there")
    taken = load_trained_model(run, client)
    found = write_export(taken, kind, place)
    facts = taken.product.facts
    echo_line(f"wrote {place} ({place.stat().st_size / 1e6:.2f} MB): {facts.name}")
    shape = f"[N, {facts.side}, {facts.side}, 3]"
    echo_line(f"takes images: uint8 {shape}, red, green, blue; gives {len(facts.classes)} classes")
    echo_line(
        f"read anew and compared with the run on {found.images} {taken.kind}: largest "
        f"difference {found.probabilities:.1e} in probability, {found.scores:.1e} in score"
    )
