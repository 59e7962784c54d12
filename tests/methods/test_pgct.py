from __future__ import annotations

import dataclasses
import math
from functools import cache
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod, Method, MethodInfo, ServerState
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.site import RoundContext, Site, TrainingBatch
from protofed.errors import ProtofedError
from protofed.methods.fedexg import FedExg
from protofed.methods.fedproto import FedProto
from protofed.methods.fedprox import FedProx
from protofed.methods.fedseproto import FedSeProto
from protofed.methods.fpl import FPL
from protofed.methods.local import Local
from protofed.methods.pgct import PGCT, PROTOTYPES
from protofed.ops.losses import proximal_term
from protofed.ops.model_exchange import phase_site
from protofed.ops.prototype_collection import local_prototypes
from protofed.testing import check_method, toy_sites
from tests.methods import playing

FIRST, SECOND = RoundContext(0, 3, 0), RoundContext(0, 3, 1)


@dataclass(frozen=True)
class Remembering(Method[ServerState, Model]):
    """A base with client state, like MOON: a spring to the client's own last model."""

    info: ClassVar[MethodInfo] = MethodInfo(label="Remembering", title="A test")

    def init_client(self, site: Site) -> Model:
        return site.initial_model()

    def loss(
        self, site: Site, received: Message, state: Model, model: Model, batch: TrainingBatch
    ) -> Tensor:
        task = F.cross_entropy(site.forward_train(model, batch.x).logits, batch.y)
        return task + 0.1 * proximal_term(model, state)

    def train(
        self, site: Site, received: Message, state: Model, context: RoundContext
    ) -> tuple[Message, Model]:
        reply, _ = super().train(site, received, state, context)
        return reply, reply.model


@cache
def after(method: AnyMethod, rounds: int = 1) -> Model:
    return playing.after(method, rounds)


def example(lacking: tuple[int, ...] = (1, 3)) -> tuple[Site, Message, TrainingBatch]:
    """A client, a parcel whose prototypes lack some classes (one has two rows), and a batch."""
    site, sites = toy_sites(PGCT())
    labels = [label for label in (0, 0, 1, 2, 3, 4) if label not in lacking]
    vectors = torch.randn(len(labels), 8, generator=site.rng("test"))
    protos = Prototypes(vectors, torch.tensor(labels), torch.ones(len(labels)).long())
    batch = next(sites[2].batches(SECOND))
    return sites[2], Message(site.initial_model(), extras={PROTOTYPES: protos}), batch


def slow_loss(method: PGCT, site: Site, received: Message, batch: TrainingBatch) -> float:
    """Eq. 3-8, image by image."""
    model, protos = tree.clone(received.model), received.extras[PROTOTYPES]
    assert isinstance(protos, Prototypes)
    out, head = site.forward_train(model, batch.x), model.weights
    rows = list(zip(protos.vectors, protos.labels.tolist(), strict=True))
    total, size = 0.0, len(batch.y)
    copies = len(rows) * method.n_aug if method.pfa_scope == "all" else method.n_aug
    draw = site.rng("augment", batch.context.round, batch.context.exchange, batch.number)
    noise = torch.randn(size, copies, 8, generator=draw)
    for i, y in enumerate(batch.y.tolist()):
        f = out.z[i]
        total += float(F.cross_entropy(out.logits[i], batch.y[i])) / size
        mine = [p for p, label in rows if label == y]
        if not mine:
            continue
        likeness = [(math.exp(F.cosine_similarity(f, p, 0) / method.tau), m) for p, m in rows]
        share = sum(e for e, m in likeness if m == y) / sum(e for e, _ in likeness)
        total -= method.alpha * math.log(share) / size
        own = [sum(mine, torch.zeros(8)) / len(mine)]
        source = own if method.pfa_scope == "own" else [p for p, _ in rows]
        near = [p for p in source for _ in range(method.n_aug)]
        near = [p + method.eps * noise[i, n] for n, p in enumerate(near)]
        scores = [math.exp(f @ p) for p in near]
        f = f + sum((s / sum(scores)) * p for s, p in zip(scores, near, strict=True))
        logits = head["head.weight"] @ f + head["head.bias"]
        total += method.lam * float(F.cross_entropy(logits, batch.y[i])) / size
    return total


@pytest.mark.parametrize(
    "method",
    [
        PGCT(base=Remembering(), proto_mode="uniform"),
        PGCT(proto_mode="multi", pfa_scope="all"),
        PGCT(base=FPL(), proto_mode="bootstrap"),
    ],
)
def test_it_holds_the_contract(method: PGCT) -> None:
    check_method(method)


@pytest.mark.parametrize("epochs", ["half", "full"])
def test_without_its_terms_it_is_fedexg_bit_for_bit(epochs: str) -> None:
    plain = PGCT(alpha=0, lam=0, phase_epochs=epochs)  # type: ignore[arg-type]
    assert tree.equal(after(plain, 3), after(FedExg(phase_epochs=epochs), 3))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "method",
    [
        PGCT(alpha=0.7, lam=0.3),
        PGCT(alpha=0),
        PGCT(lam=0, tau=0.1),
        PGCT(pfa_scope="all", n_aug=2, eps=1.0),
    ],
)
@pytest.mark.parametrize("lacking", [(), (1, 3)])
def test_the_loss_is_equations_3_to_8(method: PGCT, lacking: tuple[int, ...]) -> None:
    site, received, batch = example(lacking)
    fast = method.loss(site, received, None, tree.clone(received.model), batch)
    assert float(fast) == pytest.approx(slow_loss(method, site, received, batch), rel=1e-5)


def test_images_of_classes_without_a_prototype_get_plain_cross_entropy() -> None:
    site, received, batch = example((0, 1, 3, 4))
    chosen = batch.y != 2
    strangers = batch._replace(x=batch.x[chosen], y=batch.y[chosen])
    assert len(strangers.y) > 1
    losses = [
        method.loss(site, received, None, tree.clone(received.model), strangers)
        for method in (PGCT(), PGCT(pfa_scope="all"), PGCT(alpha=0, lam=0))
    ]
    assert losses[0] == losses[1] == losses[2]


def test_noise_is_named_by_round_leg_and_batch() -> None:
    site, received, batch = example(())
    method = PGCT(eps=1.0)

    def loss(batch: TrainingBatch) -> float:
        return float(method.loss(site, received, None, tree.clone(received.model), batch))

    others = [
        batch._replace(number=7),
        batch._replace(context=SECOND._replace(round=1)),
        batch._replace(context=FIRST),
    ]
    assert loss(batch) == loss(batch)
    assert len({loss(batch), *(loss(other) for other in others)}) == 4


def test_the_first_leg_is_the_bases_and_the_second_is_not() -> None:
    base = FedProx(mu=5)
    method = PGCT(base=base, alpha=0, lam=0)
    site, sites = toy_sites(method)
    received = method.publish(method.init_server(site))
    reply, _ = method.train(sites[0], received, None, FIRST)
    alone, _ = base.train(phase_site(sites[0], FIRST, "half"), received, None, FIRST)
    assert tree.equal(reply.model, alone.model)
    assert tree.equal(reply.extras[PROTOTYPES], local_prototypes(sites[0], reply.model))
    parcel = Message(reply.model, extras={PROTOTYPES: reply.extras[PROTOTYPES]})
    on, _ = method.train(sites[1], parcel, None, SECOND)
    plain, _ = Method().train(
        phase_site(sites[1], SECOND, "half"), Message(reply.model), None, SECOND
    )
    assert tree.equal(on.model, plain.model)


def test_a_bases_client_state_is_that_of_the_first_leg() -> None:
    method = PGCT(base=Remembering())
    site, sites = toy_sites(method)
    received = method.publish(method.init_server(site))
    reply, state = method.train(sites[0], received, method.init_client(sites[0]), FIRST)
    assert tree.equal(state, reply.model)
    parcel = Message(site.initial_model(), extras={PROTOTYPES: reply.extras[PROTOTYPES]})
    assert method.train(sites[0], parcel, state, SECOND)[1] is state


def test_a_bases_server_state_goes_on() -> None:
    method = PGCT(base=FPL())
    run = playing.play(method, 2)
    told, site = method.publish(run.server), run.sites[0]
    assert told.protos is not None
    x, _ = next(site.eval_batches(site.train))
    assert torch.equal(
        method.predict(site, told, None, x), site.forward_eval(run.server.model, x).logits
    )
    assert list(PGCT(base=FedProto()).auxiliary_predictions(site, told, Model(), x)) == [
        "nearest prototype"
    ]


@pytest.mark.parametrize(
    "other",
    [
        PGCT(base=FedProx(mu=1)),
        PGCT(alpha=0),
        PGCT(lam=0),
        PGCT(tau=0.1),
        PGCT(eps=1.0),
        PGCT(n_aug=2),
        PGCT(pfa_scope="all"),
        PGCT(proto_mode="uniform"),
        PGCT(proto_mode="multi"),
        PGCT(proto_mode="bootstrap"),
    ],
)
def test_every_switch_moves_the_result(other: PGCT) -> None:
    assert not tree.equal(after(other), after(PGCT()))


@pytest.mark.parametrize("mode", ["uniform", "multi"])
def test_the_number_of_clusters_moves_the_result_where_clusters_matter(mode: Any) -> None:
    three, two = (after(PGCT(proto_mode=mode, clusters=clusters)) for clusters in (3, 2))
    assert not tree.equal(three, two)
    assert tree.equal(after(PGCT(clusters=2)), after(PGCT()))  # weighted: class means, whatever k


@pytest.mark.parametrize("base", [PGCT(), FedExg(), Local(), FedProto(param_avg=False)])
def test_bases_whose_models_cannot_go_round_are_refused(base: AnyMethod) -> None:
    with pytest.raises(
        ValidationError, match="one exchange per round and one model for all clients"
    ):
        PGCT(base=base)


def test_a_base_that_keeps_parts_of_its_model_is_refused() -> None:
    with pytest.raises(ProtofedError, match="keeps decoder, domain at its client"):
        playing.play(PGCT(base=FedSeProto()), 1)


def test_the_default_base_is_seen_by_who_parses_specs() -> None:
    base = {field.name: field.default for field in dataclasses.fields(PGCT)}["base"]
    assert isinstance(base, Method)


def test_the_warnings_of_the_base_are_passed_on() -> None:
    method = PGCT(base=FPL())
    few = playing.play(method, who=[0, 1, 2]).server
    assert "one cluster per class" in method.result_warning(few)
    assert PGCT().result_warning(playing.play(PGCT()).server) == ""
