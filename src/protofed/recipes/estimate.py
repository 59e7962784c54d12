"""How long a table may take: from a table of nets before, from a few measured batches at a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

import torch

from protofed.core.site import SCAN_BATCH, ArrayDataset, RoundContext, Site
from protofed.core.threads import torch_threads
from protofed.data.catalog import BENCHMARKS
from protofed.experiment.federation import Federation, build_federation
from protofed.experiment.spec import Experiment
from protofed.recipes.recipe import Recipe, RecipePart, nest_values
from protofed.recipes.scale import RunPlan, Scale
from protofed.study.variants import GridCell

# Seconds to train on 1,000 images of 32 pixels, measured on one core; only an order of magnitude.
PACE = {
    "lsa-cnn": 2.1,
    "moon-cnn": 0.2,
    "moon-mlp": 0.1,
    "moon-resnet18": 63.0,
    "resnet10": 31.0,
    "seproto-cnn": 1.6,
    "seproto-cnn2": 1.0,
}


class RoundPace(NamedTuple):
    """Seconds of one round's training, and of one scoring."""

    training: float
    scoring: float

    def run(self, experiment: Experiment) -> float:
        """The seconds of a whole run."""
        rounds = experiment.rounds
        return rounds * self.training + -(-rounds // experiment.evaluate_every) * self.scoring


def rough_estimate(recipe: Recipe, part: RecipePart, scale: Scale) -> float | None:
    """Seconds of a part on one core, without measuring; none where the images are not known."""
    if part.benchmark not in BENCHMARKS or part.images is None:
        return None
    raw = nest_values(recipe.settings(part))
    full = scale == "paper"
    rounds = raw["rounds"] if full else min(raw["rounds"], raw["scoring"]["quick_rounds"])
    runs = len(recipe.rows) * (raw["scoring"]["seeds"] if full else 1)
    nets = raw["net"] if isinstance(raw["net"], list) else [raw["net"]]
    pace = sum(PACE[net] for net in nets) / len(nets) * (raw["data"]["side"] / 32) ** 2
    return float(runs * rounds * raw["training"]["epochs"] * part.images / 1000 * pace)


def measured_estimate(
    plans: Iterable[RunPlan], open_cells: Callable[[RunPlan], list[GridCell]], workers: int
) -> float:
    """Seconds that all unfinished runs may take, by a few batches of the first row of each part."""
    total = 0.0
    for plan in plans:
        left = open_cells(plan)
        if left:
            pace = measure_pace(plan.cells[0].experiment)
            total += sum(pace.run(cell.experiment) for cell in left)
    return total / workers


def measure_pace(experiment: Experiment) -> RoundPace:
    """Train on one batch and score one block, and multiply."""
    with torch_threads(experiment.threads):
        federation = build_federation(experiment)
        site = max(federation.sites.values(), key=lambda site: len(site.train))
        return RoundPace(
            _training(experiment, federation, site), _scoring(experiment, federation, site)
        )


def _training(experiment: Experiment, federation: Federation, site: Site) -> float:
    method, training = experiment.method, experiment.training
    few = replace(
        site, train=_first(site.train, training.batch), training=replace(training, epochs=1)
    )
    server = method.init_server(federation.server)
    step = RoundContext(0, experiment.rounds)
    inbox = method.send(federation.server, server, [site.id], step)[site.id]
    state = method.init_client(site)
    seconds = _timed(lambda: method.train(few, inbox, state, step))
    images = sum(len(other.train) for other in federation.sites.values()) * training.epochs
    return seconds * experiment.participation * images / len(few.train)


def _scoring(experiment: Experiment, federation: Federation, site: Site) -> float:
    images = sum(len(test) for test in federation.tests.values())
    block = _first(max(federation.tests.values(), key=len), SCAN_BATCH)
    model = site.initial_model()
    seconds = _timed(lambda: [site.forward_eval(model, x) for x, _ in site.eval_batches(block)])
    models = len(federation.sites) if experiment.method.personal else 1
    return seconds * models * images / len(block)


def _first(data: ArrayDataset, most: int) -> ArrayDataset:
    return data.take(torch.arange(min(most, len(data))))


def _timed(work: Callable[[], object]) -> float:
    """Seconds of the second time, as the first warms up."""
    work()
    began = time.monotonic()
    work()
    return time.monotonic() - began
