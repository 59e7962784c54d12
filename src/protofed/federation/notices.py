"""What a reader of the scores must know about a federation."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from protofed.core.freezing import features_are_fixed
from protofed.core.model import Net
from protofed.core.site import ClientId, Site
from protofed.data.benchmark_info import Benchmark
from protofed.data.partition import ClientPart
from protofed.spec.experiment_spec import Experiment

NoticeKind = Literal[
    "method", "training", "scores", "unseen", "data", "site", "events", "code", "collapse"
]


class Notice(NamedTuple):
    """Something that a reader of a run's scores must know.

    `kind` says what it is about: the method, the training, how scores were taken, a domain left out
    of training, the images, a site's software, what went wrong during the run, code that has
    changed since, or a model that has collapsed. `domain` is set if it is about one domain;
    ``str(notice)`` is a line for people.
    """

    kind: NoticeKind
    text: str
    domain: str | None = None

    def __str__(self) -> str:
        return f"{self.domain}: {self.text}" if self.domain else self.text


def left_out_note(experiment: Experiment) -> list[Notice]:
    """A note that one domain was left out of training; an empty list if none was."""
    if experiment.leave_out is None:
        return []
    on = "" if experiment.validation is None else ", scored on its training images"
    text = f"left out of training, so its score is of an unseen domain{on}"
    return [Notice("unseen", text, experiment.leave_out)]


def method_warnings(experiment: Experiment, nets: list[Net]) -> list[Notice]:
    """What may make the training differ from what a reader expects.

    The method's own warnings, scores on held-out images, and batch norm with batches of one.
    """
    warnings = [Notice("method", experiment.method.warning(net) or "") for net in nets]
    method = experiment.method
    if "protos" in method.payload.up and any(map(features_are_fixed, nets)):
        text = (
            f"all features are frozen, so the prototypes of {method.info.label} cannot move them: "
            "they need a neck to train, as in net efficientnet-lite0-neck with train = neck"
        )
        warnings.append(Notice("method", text))
    if experiment.validation:
        text = f"scored on {experiment.validation_images}, not on the test images"
        warnings.append(Notice("scores", text))
    layers = [layer for net in nets for layer in net.modules()]
    if experiment.training.batch == 1 and any(isinstance(m, _BatchNorm) for m in layers):
        text = "batches of one: batch norm keeps its initial statistics"
        warnings.append(Notice("training", text))
    return list(dict.fromkeys(notice for notice in warnings if notice.text))


def data_notes(
    benchmark: Benchmark,
    parts: tuple[ClientPart, ...],
    sites: dict[ClientId, Site],
    public: dict[str, Tensor],
    left_out: str | None,
) -> list[Notice]:
    """What a reader must know about the images and which client holds them.

    For example domains without a client, clients without an image, and classes that nobody holds.
    """
    notices = [Notice("data", d.note, d.name) for d in benchmark.domains if d.note]
    if public:
        counts = ", ".join(f"{name} {len(rows)}" for name, rows in public.items())
        text = f"public images, of training images that no client holds: {counts}"
        notices.append(Notice("data", text))
    dealt = {part.domain for part in parts}
    notices += [
        Notice("data", "has no client, is only tested", domain.name)
        for domain in benchmark.domains
        if domain.name not in dealt and domain.name != left_out
    ]
    empty = [f"{part.client} ({part.domain})" for part in parts if not len(part.rows)]
    if empty:
        notices.append(Notice("data", f"skipped, as they hold no image: client {', '.join(empty)}"))
    held = torch.cat([site.train.labels for site in sites.values()]).unique().tolist()
    missing = [name for label, name in enumerate(benchmark.classes) if label not in held]
    if missing:
        text = f"no client holds class {', '.join(missing)}: it cannot be learnt"
        notices.append(Notice("data", text))
    return notices
