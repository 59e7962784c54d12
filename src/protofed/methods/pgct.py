"""PGCT: prototype-guided cross-training on any base method (Liu et al., ICME 2023).

Eq. 1-2 prototypes -> train, pgct_prototypes; the exchange -> send; Eq. 3 L_PCL, Eq. 4-7 L_Aug,
Eq. 8 sum -> loss. Clusters and random subsets for several prototypes per class -> kmeans_labels,
bootstrap_prototypes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core.message import Message
from protofed.core.method import (
    Ablations,
    Method,
    MethodInfo,
    Need,
    Payload,
    TunedFields,
    reply_from_fit,
)
from protofed.core.model import InputShape, Model, Net, NetOutput
from protofed.core.prototypes import Prototypes, class_means, prototype_template, stack_prototypes
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.core.training import Training
from protofed.ops import model_exchange
from protofed.ops.losses import prototype_contrastive
from protofed.ops.prototype_collection import site_features

MOST_STEPS = 100  # of Lloyd's algorithm
SUBSETS, SHARE, LEAST = 5, 0.8, 5  # of `bootstrap_prototypes`, as in FedCSPC's code

Draw = Callable[[int], torch.Generator]  # the random stream of a class


def kmeans_labels(points: Tensor, k: int, draw: torch.Generator) -> Tensor:
    """Cluster numbers [N] of points [N, D] by Lloyd's algorithm, starting from k random points.

    Fewer than k points form one cluster. Ties go to the lower number, and a cluster that loses all
    its points keeps its centre, so numbers may be missing.
    """
    if len(points) < k:
        return torch.zeros(len(points), dtype=torch.int64)
    exact = points.detach().double()
    centres = exact[torch.randperm(len(exact), generator=draw)[:k]]
    labels = _nearest(exact, centres)
    for _ in range(MOST_STEPS):
        means = class_means(exact, labels)
        centres = centres.index_copy(0, means.labels, means.vectors)
        moved = _nearest(exact, centres)
        if torch.equal(moved, labels):
            break
        labels = moved
    return labels


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    distances = torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.argmin(1)


def kmeans_prototypes(features: Tensor, labels: Tensor, k: int, draw: Draw) -> Prototypes:
    """The means of each class's k-means clusters, from features [N, D] and classes [N].

    Up to k rows per class; `counts` is the number of images in each cluster.
    """

    def rows(mine: Tensor, label: int) -> Prototypes:
        return class_means(mine, kmeans_labels(mine, k, draw(label)))

    return _by_class(features, labels, rows)


def bootstrap_prototypes(features: Tensor, labels: Tensor, draw: Draw) -> Prototypes:
    """The means of five random subsets of each class: 80 % of it each, drawn with repetition.

    A class with fewer than five images has one row, its mean.
    """

    def rows(mine: Tensor, label: int) -> Prototypes:
        if len(mine) < LEAST:
            return class_means(mine, torch.zeros(len(mine), dtype=torch.int64))
        size = int(len(mine) * SHARE)
        chosen = torch.randint(len(mine), (SUBSETS * size,), generator=draw(label))
        return class_means(mine[chosen], torch.arange(SUBSETS).repeat_interleave(size))

    return _by_class(features, labels, rows)


def _by_class(
    features: Tensor, labels: Tensor, rows: Callable[[Tensor, int], Prototypes]
) -> Prototypes:
    """The rows that each class's features give, under that class's label."""
    tables = []
    for label in labels.unique().tolist():
        table = rows(features[labels == label], label)
        tables.append(replace(table, labels=torch.full_like(table.labels, label)))
    return stack_prototypes(tables)


PROTOTYPES = "prototypes"  # the name of the extra; `protos` is left to the base method
Mode = Literal["weighted", "uniform", "multi", "bootstrap"]
Scope = Literal["own", "all"]


def pgct_prototypes(
    mode: Mode, clusters: int, site: Site, model: Model, context: RoundContext
) -> Prototypes:
    """A client's prototypes from all its images, without augmentation.

    weighted: cluster means weighted by size, which is the class mean whatever the clusters;
    uniform: the plain mean of the k-means clusters' means; multi: all of these means;
    bootstrap: means of random subsets.
    """
    z, labels = site_features(site, model), site.train.labels
    if mode == "weighted":
        return class_means(z, labels)

    def draw(label: int) -> torch.Generator:
        return site.rng("prototypes", context.round, label)

    if mode == "bootstrap":
        return bootstrap_prototypes(z, labels, draw)
    table = kmeans_prototypes(z, labels, clusters, draw)
    if mode == "multi":
        return table
    examples = labels.unique(return_counts=True)[1]  # a site's policy counts examples, not clusters
    return replace(table.uniform_mean(), counts=examples)


def pgct_prototype_template(mode: Mode, clusters: int, site: Site) -> Prototypes:
    """The shape of `pgct_prototypes` for a client that has every class and every cluster.

    For the reply schema: a client may send fewer rows, but not more.
    """
    each = {"multi": clusters, "bootstrap": SUBSETS}.get(mode, 1)
    return prototype_template(site.classes, site.net.features, each)


def repeat_class_rows(
    y: Tensor, protos: Prototypes, classes: int, scope: Scope, number: int
) -> Tensor:
    """`number` copies of prototype rows for each image: [B, N, D].

    scope "own": the mean row of the image's class [B], so N = number; "all": every row of the
    table, so N = K * number.
    """
    if scope == "all":
        rows = protos.vectors.expand(len(y), -1, -1)
    else:
        centres, _ = protos.class_matrix(classes)
        rows = centres[y][:, None]
    return rows.repeat_interleave(number, 1)


def add_noise(near: Tensor, eps: float, site: Site, batch: TrainingBatch) -> Tensor:
    """Vectors plus normal noise of standard deviation eps (Eq. 4).

    The noise comes from a stream of its own for every batch.
    """
    draw = site.rng("augment", batch.context.round, batch.context.exchange, batch.number)
    return near + eps * torch.randn(near.shape, generator=draw).to(near.device)


def fuse_features(z: Tensor, near: Tensor) -> Tensor:
    """Features [B, D] plus an attention-weighted mean of vectors [B, N, D] (Eq. 5-6).

    z_b + sum_n w_bn v_bn, where w_b is the softmax of z_b . v_bn over n.
    """
    weights = torch.einsum("bd,bnd->bn", z, near).softmax(1)
    return z + torch.einsum("bn,bnd->bd", weights, near)


def augmented_loss(model: Model, z: Tensor, y: Tensor, near: Tensor, protos: Prototypes) -> Tensor:
    """L_Aug: cross entropy of a model's head on features [B, D] fused with `near` [B, N, D].

    A batch mean; an image whose class has no prototype adds nothing but still counts in it.
    """
    known = torch.isin(y, protos.labels)
    weight, bias = model.weights["head.weight"], model.weights["head.bias"]
    logits = F.linear(fuse_features(z[known], near[known]), weight, bias)
    return F.cross_entropy(logits, y[known], reduction="sum") / len(y)


@dataclass(frozen=True)
class PGCT(Method[model_exchange.WrappingServer, Any]):
    """Another client trains each model further, guided by the prototypes of its first client.

    A round has two exchanges: first the base method's training (FedAvg's by default), then each
    model and its client's prototypes go to a random other client, which trains it with a
    contrastive loss (L_PCL) and augmented features (L_Aug). Model and prototypes travel up, then
    down; the retrained models are merged as the base merges. The server keeps the base's state and,
    between the exchanges, the replies; clients keep the base's client state.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="PGCT",
        title="Cross-Training with Prototypical Distillation for improving the generalization "
        "of Federated Learning",
        venue="ICME",
        year=2023,
        family="prototype",
    )
    tuned: ClassVar[TunedFields] = {"lam": "log:0.01..1"}

    ablations: ClassVar[Ablations] = {
        "+Exg": {"alpha": 0.0, "lam": 0.0},
        "+Exg+PFA": {"alpha": 0.0},
        "+Exg+PGRL": {"lam": 0.0},
    }

    base: model_exchange.Base = Method()
    alpha: float = Field(default=0.5, ge=0, description="alpha: weight of the contrast L_PCL")
    lam: float = Field(default=0.1, ge=0, description="lambda: weight of L_Aug")
    tau: float = Field(default=0.5, gt=0, description="tau: temperature of the contrast")
    eps: float = Field(default=0.1, ge=0, description="epsilon: noise on prototypes in L_Aug")
    n_aug: int = Field(default=5, ge=1, description="noisy copies of a prototype in L_Aug")
    pfa_scope: Scope = Field(default="own", description="copies of the own class, or of all")
    proto_mode: Mode = Field(default="weighted", description="weighted: class means, Eq. 2")
    clusters: int = Field(default=3, ge=1, description="of each class, in uniform and multi")
    phase_epochs: model_exchange.PhaseEpochs = Field(
        default="half",
        description="a round's epochs: half before the exchange, or all twice",
    )

    def epochs_per_round(self, training: Training) -> int:
        return model_exchange.phase_total(training, self.phase_epochs)

    @property
    def exchanges(self) -> int:
        return 2

    @property
    def needs(self) -> tuple[Need, ...]:
        return self.base.needs

    @property
    def payload(self) -> Payload:
        base = self.base.payload
        return base._replace(up=(*base.up, PROTOTYPES), down=(*base.down, PROTOTYPES))

    def warning(self, net: Net) -> str:
        return self.base.warning(net)

    def result_warning(self, server: model_exchange.WrappingServer) -> str:
        return self.base.result_warning(model_exchange.unwrap_state(server))

    def adapt(self, net: Net, image: InputShape) -> Net:
        return self.base.adapt(net, image)

    def init_server(self, site: Site) -> model_exchange.WrappingServer:
        return model_exchange.wrap_state(self.base.init_server(site))

    def init_client(self, site: Site) -> Any:
        return self.base.init_client(site)

    def publish(self, server: model_exchange.WrappingServer) -> Message:
        return self.base.publish(model_exchange.unwrap_state(server))

    def send(
        self,
        site: Site,
        server: model_exchange.WrappingServer,
        to: Sequence[ClientId],
        context: RoundContext,
    ) -> dict[ClientId, Message]:
        if context.exchange == 0:
            return self.base.send(site, model_exchange.unwrap_state(server), to, context)
        return model_exchange.exchange_models(
            site, server.pending_replies, to, context, (PROTOTYPES,)
        )

    def train(
        self, site: Site, received: Message, state: Any, context: RoundContext
    ) -> tuple[Message, Any]:
        now = model_exchange.phase_site(site, context, self.phase_epochs)
        if context.exchange == 1:
            return reply_from_fit(now, self.local_fit(now, received, state, context)), state
        reply, state = self.base.train(now, received, state, context)
        model_exchange.check_complete_model(site, reply.model)
        protos = pgct_prototypes(self.proto_mode, self.clusters, site, reply.model, context)
        return replace(reply, extras={**reply.extras, PROTOTYPES: protos}), state

    def reply_schema(self, site: Site, received: Message, context: RoundContext) -> Message:
        table = pgct_prototype_template(self.proto_mode, self.clusters, site)
        return model_exchange.exchange_reply_schema(
            self.base, site, received, context, {PROTOTYPES: table}
        )

    def loss(
        self, site: Site, received: Message, state: Any, model: Model, batch: TrainingBatch
    ) -> Tensor:
        out, protos = (
            site.forward_train(model, batch.x),
            cast(Prototypes, received.extras[PROTOTYPES]),
        )
        total = site.task_loss(out.logits, batch.y)
        if self.alpha:
            total = total + self.alpha * prototype_contrastive(out.z, batch.y, protos, self.tau)
        if self.lam:
            near = repeat_class_rows(batch.y, protos, site.classes, self.pfa_scope, self.n_aug)
            near = add_noise(near, self.eps, site, batch)
            total = total + self.lam * augmented_loss(model, out.z, batch.y, near, protos)
        return total

    def merge(
        self,
        site: Site,
        server: model_exchange.WrappingServer,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> model_exchange.WrappingServer:
        if context.exchange == 0:
            return replace(server, pending_replies=dict(replies))
        state, merged = (
            model_exchange.unwrap_state(server),
            model_exchange.with_retrained_models(server.pending_replies, replies),
        )
        return model_exchange.wrap_state(
            self.base.merge(site, state, merged, context._replace(exchange=0))
        )

    def inference_model(self, site: Site, received: Message, state: Any) -> Model:
        return self.base.inference_model(site, received, state)

    def inference_inputs(self, site: Site) -> tuple[Tensor, ...]:
        return self.base.inference_inputs(site)

    def class_scores(self, out: NetOutput) -> Tensor:
        return self.base.class_scores(out)

    def auxiliary_predictions(
        self, site: Site, received: Message, state: Any, x: Tensor
    ) -> dict[str, Tensor]:
        return self.base.auxiliary_predictions(site, received, state, x)
