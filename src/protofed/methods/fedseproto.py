"""FedSeProto: semantic prototypes, kept apart from the domain (Lai et al., ECAI 2024).

Eq. 10 L_MI, Eq. 11 L_KD (the printed sign would drive semantic features from the teacher), Eq. 13
L_Proto, Eq. 14 L_CE, Eq. 15 sum -> phase_loss; Eq. 12 prototypes -> train; Eq. 3, 16 -> merge.
The net with its semantic and domain encoders and its decoder -> adapt, DisentangledNet.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import ClassVar, Literal, NamedTuple, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import (
    Ablations,
    Method,
    MethodInfo,
    Need,
    Payload,
    ServerState,
    TunedFields,
    average_models,
)
from protofed.core.model import ArrayShape, InputShape, Model, Net, NetOutput
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.core.training import Training, fit_model
from protofed.ops.losses import Reduction, balanced_prototype_mse, logit_kl, prototype_mse
from protofed.ops.prototype_collection import (
    local_prototypes,
    stack_client_prototypes,
)

Posterior = Literal["gaussian", "unit", "moment"]
Phase = Literal["basic", "split", "joint"]
Work = tuple[Phase, TrainingBatch]
Schedule = Literal["joint", "two-phase", "sequential", "interleaved"]
MIReduction = Literal["mean", "sum", "literal"]
LEAST_VARIANCE = 1e-6
LARGEST_MAP = 7  # largest side of the map with which a decoder begins


class SplitOutput(NamedTuple):
    """What a pass through all parts of a `DisentangledNet` gives beyond z^s and its logits."""

    basic: Tensor  # [B, C] logits of the general feature
    semantic: Tensor  # [B, C] logits of z^s, drawn
    domain: Tensor  # [B, C] logits of z^d, drawn
    rebuilt: Tensor  # from z^s and z^d, [B, channels, side, side] for images
    bound: Tensor  # [B, D] KL of both posteriors to the standard normal


class DisentangledNet(Net):
    """General encoder F -> semantic encoder F^s (the neck) -> head; beside them F^d and decoder G.

    F^s and F^d are linear layers on the output of F and give the semantic feature z^s and the
    domain feature z^d, as distributions if `posterior` is "gaussian". G rebuilds the image from
    both.
    """

    def __init__(self, net: Net, image: InputShape, posterior: Posterior):
        width = net.width
        outward = 2 * width if posterior == "gaussian" else width
        head = nn.Linear(width, net.classes)
        super().__init__(net.encoder, nn.Linear(width, outward), head, width)
        self.domain = nn.Linear(width, outward)
        self.decoder = build_decoder(2 * width, image)
        self.posterior = posterior

    def forward(
        self,
        x: Tensor,
        view: str = "semantic",
        draw: torch.Generator | None = None,
        back: float = 1.0,
    ) -> NetOutput:
        """The path through F, F^s and the head; "basic" leaves out F^s, "split" uses all parts.

        "split" draws features with `draw` and returns a `SplitOutput` as `more`. `back` is the
        share of the decoder's gradient that reaches the encoders.
        """
        general = self.encode(x)
        if view == "split":
            return self._split(general, draw, back)
        z = general if view == "basic" else self.neck(general)[:, : self.width]  # the mean
        return NetOutput(z, self.head(z))

    def _split(self, general: Tensor, draw: torch.Generator | None, back: float) -> NetOutput:
        semantic, domain = (
            feature_posterior(self.posterior, part(general), draw)
            for part in (self.neck, self.domain)
        )
        both = torch.cat([semantic.drawn, domain.drawn], 1)
        fixed = both.detach()
        rebuilt = self.decoder(fixed + back * (both - fixed))  # the value stays, whatever `back`
        features = (general, semantic.drawn, domain.drawn)
        basic, logits, domain_logits = (self.head(z) for z in features)
        bound = semantic.kl + domain.kl
        more = SplitOutput(basic, logits, domain_logits, rebuilt, bound)
        return NetOutput(semantic.mean, logits, more)


def phase_batches(schedule: Schedule, site: Site, context: RoundContext) -> Iterator[Work]:
    """A round's batches, each with the phase it serves.

    "joint": all batches serve both phases at once; "two-phase": all epochs of basic, then as many
    of split batches; "sequential": about half of the epochs each; "interleaved": by turns.
    """
    epochs = site.training.epochs
    if schedule == "joint":
        yield from (("joint", batch) for batch in site.batches(context))
    elif schedule == "interleaved":
        for batch in site.batches(context, epochs=max(2, epochs)):
            yield ("split" if batch.number % 2 else "basic"), batch
    else:
        halves = site.training.split_epochs()
        first, rest = halves if schedule == "sequential" else (epochs, epochs)
        yield from (("basic", batch) for batch in site.batches(context, "basic", first))
        yield from (("split", batch) for batch in site.batches(context, "split", rest))


class FeaturePosterior(NamedTuple):
    """A feature as a distribution: its mean, a draw, and its KL, [B, D] each.

    Mean and draw are equal if nothing is drawn.
    """

    mean: Tensor
    drawn: Tensor
    kl: Tensor  # of the distribution to the standard normal


def feature_posterior(
    kind: Posterior, out: Tensor, draw: torch.Generator | None
) -> FeaturePosterior:
    """A feature's distribution from its encoder's output.

    gaussian: `out` [B, 2 D] holds mean and log variance; unit: N(out, 1); moment: the normal with
    the batch's own mean and variance. The last two are deterministic.
    """
    if kind == "unit":
        return FeaturePosterior(out, out, out.square() / 2)
    if kind == "moment":
        mean, variance = out.mean(0), out.var(0, unbiased=False).clamp(min=LEAST_VARIANCE)
        return FeaturePosterior(out, out, standard_normal_kl(mean, variance.log()).expand_as(out))
    mean, log_variance = out.chunk(2, dim=1)
    noise = torch.randn(mean.shape, generator=draw).to(mean.device)
    drawn = mean + (log_variance / 2).exp() * noise
    return FeaturePosterior(mean, drawn, standard_normal_kl(mean, log_variance))


def standard_normal_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, 1)) for each dimension, not summed.

    (mean^2 + variance - log variance - 1) / 2, of the same shape as `mean`.
    """
    return (mean.square() + log_variance.exp() - log_variance - 1) / 2


def build_decoder(width: int, image: InputShape) -> nn.Sequential:
    """A decoder from features [B, width] to images, by transposed convolutions on a small map.

    The last layer is linear, as the images to rebuild are normalised and have negative values. Rows
    of another shape, of which the paper does not speak, are rebuilt by two linear layers.
    """
    if isinstance(image, ArrayShape):
        size = math.prod(image.sizes)
        hidden = nn.Linear(width, width)
        return nn.Sequential(
            hidden, nn.ReLU(), nn.Linear(width, size), nn.Unflatten(1, image.sizes)
        )
    side, stages = image.side, 0
    while side > LARGEST_MAP:
        side, stages = (side + 1) // 2, stages + 1
    channels = [max(16, 128 >> stage) for stage in range(stages)] + [image.channels]
    start = channels[0]
    layers: list[nn.Module] = [nn.Linear(width, start * side**2)]
    layers.append(nn.Unflatten(1, (start, side, side)))
    for inward, outward in pairwise(channels):
        layers += [nn.ReLU(), nn.ConvTranspose2d(inward, outward, 4, stride=2, padding=1)]
    surplus = side * 2**stages - image.side
    if surplus:  # an odd side on the way down: crop the border
        layers.append(nn.ZeroPad2d((0, -surplus, 0, -surplus)))
    return nn.Sequential(*layers)


def distillation_loss(split: SplitOutput, printed: bool) -> Tensor:
    """L_KD: semantic logits should follow the basic ones more closely than domain logits do.

    softplus(KL_semantic - KL_domain), batch mean; `printed` swaps them, as Eq. 11 does.
    """
    semantic = logit_kl(split.basic, split.semantic)
    domain = logit_kl(split.basic, split.domain)
    return F.softplus(domain - semantic if printed else semantic - domain).mean()


def mutual_information_loss(
    split: SplitOutput, x: Tensor, reduction: MIReduction, weight: float = 1.0
) -> Tensor:
    """L_MI times `weight`: KL of both features to their prior, plus the error of the rebuilt image.

    The KL is a "mean" over dimensions, else their sum. The error is always a mean over pixels and
    not weighted: no other term trains the decoder, so a factor would only change its learning rate.
    What the error sends on into the encoders is scaled in `DisentangledNet`, by `error_weight`.
    """
    bound = split.bound.mean() if reduction == "mean" else split.bound.sum(1).mean()
    return weight * bound + F.mse_loss(split.rebuilt, x)


def error_weight(x: Tensor, reduction: MIReduction, weight: float) -> float:
    """The factor of the pixels' mean squared error [B, ...] in Eq. 10 times `weight`.

    "sum": the log likelihood of a normal with variance 1, half the sum over pixels.
    """
    return weight * x[0].numel() / 2 if reduction == "sum" else weight


PRIVATE = ("domain", "decoder")  # never leave the client


@dataclass(frozen=True)
class FedSeProto(Method[ServerState, Model]):
    """Prototypes of semantic features, which the net separates from those of the domain.

    The net gets a semantic and a domain encoder and a decoder. Clients train it by distillation
    (L_KD), mutual information (L_MI) and the distance to global prototypes (L_Proto) beside cross
    entropy. Class means of semantic features travel up and down and are averaged
    unweighted; with `param_avg` the model travels too, averaged as in FedAvg. Domain encoder and
    decoder never leave the client; they are its state. The server keeps the prototypes.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedSeProto",
        title="FedSeProto: Learning Semantic Prototype in Federated Learning",
        venue="ECAI",
        year=2024,
        family="prototype",
    )
    tuned: ClassVar[TunedFields] = {"lam": "log:1..100", "beta": "log:0.001..0.1"}

    ablations: ClassVar[Ablations] = {
        "only L_CE": {
            "schedule": "joint",
            "posterior": "unit",
            "alpha": 0.0,
            "beta": 0.0,
            "lam": 0.0,
        },
        "without L_MI": {"beta": 0.0, "posterior": "unit"},
        "without L_KD": {"alpha": 0.0},
        "without L_Proto": {"lam": 0.0},
    }

    alpha: float = Field(default=0.1, ge=0, description="alpha: weight of L_KD")
    beta: float = Field(default=0.01, ge=0, description="beta: weight of L_MI")
    lam: float = Field(default=10.0, ge=0, description="lambda: weight of L_Proto")
    param_avg: bool = Field(default=True, description="false: only prototypes travel, any nets")
    schedule: Schedule = Field(default="joint", description="of the two phases")
    posterior: Posterior = Field(default="unit", description="p(z|x) in Eq. 10")
    kd_form: Literal["corrected", "printed"] = Field(default="corrected", description="Eq. 11")
    mi_reduction: MIReduction = Field(
        default="mean",
        description="of Eq. 10 over dimensions and pixels; literal: sum of KL, mean of pixels",
    )
    proto_dims: Reduction = Field(default="mean", description="of Eq. 13 over dimensions")
    balanced: bool = Field(
        default=True, description="Eq. 13: true: classes count the same; false: images do"
    )

    def epochs_per_round(self, training: Training) -> int:
        epochs = {"joint": training.epochs, "two-phase": 2 * training.epochs}
        return epochs.get(self.schedule, max(2, training.epochs))

    @property
    def personal(self) -> bool:
        return not self.param_avg

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("equal nets",) if self.param_avg else ("equal features",)

    @property
    def payload(self) -> Payload:
        parts = ("model", "protos") if self.param_avg else ("protos",)
        return Payload(up=parts, down=parts)

    def adapt(self, net: Net, image: InputShape) -> Net:
        return DisentangledNet(net, image, self.posterior)

    def init_server(self, site: Site) -> ServerState:
        return ServerState(site.initial_model().without(*PRIVATE) if self.param_avg else Model())

    def init_client(self, site: Site) -> Model:
        return site.initial_model().only(*PRIVATE) if self.param_avg else site.initial_model()

    def train(
        self, site: Site, received: Message, state: Model, context: RoundContext
    ) -> tuple[Message, Model]:
        def loss(model: Model, work: Work) -> Tensor:
            return self.phase_loss(site, received, model, *work)

        batches = phase_batches(self.schedule, site, context)
        model, _, mean = fit_model(received.model | state, batches, loss, site.training)
        protos = local_prototypes(site, model)
        reply = Message(protos=protos, size=len(site.train), metrics={"loss": mean})
        if not self.param_avg:
            return reply, model
        return replace(reply, model=model.without(*PRIVATE)), model.only(*PRIVATE)

    def phase_loss(
        self, site: Site, received: Message, model: Model, phase: Phase, batch: TrainingBatch
    ) -> Tensor:
        """Basic: cross entropy. Split: Eq. 15, head frozen. Joint: Eq. 15; + basic if alpha > 0."""
        x, y, protos = batch.x, batch.y, received.protos
        if phase == "basic":
            return site.task_loss(site.forward_train(model, x, "basic").logits, y)
        if phase == "split":
            model = model | tree.clone(model.only("head"))
        draw = site.rng("posterior", batch.context.round, batch.context.exchange, batch.number)
        back = error_weight(x, self.mi_reduction, self.beta)
        out = site.forward_train(model, x, "split", draw, back)
        loss, split = site.task_loss(out.logits, y), cast(SplitOutput, out.more)
        if self.alpha:
            loss = loss + (site.task_loss(split.basic, y) if phase == "joint" else 0)
            loss = loss + self.alpha * distillation_loss(split, self.kd_form == "printed")
        if self.beta:
            loss = loss + mutual_information_loss(split, x, self.mi_reduction, self.beta)
        if self.lam and protos is not None:
            distance = balanced_prototype_mse if self.balanced else prototype_mse
            loss = loss + self.lam * distance(out.z, y, protos, site.classes, self.proto_dims)
        return loss

    def merge(
        self,
        site: Site,
        server: ServerState,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> ServerState:
        model = average_models(replies) if self.param_avg else server.model
        return ServerState(model, protos=stack_client_prototypes(replies).uniform_mean())

    def inference_model(self, site: Site, received: Message, state: Model) -> Model:
        return received.model | state
