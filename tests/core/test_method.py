"""The defaults of `Method` are federated averaging, written out slowly here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod, Method, ServerState, average_models, reply_from_fit
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.reply_validation import ReplyTemplate, rejection_reason
from protofed.core.site import RoundContext, TrainingBatch
from protofed.core.training import Training, fit_model
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedproto import FedProto
from protofed.methods.scaffold import SCAFFOLD
from protofed.testing import toy_sites

NOW = RoundContext(0, 3)
SERVER, SITES = toy_sites(FedAvg())


def test_the_mean_of_models_is_a_sum_over_clients_and_entries() -> None:
    draw = torch.Generator().manual_seed(0)
    replies = {
        client: Message(Model({"w": torch.randn(3, 2, generator=draw)}, {}), size=size)
        for client, size in ((0, 1), (4, 5), (7, 2))
    }
    mean = average_models(replies).weights["w"]
    for row in range(3):
        for column in range(2):
            total = 0.0
            for reply in replies.values():
                total += reply.size * float(reply.model.weights["w"][row, column])
            assert float(mean[row, column]) == pytest.approx(total / 8, rel=1e-6)


def test_a_round_of_the_defaults_is_plain_sgd_and_the_weighted_mean() -> None:
    method = FedAvg()
    server = method.init_server(SERVER)
    chosen = [0, 2]
    sent = method.send(SERVER, server, chosen, NOW)
    assert [message.model for message in sent.values()] == [server.model] * 2
    replies = {c: method.train(SITES[c], sent[c], None, NOW)[0] for c in chosen}
    for client in chosen:
        site, weights = SITES[client], tree.clone(server.model)
        optimiser = torch.optim.SGD(
            [leaf.requires_grad_() for leaf in weights.weights.values()],
            lr=site.training.lr,
            momentum=site.training.momentum,
            weight_decay=site.training.weight_decay,
        )
        for batch in site.batches(NOW):
            optimiser.zero_grad()
            F.cross_entropy(site.forward_train(weights, batch.x).logits, batch.y).backward()
            optimiser.step()
        for name, leaf in replies[client].model.weights.items():
            torch.testing.assert_close(leaf, weights.weights[name].detach())
        assert replies[client].size == len(site.train)
    merged = method.merge(SERVER, server, replies, NOW)
    assert tree.equal(merged.model, average_models(replies))


def test_local_fit_starts_elsewhere_and_shows_batches_and_gradients() -> None:
    site, start = SITES[1], tree.map(lambda leaf: leaf * 2, SITES[1].initial_model())
    seen: list[int] = []
    norms: list[float] = []

    def on_batch(batch: TrainingBatch) -> None:
        seen.append(batch.number)

    def on_gradients(model: Model) -> None:
        gradients = [leaf.grad for leaf in model.weights.values() if leaf.grad is not None]
        norms.append(float(torch.stack([g.norm() for g in gradients]).norm()))

    def loss(model: Model, batch: TrainingBatch) -> Tensor:
        return F.cross_entropy(site.forward_train(model, batch.x).logits, batch.y)

    received = Message(site.initial_model())
    fitted = FedAvg().local_fit(
        site, received, None, NOW, start=start, on_gradients=on_gradients, on_batch=on_batch
    )
    assert tree.equal(fitted.trained, fit_model(start, site.batches(NOW), loss, site.training)[0])
    assert seen == list(range(fitted.steps))
    assert len(norms) == fitted.steps
    assert min(norms) > 0


@pytest.mark.parametrize("method", [FedAvg(), FedProto(), FedProto(param_avg=False), SCAFFOLD()])
def test_the_default_schema_admits_honest_replies_and_nothing_else(method: AnyMethod) -> None:
    server_site, sites = toy_sites(method)
    short = replace(sites[0], training=Training(epochs=1, batch=8))
    received = method.send(server_site, method.init_server(server_site), [0], NOW)[0]
    reply, _ = method.train(short, received, method.init_client(short), NOW)
    schema = method.reply_schema(server_site, received, NOW)
    template = ReplyTemplate(schema, method.payload.optional, len(short.train))
    assert rejection_reason(reply, template) == ""
    for odd in (
        replace(reply, extras={**reply.extras, "more": torch.ones(1)}),
        replace(reply, model=reply.model | Model({"more": torch.ones(1)})),
        replace(reply, size=reply.size + 1),
    ):
        assert rejection_reason(odd, template) != ""


def test_a_prediction_is_the_three_hooks_in_a_row() -> None:
    class Inverted(Method):
        def class_scores(self, out: object) -> Tensor:
            return -super().class_scores(out)  # type: ignore[arg-type]

    site, x = SITES[3], SITES[3].pixels.normalize(SITES[3].train.images)
    received = Message(site.initial_model())
    plain = site.forward_eval(received.model, x).logits
    assert torch.equal(FedAvg().predict(site, received, None, x), plain)
    assert torch.equal(Inverted().predict(site, received, None, x), -plain)


def test_a_reply_tells_examples_and_loss() -> None:
    fitted = fit_model(
        SITES[0].initial_model(), [], lambda model, batch: torch.ones(()), Training()
    )
    reply = reply_from_fit(SITES[0], fitted)
    assert (reply.size, reply.metrics) == (len(SITES[0].train), {"loss": 0.0})
    assert tree.equal(reply.model, SITES[0].initial_model())


def test_prototypes_that_are_missing_or_all_the_same_are_told() -> None:
    method, labels = FedProto(), torch.arange(3)
    apart = Prototypes(torch.eye(3), labels, torch.ones(3, dtype=torch.int64))
    same = replace(apart, vectors=torch.zeros(3, 3))
    empty = Prototypes(torch.zeros(0, 3), labels[:0], labels[:0])

    def warned(protos: Prototypes | None) -> str:
        return method.result_warning(ServerState(Model(), protos=protos))

    assert warned(apart) == ""
    assert warned(None) == warned(empty) == "FedProto ended without prototypes"
    assert warned(same) == "FedProto ended with the same prototype for all classes"
    assert warned(replace(same, labels=torch.zeros_like(labels))) == ""  # three rows of one class
    assert FedAvg().result_warning(ServerState(Model())) == ""
