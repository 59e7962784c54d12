"""``protofed export``, ``predict`` and ``card``: what becomes of a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from protofed.cli.options import (
    AllowCodeOption,
    FormatOption,
    JsonOption,
    StaleModelOption,
    chosen_format,
)
from protofed.errors import count_noun

if TYPE_CHECKING:
    from protofed.export.inference_module import TrainedProduct
    from protofed.export.predict import ImagePrediction
    from protofed.runtime.text_tables import TableDocument


def card_command(run: Annotated[Path, typer.Argument(help="Run folder.")]) -> None:
    """Print the model card of a finished run: the file card.md in its folder."""
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
        Path | None,
        typer.Option("--out", "-o", help="File to write; default: the run folder's name."),
    ] = None,
    client: Annotated[
        int | None, typer.Option(min=0, help="Client whose model to export, if each has its own.")
    ] = None,
    stale: StaleModelOption = "refuse",
) -> None:
    """Write a run's newest model as one file and check that it predicts as the run does.

    The file takes uint8 pixels (or rows of floats, for data that are no images) and holds classes,
    normalisation, scores and the run's digest. Before it gets its name, it is read back and
    compared with the run on test images, or on noise if these are at the sites of a federation.
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
    taken = load_trained_model(run, client, stale == "accept")
    found = write_export(taken, kind, place)
    facts = taken.product.facts
    echo_line(f"wrote {place} ({place.stat().st_size / 1e6:.2f} MB): {facts.name}")
    shape = ", ".join(["N", *map(str, facts.blank(1).shape[1:])])
    numbers, more = ("float32", "") if facts.shape else ("uint8", ", red, green, blue")
    takes = f"{facts.input_name}: {numbers} [{shape}]{more}"
    echo_line(f"takes {takes}; gives {len(facts.classes)} classes")
    echo_line(
        f"read back and compared with the run on {found.images} {taken.kind}: largest "
        f"difference {found.probabilities:.1e} in probability, {found.scores:.1e} in score"
    )
    for notice in taken.collapsed:
        echo_line(f"note: {notice}")


FROM_A_FILE = "end other programs, or use a machine with more memory"
FROM_A_RUN = f"use a file of `protofed export`, as a run loads its images too; or {FROM_A_FILE}"


def predict_command(
    model: Annotated[
        Path, typer.Argument(help="Run folder, or a file that `protofed export` wrote.")
    ],
    images: Annotated[
        list[Path], typer.Argument(help="Images, .npy or .npz arrays, or folders of these.")
    ],
    client: Annotated[
        int | None, typer.Option(min=0, help="Client whose model to use, if each has its own.")
    ] = None,
    explain: Annotated[
        Path | None, typer.Option(help="Write a heat map for each image into this folder.")
    ] = None,
    allow_code: AllowCodeOption = False,
    stale: StaleModelOption = "refuse",
    form: FormatOption = "terminal",
    as_json: JsonOption = False,
) -> None:
    """Label new images, or the rows of arrays, with a trained model.

    Files that cannot be read are listed with the reason, the others are labelled, and the exit code
    is 1. Folder names are not taken for labels: nothing is scored here.
    """
    from protofed.cli.output import print_document
    from protofed.export.predict import HeatMapWriter, find_images, predict_images
    from protofed.runtime.resources import explain_oom

    form = chosen_format(form, as_json)
    with explain_oom("predict", FROM_A_RUN if model.is_dir() else FROM_A_FILE):
        product = _product(model, client, allow_code, stale == "accept")
        look = HeatMapWriter(product, explain) if explain else None
        answers = list(predict_images(product, find_images(images), look))
    print_document(_predictions_document(product, answers), form)
    if look:
        typer.echo(f"wrote {count_noun(look.written, 'picture')} into {explain}", err=True)
    if any(answer.fault for answer in answers):
        raise typer.Exit(1)


def _product(
    model: Path, client: int | None, allow_code: bool, accept_stale: bool
) -> TrainedProduct:
    """The model of a run folder or of a file."""
    from protofed.errors import ProtofedError
    from protofed.export.inference_module import load_trained_model
    from protofed.export.model_files import read_export
    from protofed.runtime.code_reference import ANY_CODE, OUR_CODE

    if model.is_dir():
        return load_trained_model(model, client, accept_stale).product
    if client is not None:
        raise ProtofedError("a file holds one model: leave --client out")
    return read_export(model, ANY_CODE if allow_code else OUR_CODE)


def _cells(answer: ImagePrediction) -> list[str]:
    """The row of a file that could be read."""
    cells = [answer.file, answer.label, f"{answer.confidence:.4f}"]
    cells += [answer.runner_up, f"{answer.runner_up_confidence:.4f}"]
    if answer.nearest:
        cells += [answer.nearest.label, f"{answer.nearest.distance:.4g}"]
    return cells


HEAD = ["file", "label", "confidence", "runner-up", "its confidence"]
PROTOTYPES = ["nearest prototype", "distance"]


def _predictions_document(
    product: TrainedProduct, answers: Sequence[ImagePrediction]
) -> TableDocument:
    """A table of labels, then the files that could not be read with the reason.

    CSV has one line per file in the order given; its last column says why a file has no label.
    """
    from protofed.runtime.text_tables import TableDocument, TextTable

    facts = product.facts
    good = [_cells(answer) for answer in answers if not answer.fault]
    bad = [f"  {answer.file}: {answer.fault}" for answer in answers if answer.fault]
    failed = f"{len(bad)} of {count_noun(len(answers), 'file')} cannot be read:"
    head = (HEAD + PROTOTYPES)[: len(good[0])] if good else []
    return TableDocument(
        tables=[TextTable(head, good)],
        content={
            "model": facts.name,
            "digest": facts.digest,
            "answers": [answer.to_dict() for answer in answers],
        },
        notes=[f"{facts.name}; run {facts.digest[:12]}", *([failed, *bad] if bad else [])],
        records=TextTable([*HEAD, *PROTOTYPES, "fault"], [_record(answer) for answer in answers]),
    )


def _record(answer: ImagePrediction) -> list[str]:
    cells = [answer.file] if answer.fault else _cells(answer)
    empty = [""] * (len(HEAD) + len(PROTOTYPES) - len(cells))
    return [*cells, *empty, answer.fault]
