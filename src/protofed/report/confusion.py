"""Confusion matrices: the predictions of each run's last model on each domain's test images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from protofed.errors import ProtofedError
from protofed.report.charts import number_text, svg_tag
from protofed.report.load_runs import ReportRun
from protofed.runtime.code_reference import OUR_CODE, CodeAccess
from protofed.spec.experiment_spec import SiteData
from protofed.spec.method_lookup import code_names

LEVELS = 8  # of colour
MOST_NAMED = 20  # classes with names along the edges
MOST_NUMBERED = 12  # classes with a number in each cell
LONGEST_NAME = 10  # letters along the edges
MOST_MISTAKES = 3  # described in words

Counts = list[list[int]]  # [C, C] true class by answer


class ConfusionMatrix(NamedTuple):
    """The predictions on one domain's test images.

    ``counts[true][predicted]`` is the number of images.
    """

    domain: str
    counts: Counts


class RunConfusion(NamedTuple):
    """The confusion matrices of one run, one per domain; or the reason why there are none.

    `owner` names the client whose model predicted, for personal methods.
    """

    classes: tuple[str, ...]
    matrices: tuple[ConfusionMatrix, ...]
    owner: str  # the owner of the model, in personal methods
    fault: str = ""


class ConfusionCache:
    """The confusion matrices of finished runs, each computed once however often a page is made.

    `say` gets a line of progress before each computation, which loads the run's model and images.
    Runs whose images are at remote sites are not opened: their matrices are those that the sites
    told. The entry of a run whose code `access` does not allow to load carries a fault instead.
    """

    def __init__(self, say: Callable[[str], None], access: CodeAccess = OUR_CODE):
        self.say, self.access = say, access
        self.made: dict[tuple[Path, str], RunConfusion] = {}

    def of(self, runs: Sequence[ReportRun]) -> dict[Path, RunConfusion]:
        """The matrices by run folder; unfinished runs have none yet."""
        finished = [run for run in runs if run.record]
        local = [run for run in finished if not isinstance(run.experiment.data, SiteData)]
        for number, run in enumerate(local, start=1):
            key = run.folder, run.experiment.digest
            if key not in self.made:
                self.say(f"confusion matrices {number}/{len(local)}: {run.name}")
                self.made[key] = run_confusion(run, self.access)
        return {
            run.folder: self.made.get((run.folder, run.experiment.digest)) or recorded_matrices(run)
            for run in finished
        }


def recorded_matrices(run: ReportRun) -> RunConfusion:
    """The matrices of a run whose images are at its sites, as far as these have told them."""
    last = run.evaluations[-1]
    told = {name: counts for name, counts in last.counts.items() if counts.cells}
    if not told:
        return RunConfusion((), (), "", "the images of this run are at its sites")
    matrices = tuple(ConfusionMatrix(name, counts.matrix()) for name, counts in told.items())
    return RunConfusion(last.classes, matrices, "as the sites counted")


def run_confusion(run: ReportRun, access: CodeAccess = OUR_CODE) -> RunConfusion:
    """Predict all test images with a run's last model and count the answers.

    Loads checkpoint and images. Where one of them is missing or has changed, the result carries the
    reason as its `fault` and no matrices. Nothing is raised: the rest of the page does without.
    """
    try:
        return _answers(run, access)
    except (ProtofedError, OSError) as fault:
        return RunConfusion((), (), "", str(fault).splitlines()[0])


def _answers(run: ReportRun, access: CodeAccess) -> RunConfusion:
    from protofed.experiment.trained_run import open_trained_run
    from protofed.federation.build import data_fingerprints

    foreign = code_names(run.experiment.to_dict())
    if foreign and access.allowed is not None:
        raise ProtofedError(f"needs {foreign[0]}, whose code a report loads only if asked to")
    opened = open_trained_run(run.folder)
    if data_fingerprints(opened.federation.benchmark) != run.world.get("data"):
        raise ProtofedError("the images found here are not those that this run was scored on")
    if opened.round != run.evaluations[-1].round:
        raise ProtofedError(f"the model of its last round is gone; round {opened.round} is left")
    classes = opened.federation.benchmark.classes
    matrices = []
    for domain, test in opened.federation.tests.items():
        if len(test):
            pairs = test.labels * len(classes) + opened.predictions(test)
            counts = pairs.bincount(minlength=len(classes) ** 2)
            table: Counts = counts.reshape(len(classes), len(classes)).tolist()
            matrices.append(ConfusionMatrix(domain, table))
    site, _ = opened.speaker()
    owner = f"client {site.id}'s own model" if opened.method.personal else ""
    return RunConfusion(classes, tuple(matrices), owner)


def matrix_accuracy(counts: Counts) -> float:
    """The accuracy of a confusion matrix, in per cent."""
    right = sum(counts[n][n] for n in range(len(counts)))
    return 100 * right / sum(map(sum, counts))


def frequent_mistakes(counts: Counts, classes: Sequence[str]) -> list[str]:
    """The three most frequent mistakes, in words.

    ``9 taken for 4 (12 of 30)`` means that 12 of the 30 test images of a 9 were predicted as 4.
    """
    found = [
        (count, true, predicted)
        for true, row in enumerate(counts)
        for predicted, count in enumerate(row)
        if predicted != true and count
    ]
    found.sort(key=lambda one: (-one[0], one[1], one[2]))
    return [
        f"{classes[true]} taken for {classes[predicted]} ({count} of {sum(counts[true])})"
        for count, true, predicted in found[:MOST_MISTAKES]
    ]


def draw_confusion(matrix: ConfusionMatrix, classes: Sequence[str]) -> Markup:
    """A confusion matrix as SVG, with true classes as rows and predictions as columns.

    Colours and numbers show the share of a row. Names and numbers are left out where there are too
    many classes for them.
    """
    size = len(classes)
    named = size <= MOST_NAMED
    longest = max(len(_short(name)) for name in classes)
    edge = 0.45 + 0.3 * longest if named else 0.2
    words = ", ".join(frequent_mistakes(matrix.counts, classes)) or "no mistakes"
    alt = f"{matrix.domain}: {matrix_accuracy(matrix.counts):.2f} % right; most often: {words}"
    return svg_tag(
        "svg",
        *_cells(matrix.counts),
        *(_numbers(matrix.counts) if size <= MOST_NUMBERED else []),
        *(_names(classes) if named else []),
        svg_tag("rect", class_="border", width=size, height=size),
        class_="matrix",
        viewBox=f"{number_text(-edge)} -0.1 {number_text(size + edge + 0.1)} "
        f"{number_text(size + edge + 0.1)}",
        role="img",
        aria_label=alt,
    )


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def _levels(counts: Counts) -> list[list[int]]:
    """How strong each cell's colour is, 0 to LEVELS."""
    totals = [max(1, sum(row)) for row in counts]
    return [
        [-(-LEVELS * n // total) for n in row] for row, total in zip(counts, totals, strict=True)
    ]


def _cells(counts: Counts) -> list[Markup]:
    """One path for all cells of a colour: right answers in one hue, mistakes in another."""
    paths: dict[str, list[str]] = {}
    for true, row in enumerate(_levels(counts)):
        for predicted, level in enumerate(row):
            if level:
                kind = f"{'right' if predicted == true else 'wrong'} l{level}"
                paths.setdefault(kind, []).append(f"M{predicted} {true}h1v1h-1z")
    return [svg_tag("path", class_=kind, d="".join(cells)) for kind, cells in sorted(paths.items())]


def _numbers(counts: Counts) -> list[Markup]:
    """The share of each cell in per cent of its row."""
    drawn = []
    for true, (row, levels) in enumerate(zip(counts, _levels(counts), strict=True)):
        for predicted, (count, level) in enumerate(zip(row, levels, strict=True)):
            share = round(100 * count / max(1, sum(row)))
            if share:
                strong = {"class_": "strong"} if level > LEVELS // 2 else {}
                drawn.append(
                    svg_tag("text", str(share), x=predicted + 0.5, y=true + 0.64, **strong)
                )
    return drawn


def _names(classes: Sequence[str]) -> list[Markup]:
    size, drawn = len(classes), []
    upright = all(len(name) <= 2 for name in classes)
    for place, name in enumerate(classes):
        middle = number_text(place + 0.5)
        down = f"translate({middle} {size + 0.25}) rotate(-90)"
        left = number_text(place + 0.65)
        drawn.append(svg_tag("text", _short(name), class_="name", x="-0.25", y=left))
        if upright:
            drawn.append(svg_tag("text", name, x=middle, y=size + 0.6, class_="name upright"))
        else:
            drawn.append(svg_tag("text", _short(name), class_="name", transform=down, dy="0.15"))
    return drawn
