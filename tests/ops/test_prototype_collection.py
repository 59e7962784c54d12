from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.prototypes import Prototypes
from protofed.core.site import RoundContext, Site
from protofed.methods.fedavg import FedAvg
from protofed.ops.prototype_collection import (
    Collect,
    FeatureRecorder,
    fit_with_prototypes,
    local_prototypes,
    stack_client_prototypes,
)
from protofed.testing import toy_sites

STEP = RoundContext(0, 1)
Sums = dict[int, list[torch.Tensor]]


def client(number: int) -> Site:
    return toy_sites(FedAvg())[1][number]


def trained(site: Site, collect: Collect) -> Message:
    received = Message(site.initial_model())
    return fit_with_prototypes(FedAvg(), collect, site, received, None, STEP)


def table(message: Message) -> Prototypes:
    assert message.protos is not None
    return message.protos


def same_means(protos: Prototypes, features: Sums) -> None:
    assert protos.labels.tolist() == sorted(features)
    for label, vector, count in zip(protos.labels, protos.vectors, protos.counts, strict=True):
        mine = features[int(label)]
        assert int(count) == len(mine)
        torch.testing.assert_close(vector, sum(mine, torch.zeros(8)) / len(mine))


def slow_last_epoch(site: Site) -> Sums:
    """FedAvg's training written out on a plain module, noting the last epoch's features."""
    net, sgd, features = copy.deepcopy(site.net), site.training, Sums()
    optimiser = torch.optim.SGD(
        net.parameters(), lr=sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay
    )
    for batch in site.batches(STEP):
        net.train(len(batch.x) > 1)  # a batch of one has no statistics of its own
        optimiser.zero_grad()
        out = net(batch.x)
        if batch.epoch == sgd.epochs - 1:
            for z, label in zip(out.z, batch.y.tolist(), strict=True):
                features.setdefault(label, []).append(z.detach().clone())
        F.cross_entropy(out.logits, batch.y).backward()
        optimiser.step()
    return features


@pytest.mark.parametrize("number", range(4))
def test_online_is_a_slow_rerun_of_the_last_epoch(number: int) -> None:
    site = client(number)
    protos = table(trained(site, "online"))
    same_means(protos, slow_last_epoch(site))
    assert int(protos.counts.sum()) == len(site.train)  # every image once, not once an epoch


def test_post_is_a_slow_look_at_all_images_after_training() -> None:
    site, features = client(2), Sums()
    reply = trained(site, "post")
    for image, label in zip(site.train.images, site.train.labels.tolist(), strict=True):
        x = site.pixels.normalize(image[None])
        features.setdefault(label, []).append(site.forward_eval(reply.model, x).z[0])
    same_means(table(reply), features)


def test_how_prototypes_are_collected_changes_them_and_nothing_else() -> None:
    post, online = trained(client(1), "post"), trained(client(1), "online")
    plain, _ = FedAvg().train(client(1), Message(client(1).initial_model()), None, STEP)
    assert not torch.allclose(table(post).vectors, table(online).vectors)
    assert tree.equal(replace(post, protos=None), plain)
    assert tree.equal(replace(online, protos=None), plain)


@pytest.mark.parametrize("collect", ["post", "online"])
def test_prototypes_carry_no_gradient_and_absent_classes_no_row(collect: Collect) -> None:
    protos = table(trained(client(3), collect))
    assert not protos.vectors.requires_grad
    assert protos.vectors.grad_fn is None
    assert protos.labels.tolist() == [0, 1, 2, 4]  # client 3 lacks class 3


def test_looking_changes_no_model_and_needs_no_order() -> None:
    site = client(0)
    model = site.initial_model()
    before, protos = tree.clone(model), local_prototypes(site, model)
    assert tree.equal(model, before)
    order = torch.arange(len(site.train)).flip(0)
    turned = local_prototypes(replace(site, train=site.train.take(order)), model)
    torch.testing.assert_close(protos.vectors, turned.vectors)


def test_a_recorder_keeps_the_last_epoch_and_no_look_at_another_model() -> None:
    site = client(0)
    model = site.initial_model()
    with FeatureRecorder(site) as recorder:
        for batch in site.batches(STEP):
            recorder.expect(batch)
            site.forward_train(model, batch.x)
            site.forward_eval(model, batch.x)  # looks are not training
    site.forward_train(model, batch.x)  # nor is what comes after it
    assert sum(len(labels) for _, labels in recorder.seen) == len(site.train)


def test_received_stacks_in_the_order_of_clients_and_skips_the_silent() -> None:
    one = Prototypes(torch.ones(1, 2), torch.tensor([4]), torch.tensor([3]))
    two = Prototypes(torch.zeros(2, 2), torch.tensor([0, 4]), torch.tensor([1, 2]))
    rows = stack_client_prototypes({0: Message(protos=one), 1: Message(), 2: Message(protos=two)})
    assert rows.labels.tolist() == [4, 0, 4]
    assert rows.counts.tolist() == [3, 1, 2]
