"""``protofed predict``: what a trained model says of new images."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofed.core.errors import count_noun

if TYPE_CHECKING:
    from protofed.product.ask import ImagePrediction
    from protofed.product.source import TrainedProduct

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
    from protofed.core.memory import explain_oom
    from protofed.product.ask import find_images, predict_images
    from protofed.product.explain import HeatMapWriter

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
    from protofed.core.errors import ProtofedError
    from protofed.product.formats import read_export
    from protofed.product.source import load_trained_model

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
    from protofed.cli.show import echo_line, print_table

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
