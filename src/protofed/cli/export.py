"""``protofed export``, ``predict`` and ``card``: what becomes of a trained model."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from protofed.errors import count_noun

if TYPE_CHECKING:
    from protofed.export.inference_module import TrainedProduct
    from protofed.export.predict import ImagePrediction


def card_command(run: Annotated[Path, typer.Argument(help="Run folder.")]) -> None:
    """Print the model card of a finished run, as it lies in its folder as card.md."""
    from protofed.cli.output import echo_line
    from protofed.experiment.model_card import model_card as card_of
    from protofed.experiment.run_folder import RunDir

    for line in card_of(RunDir(run)).splitlines():  # the file may be a stranger's
        echo_line(line)


Kind = Literal["onnx", "safetensors"]


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
    from protofed.cli.output import echo_line
    from protofed.errors import ProtofedError
    from protofed.export.inference_module import load_trained_model
    from protofed.export.model_files import FORMATS, write_export

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


FROM_A_FILE = "end other programs, or go to a machine with more"
FROM_A_RUN = f"give a file of `protofed export`: a run loads its images too; or {FROM_A_FILE}"


def predict_command(
    model: Annotated[
        Path, typer.Argument(help="Run folder, or a file that `protofed export` wrote.")
    ],
    images: Annotated[
        list[Path], typer.Argument(help="Images, or folders that are searched to any depth.")
    ],
    client: Annotated[
        int | None, typer.Option(min=0, help="Of a run folder: whose model, where each has one.")
    ] = None,
    explain: Annotated[
        Path | None, typer.Option(help="Write a heat map for each image into this folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print as CSV.")] = False,
) -> None:
    """Label new images with a trained model.

    Files that cannot be read are named with the reason, and the rest is labelled; the exit code is
    then 1. Names of folders are not taken for labels: nothing is scored here.
    """
    from protofed.export.predict import HeatMapWriter, find_images, predict_images
    from protofed.runtime.resources import explain_oom

    if as_json and as_csv:
        raise typer.BadParameter("give either --json or --csv")
    with explain_oom("predict", FROM_A_RUN if model.is_dir() else FROM_A_FILE):
        product = _product(model, client)
        look = HeatMapWriter(product, explain) if explain else None
        answers = list(predict_images(product, find_images(images), look))
    if as_json:
        plain = {"model": product.facts.name, "digest": product.facts.digest}
        typer.echo(json.dumps({**plain, "answers": [a.to_dict() for a in answers]}, indent=2))
    elif as_csv:
        _write_csv(answers)
    else:
        _print(product, answers)
    if look:
        typer.echo(f"wrote {count_noun(look.written, 'picture')} into {explain}", err=True)
    if any(answer.fault for answer in answers):
        raise typer.Exit(1)


def _product(model: Path, client: int | None) -> TrainedProduct:
    """The model of a run folder or of a file."""
    from protofed.errors import ProtofedError
    from protofed.export.inference_module import load_trained_model
    from protofed.export.model_files import read_export

    if model.is_dir():
        return load_trained_model(model, client).product
    if client is not None:
        raise ProtofedError("a file holds one model: leave --client out")
    return read_export(model)


def _cells(answer: ImagePrediction) -> list[str]:
    """Of a file that could be read."""
    cells = [answer.file, answer.label, f"{answer.confidence:.4f}"]
    cells += [answer.runner_up, f"{answer.runner_up_confidence:.4f}"]
    if answer.nearest:
        cells += [answer.nearest.label, f"{answer.nearest.distance:.4g}"]
    return cells


HEAD = ["file", "label", "confidence", "runner-up", "its confidence"]
PROTOTYPES = ["nearest prototype", "distance"]


def _print(product: TrainedProduct, answers: Sequence[ImagePrediction]) -> None:
    """A table of labels, then the files that could not be read, by name."""
    from protofed.cli.output import echo_line, print_table

    good = [answer for answer in answers if not answer.fault]
    bad = [answer for answer in answers if answer.fault]
    if good:
        print_table(HEAD + PROTOTYPES * bool(good[0].nearest), [_cells(one) for one in good])
    typer.echo()
    echo_line(f"{product.facts.name}; run {product.facts.digest[:12]}")
    if bad:
        echo_line(f"{len(bad)} of {count_noun(len(answers), 'file')} cannot be read:")
        for answer in bad:
            echo_line(f"  {answer.file}: {answer.fault}")


def _write_csv(answers: Sequence[ImagePrediction]) -> None:
    """A line a file, in order; the last column says why there is no label."""
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow([*HEAD, *PROTOTYPES, "fault"])
    for answer in answers:
        cells = [answer.file] if answer.fault else _cells(answer)
        empty = [""] * (len(HEAD) + len(PROTOTYPES) - len(cells))
        rows.writerow([*cells, *empty, answer.fault])
