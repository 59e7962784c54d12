"""Trained runs opened for one figure, and what their models make of the same images."""

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
    """The runs after so many rounds, or after their last; all must be about the same images."""
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
    """The only round that was asked for, or none for the newest."""
    if len(options.rounds) > 1:
        raise ProtofedError(f"{kind} shows one round, got {', '.join(map(str, options.rounds))}")
    return options.rounds[0] if options.rounds else None


def run_names(runs: Sequence[Path], opened: Sequence[TrainedRun]) -> list[str]:
    """What to call each run: method and settings, and its folder where two have the same."""
    labels = label_experiments([run.experiment for run in opened])
    return [
        label if labels.count(label) == 1 else f"{label} ({folder.name})"
        for label, folder in zip(labels, runs, strict=True)
    ]


def model_owner(run: TrainedRun) -> str:
    """Whose model shows the features, where that is not the server's."""
    return f"client {min(run.federation.sites)}" if run.method.personal else ""


def choose_test_images(kind: str, run: TrainedRun, domain: str | None) -> Chosen:
    """The test images of a domain, or of all; those of no image are left out."""
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
    """So many of the images, drawn at random from all alike; their order stays."""
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
    """The features z [N, D] of images, domain after domain."""
    return torch.cat([run.features(data) for data in chosen.values()])


def image_groups(run: TrainedRun, chosen: Chosen, by: str) -> tuple[Tensor, Sequence[str]]:
    """The number of each image's class or domain [N], and what the numbers are called."""
    if by == "class":
        return torch.cat(
            [data.labels for data in chosen.values()]
        ), run.federation.benchmark.classes
    sizes = torch.tensor([len(data) for data in chosen.values()])
    return torch.arange(len(chosen)).repeat_interleave(sizes), tuple(chosen)


def client_prototypes(run: TrainedRun) -> dict[ClientId, Prototypes]:
    """Each client's class means by the model that it now has.

    That is its own in personal methods, else the one that the server gives to all; what a client
    sent in came from the model it had just trained, which no checkpoint holds.
    """
    with torch_threads(run.experiment.threads):
        return {client: _means_at(run, client) for client in sorted(run.federation.sites)}


def _means_at(run: TrainedRun, client: ClientId) -> Prototypes:
    site = run.federation.sites[client]
    return prototype_collection.local_prototypes(site, run.model_at(site))
