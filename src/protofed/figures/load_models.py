"""Open trained runs for a figure, and choose the test images that it shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from protofed.analysis.run_labels import label_experiments
from protofed.core.prototypes import Prototypes
from protofed.core.rng import rng
from protofed.core.site import ArrayDataset, ClientId
from protofed.core.training import torch_threads
from protofed.errors import ProtofedError, require_known_name
from protofed.experiment.trained_run import TrainedRun, open_trained_run
from protofed.figures.style import FigureOptions
from protofed.ops import prototype_collection

Chosen: TypeAlias = Mapping[str, ArrayDataset]  # by domain; grey and colour images do not mix


def open_runs(runs: Sequence[Path], finished: int | None) -> list[TrainedRun]:
    """Open the runs with their images, after round `finished`, or after their last if None.

    All runs must have the same data section, as a figure shows the same images for each.
    """
    opened = [open_trained_run(folder, finished) for folder in runs]
    for folder, other in zip(runs, opened, strict=True):
        if other.experiment.data != opened[0].experiment.data:
            raise ProtofedError(
                f"{runs[0]} and {folder} cannot stand in one figure: their data differ "
                f"({opened[0].experiment.data.label}, {other.experiment.data.label}, or how a net "
                f"sees them)\ngive runs with the same data section"
            )
    return opened


def single_round(kind: str, options: FigureOptions) -> int | None:
    """The round that was asked for, or None for the last one; raises if several were.

    For kinds of figures that show one round only; `kind` is named in the error.
    """
    if len(options.rounds) > 1:
        raise ProtofedError(f"{kind} shows one round, got {', '.join(map(str, options.rounds))}")
    return options.rounds[0] if options.rounds else None


def run_names(runs: Sequence[Path], opened: Sequence[TrainedRun]) -> list[str]:
    """A name for each run: the label of its method, and its folder where several share a label.

    ``["FedAvg", "FPL (a)", "FPL (b)"]`` for one run of FedAvg and two of FPL.
    """
    labels = label_experiments([run.experiment for run in opened])
    return [
        label if labels.count(label) == 1 else f"{label} ({folder.name})"
        for label, folder in zip(labels, runs, strict=True)
    ]


def model_owner(run: TrainedRun) -> str:
    """The client whose model is shown, for personal methods; empty for the server's model.

    Personal methods leave each client with its own model; figures take the first client's.
    """
    return f"client {min(run.federation.sites)}" if run.method.personal else ""


def choose_test_images(kind: str, run: TrainedRun, domain: str | None) -> Chosen:
    """The test images by domain, of one domain or of all; domains without images are left out.

    `kind` is the kind of figure, for messages. Raises if no images are left.
    """
    tests = run.federation.tests
    if domain is not None:
        tests = {domain: tests[require_known_name("domain", domain, tests)]}
    found = {name: test for name, test in tests.items() if len(test)}
    if not found:
        raise ProtofedError(
            f"{kind}: no test images in {', '.join(tests)}", hint="choose another <domain>"
        )
    return found


def sample_images(tests: Chosen, most: int, *key: int | str) -> Chosen:
    """At most `most` images, drawn at random over all domains; their order is kept.

    `key` names the random stream.
    """
    total = sum(len(test) for test in tests.values())
    drawn = torch.randperm(total, generator=rng("figure", *key))[:most].sort().values
    chosen, start = {}, 0
    for name, test in tests.items():
        rows = drawn[(drawn >= start) & (drawn < start + len(test))] - start
        if len(rows):
            chosen[name] = test.take(rows)
        start += len(test)
    return chosen


def image_features(run: TrainedRun, chosen: Chosen) -> Tensor:
    """The features z [N, D] of images, one domain after the other.

    Computed in evaluation mode by the model that also makes the run's predictions.
    """
    return torch.cat([run.features(data) for data in chosen.values()])


def image_groups(run: TrainedRun, chosen: Chosen, by: str) -> tuple[Tensor, Sequence[str]]:
    """The class or domain of each image as a number [N], and the names of the numbers.

    `by` is "class" or "domain".
    """
    if by == "class":
        return torch.cat(
            [data.labels for data in chosen.values()]
        ), run.federation.benchmark.classes
    sizes = torch.tensor([len(data) for data in chosen.values()])
    return torch.arange(len(chosen)).repeat_interleave(sizes), tuple(chosen)


def client_prototypes(run: TrainedRun) -> dict[ClientId, Prototypes]:
    """The class means of each client's training images, by the model that the client has now.

    That is its own model in personal methods, else the server's. Prototypes that clients sent came
    from models they had just trained, which no checkpoint holds.
    """
    with torch_threads(run.experiment.threads):
        return {client: _means_at(run, client) for client in sorted(run.federation.sites)}


def _means_at(run: TrainedRun, client: ClientId) -> Prototypes:
    site = run.federation.sites[client]
    return prototype_collection.local_prototypes(site, run.model_at(site))
