"""FedSR: simple representations (Nguyen et al., NeurIPS 2022).

A feature is drawn from N(mu(x), sigma(x)^2) -> adapt, loss, ProbabilisticNet. L2R: its length ->
loss. CMI: the KL of its distribution to a reference of its class that each client learns for itself
-> loss, ClassReferences, with the references kept in train. Prediction is the mean over draws ->
inference_inputs, class_scores.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from protofed.core.message import Message
from protofed.core.method import Method, MethodInfo, ServerState, TunedFields, reply_from_fit
from protofed.core.model import InputShape, Model, Net, NetOutput
from protofed.core.site import RoundContext, Site, TrainingBatch

LEAST_DEVIATION = 1e-6  # keeps logarithms and quotients finite


class DiagonalNormal(NamedTuple):
    """Independent normal distributions, one for each entry of a feature.

    For example a batch of features with mean and deviation predicted by a net.
    """

    mean: Tensor  # [B, D]
    deviation: Tensor  # [B, D], not negative


class ClassReferences(nn.Module):
    """A client's reference distribution per class, and the scale at which features are compared.

    Learned at the client and never sent.
    """

    def __init__(self, classes: int, features: int):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(classes, features))  # r_mu
        self.spread = nn.Parameter(torch.ones(classes, features))  # r_sigma, before its softplus
        self.scale = nn.Parameter(torch.ones(()))  # C

    def forward(self, feature: DiagonalNormal, y: Tensor) -> Tensor:
        """KL of each scaled feature to the reference of its class y [B]: [B]."""
        scaled = DiagonalNormal(self.scale * feature.mean, self.scale.abs() * feature.deviation)
        return gaussian_kl(scaled, DiagonalNormal(self.mean[y], F.softplus(self.spread[y])))


class ProbabilisticNet(Net):
    """Encoder -> linear neck to mean and deviation of z -> head; beside them the class references.

    The neck has 2 D outputs: means, and values whose softplus are the deviations.
    """

    def __init__(self, net: Net):
        neck = nn.Linear(net.width, 2 * net.features)
        super().__init__(net.encoder, neck, net.head, net.width)
        self.references = ClassReferences(net.classes, net.features)

    def forward(self, x: Tensor, noise: Tensor | None = None, y: Tensor | None = None) -> NetOutput:
        """The feature at `noise` deviations from its mean; with y, `more` is KL to references.

        Noise [B, D] makes one draw per image; [S, 1, D] makes S, the same for every image, and then
        features and scores are [S, B, D] and [S, B, C]. Without noise z is the mean.
        """
        mean, raw = self.neck(self.encode(x)).chunk(2, dim=1)
        feature = DiagonalNormal(mean, F.softplus(raw))
        z = mean if noise is None else mean + feature.deviation * noise
        return NetOutput(z, self.head(z), None if y is None else self.references(feature, y))


def gaussian_kl(one: DiagonalNormal, other: DiagonalNormal) -> Tensor:
    """KL(one || other) of diagonal normals for each row, summed over dimensions: [B].

    sum_d log(s_d / r_d) + (r_d^2 + (m_d - n_d)^2) / (2 s_d^2) - 1/2 for one = N(m, r^2) and
    other = N(n, s^2).
    """
    own, reference = (n.deviation.clamp(min=LEAST_DEVIATION) for n in (one, other))
    squares = (own.square() + (one.mean - other.mean).square()) / (2 * reference.square())
    return (reference.log() - own.log() + squares - 0.5).sum(1)


def mean_log_probability(logits: Tensor) -> Tensor:
    """The log of the mean probability [B, C] over S draws, from logits [S, B, C].

    log((1 / S) sum_s softmax(logits_s)), computed without leaving the log domain.
    """
    draws = torch.tensor(float(len(logits)))
    return logits.log_softmax(-1).logsumexp(0) - draws.log()


PRIVATE = ("references",)  # never leave the client


@dataclass(frozen=True)
class FedSR(Method[ServerState, Model]):
    """Random features that are short and close to a learned reference of their class.

    The net's feature becomes a normal distribution from which training draws. Clients add to cross
    entropy alpha_l2r * length of the feature and alpha_cmi * KL of its distribution to the class's
    reference, so features carry less of their domain. The model travels and is averaged as in
    FedAvg; each client keeps its references, which are not needed to predict.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedSR",
        title="FedSR: A Simple and Effective Domain Generalization Method for Federated Learning",
        venue="NeurIPS",
        year=2022,
        family="representation",
    )
    tuned: ClassVar[TunedFields] = {"alpha_l2r": "log:0.001..0.1", "alpha_cmi": "log:0.0001..0.01"}

    alpha_l2r: float = Field(default=0.01, ge=0, description="alpha^L2R: weight of the length")
    alpha_cmi: float = Field(default=5e-4, ge=0, description="alpha^CMI: weight of the KL")
    l2_squared: bool = Field(
        default=False, description="square the length, as the paper; its code does not"
    )
    samples: int = Field(default=20, ge=1, description="draws that a prediction averages")

    def adapt(self, net: Net, image: InputShape) -> Net:
        return ProbabilisticNet(net)

    def init_server(self, site: Site) -> ServerState:
        return ServerState(site.initial_model().without(*PRIVATE))

    def init_client(self, site: Site) -> Model:
        return site.initial_model().only(*PRIVATE)

    def loss(
        self, site: Site, received: Message, state: Model, model: Model, batch: TrainingBatch
    ) -> Tensor:
        draw = site.rng("sample", batch.context.round, batch.context.exchange, batch.number)
        noise = torch.randn(len(batch.y), site.net.features, generator=draw).to(batch.x.device)
        out = site.forward_train(model, batch.x, noise, batch.y if self.alpha_cmi else None)
        loss = site.task_loss(out.logits, batch.y)
        if self.alpha_l2r:
            length = out.z.square().sum(1) if self.l2_squared else out.z.norm(dim=1)
            loss = loss + self.alpha_l2r * length.mean()
        if self.alpha_cmi:
            divergence = cast(Tensor, out.more)  # [B]
            loss = loss + self.alpha_cmi * divergence.mean()
        return loss

    def train(
        self, site: Site, received: Message, state: Model, context: RoundContext
    ) -> tuple[Message, Model]:
        start = received.model | state
        fitted = self.local_fit(site, received, state, context, start=start)
        model, reply = fitted.trained, reply_from_fit(site, fitted)
        return replace(reply, model=model.without(*PRIVATE)), model.only(*PRIVATE)

    def inference_model(self, site: Site, received: Message, state: Model) -> Model:
        return received.model | state

    def inference_inputs(self, site: Site) -> tuple[Tensor, ...]:
        # One set of draws for all images, so scores do not depend on how images are batched.
        return (site.randn((self.samples, 1, site.net.features), "test samples"),)

    def class_scores(self, out: NetOutput) -> Tensor:
        return mean_log_probability(out.logits)
