"""``protofed data doctor``: what to know of images before anything is trained on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from protofed.data.doctor import Diagnosis
    from protofed.data.findings import Finding

MOST_DETAILS = 20  # of one finding; bad files are all named


def doctor_command(
    path: Annotated[str, typer.Argument(help="Folder of images, or a benchmark.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write a spec to begin with, as TOML.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all findings as JSON.")] = False,
) -> None:
    """Count images, find bad files and duplicates, measure the shift, and suggest a spec.

    Findings stand in the order of how bad they are, each with what to do. The exit code is 0.
    """
    from protofed.core.errors import ProtofedError
    from protofed.data.doctor import diagnose_benchmark

    if out and not out.absolute().parent.is_dir():  # told before the work
        raise ProtofedError(f"-o {out}: there is no folder {out.absolute().parent}; make it first")
    found = diagnose_benchmark(path)
    _print(found, as_json)
    if out and found.spec:
        _write(out, found.spec)
    if as_json:
        return
    if out:
        said = f"protofed run --spec {out}" if found.spec else "no spec: see above"
        typer.echo(f"\n{said}")
    elif found.spec:
        typer.echo(f"\nsuggested spec (-o FILE writes it):\n\n{found.spec}", nl=False)


def _write(out: Path, spec: str) -> None:
    """Write a spec, but not over another one, which somebody may have edited."""
    from protofed.core.disk import atomic_write
    from protofed.core.errors import ProtofedError

    if out.exists() and out.read_bytes() != spec.encode():
        raise ProtofedError(
            f"{out} is there, says something else, and was left as it is\n"
            f"remove it, or give -o another file"
        )
    atomic_write(out, spec.encode())


def _print(found: Diagnosis, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
        return
    _print_counts(found)
    for number, finding in enumerate(found.findings, start=1):
        _print_finding(number, finding)


def _print_counts(found: Diagnosis) -> None:
    from protofed.cli.show import print_table

    typer.echo(f"{found.name}: images to train + to test")
    if found.counts:
        domains = list(found.counts)
        classes = list(found.counts[domains[0]])
        rows = [[n, *("{}+{}".format(*found.counts[d][n]) for d in domains)] for n in classes]
        totals = [
            "+".join(str(sum(pair[part] for pair in found.counts[d].values())) for part in (0, 1))
            for d in domains
        ]
        print_table(["class", *domains], [*rows, ["all", *totals]], line_before=len(rows))
    if found.shift:
        typer.echo("\naccuracy in % of a linear probe on edges and colours, each learnt from")
        typer.echo(f"{found.shift.images} images of one domain (rows) and tested on all (columns)")
        domains = list(found.shift.accuracy)
        rows = [
            [learnt, *(f"{row[tested]:.1f}" for tested in domains)]
            for learnt, row in found.shift.accuracy.items()
        ]
        print_table(["learnt on", *domains], rows)


def _print_finding(number: int, finding: Finding) -> None:
    typer.echo(f"\n{number}. {finding.grade}: {finding.title}")
    shown = finding.details if finding.grade in ("stop", "bad") else finding.details[:MOST_DETAILS]
    for detail in shown:
        typer.echo(f"   {detail}")
    if len(shown) < len(finding.details):
        typer.echo(f"   ... and {len(finding.details) - len(shown)} more: --json lists them")
    typer.echo(f"   -> {finding.advice}")
