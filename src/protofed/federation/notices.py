"""What a reader of the scores must know about a federation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from protofed.core.model import Net
from protofed.core.site import ClientId, Site
from protofed.data.benchmark_info import Benchmark
from protofed.data.partition import ClientPart
from protofed.spec.experiment_spec import Experiment


def left_out_note(experiment: Experiment) -> list[str]:
    """A note that one domain was left out of training; an empty list if none was."""
    if experiment.leave_out is None:
        return []
    on = "" if experiment.validation is None else ", scored on its training images"
    return [
        f"{experiment.leave_out}: left out of training, so its score is of an unseen domain{on}"
    ]


def method_warnings(experiment: Experiment, nets: list[Net]) -> list[str]:
    """What may make the training differ from what a reader expects.

    The method's own warnings, scores on held-out images, and batch norm with batches of one.
    """
    warnings = [experiment.method.warning(net) for net in nets]
    if experiment.validation:
        warnings.append("scored on images held out from the clients, not on the test images")
    layers = [layer for net in nets for layer in net.modules()]
    if experiment.training.batch == 1 and any(isinstance(m, _BatchNorm) for m in layers):
        warnings.append("batches of one: batch norm keeps its initial statistics")
    return list(dict.fromkeys(text for text in warnings if text))


def data_notes(
    benchmark: Benchmark,
    parts: tuple[ClientPart, ...],
    sites: dict[ClientId, Site],
    public: dict[str, Tensor],
    left_out: str | None,
) -> list[str]:
    """What a reader must know about the images and which client holds them.

    For example domains without a client, clients without an image, and classes that nobody holds.
    """
    notices = [f"{domain.name}: {domain.note}" for domain in benchmark.domains if domain.note]
    if public:
        counts = ", ".join(f"{name} {len(rows)}" for name, rows in public.items())
        notices.append(f"public images, of training images that no client holds: {counts}")
    dealt = {part.domain for part in parts}
    notices += [
        f"{domain.name}: has no client, is only tested"
        for domain in benchmark.domains
        if domain.name not in dealt and domain.name != left_out
    ]
    empty = [f"{part.client} ({part.domain})" for part in parts if part.client not in sites]
    if empty:
        notices.append(f"skipped, as they hold no image: client {', '.join(empty)}")
    held = torch.cat([site.train.labels for site in sites.values()]).unique().tolist()
    missing = [name for label, name in enumerate(benchmark.classes) if label not in held]
    if missing:
        notices.append(f"no client holds class {', '.join(missing)}: it cannot be learnt")
    return notices
