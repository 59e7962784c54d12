"""A peer: PFLlib's own FedAvg loop, from a checkout that the variable PFLLIB_DIR names.

Its server sends, trains, receives and averages, and its client takes the steps, all as they stand;
they get our net, images (the plain loop's), optimiser and numbers. Three things are replaced: a
client keeps its last short batch, which PFLlib drops, starts each round with a new optimiser, as
all systems here do, and nothing is evaluated. One client trains after the other, on two threads.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.plain_loop import THREADS, Images, Trained, distance, make_optimizer, summed
from benchmarks.serve import LeftOutError, Order, Tell
from benchmarks.workloads import CLASSES, Workload, make_images, make_net

FOLDER = "PFLLIB_DIR"
SERVER, CLIENT = "flcore.servers.serveravg", "flcore.clients.clientavg"
BASES = "flcore.servers.serverbase", "flcore.clients.clientbase"
ROUNDS = 1_000_000  # more than are ever asked for


class NoMoreRoundsError(Exception):
    """Leaves PFLlib's loop, which knows no other way to end early."""


class Logits(nn.Module):
    """A net that returns scores alone, as PFLlib's models do."""

    def __init__(self, work: Workload):
        super().__init__()
        self.net = make_net(work)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x).logits
        return logits


class CountedLoss(nn.CrossEntropyLoss):
    """The loss of a client, which notes the steps that it took."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.samples, self.total = 0, 0, 0.0

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # noqa: A002
        loss = super().forward(input, target)
        self.steps, self.samples = self.steps + 1, self.samples + len(target)
        self.total += loss.item()
        return loss

    def done(self) -> Trained:
        """What was trained since the last call."""
        found = Trained(self.steps, self.samples, self.total / max(1, self.steps))
        self.steps, self.samples, self.total = 0, 0, 0.0
        return found


def find_modules() -> tuple[Any, Any, str]:
    """PFLlib's server and client of FedAvg, and a digest of the files they are in."""
    if not (folder := os.environ.get(FOLDER)):
        raise LeftOutError(f"{FOLDER} is not set: let it name a checkout of PFLlib")
    system = Path(folder) / "system"
    if not (system / "flcore").is_dir():
        raise LeftOutError(f"{FOLDER} is no checkout of PFLlib: there is no {system / 'flcore'}")
    sys.path.insert(0, str(system))
    try:
        server, client = import_module(SERVER).FedAvg, import_module(CLIENT).clientAVG
    except ModuleNotFoundError as missing:
        raise LeftOutError(f"PFLlib needs {missing.name}: pip install {missing.name}") from None
    digest = hashlib.sha256()
    for name in (SERVER, CLIENT, *BASES):
        digest.update((system / f"{name.replace('.', '/')}.py").read_bytes())
    return server, client, digest.hexdigest()[:12]


def client_class(base: Any, work: Workload) -> Any:
    """PFLlib's client with our images and optimiser."""

    class Client(base):  # type: ignore[misc]
        def __init__(self, args: SimpleNamespace, number: int):
            self.data = Images(*make_images(work, number))
            super().__init__(args, number, len(self.data), 0, train_slow=False, send_slow=False)
            self.loss = CountedLoss()

        def load_train_data(self, batch_size: int | None = None) -> DataLoader[Any]:
            return DataLoader(self.data, batch_size or self.batch_size, shuffle=True)

        def train(self) -> None:
            self.optimizer = make_optimizer(self.model, work)
            super().train()

    return Client


def make_server(work: Workload, rounds: Iterator[int], tell: Tell) -> Any:
    """PFLlib's server; its loop asks for a round when it selects and tells when it has averaged."""
    found, client, digest = find_modules()
    base: Any = found
    made = client_class(client, work)

    class Server(base):  # type: ignore[misc]
        def set_clients(self, _: Any) -> None:
            self.clients = [made(self.args, number) for number in range(len(work.sizes))]

        def select_clients(self) -> list[Any]:
            number = next(rounds, None)
            if number is None:
                raise NoMoreRoundsError
            self.began, self.before = time.perf_counter(), self.global_model
            chosen = [self.clients[client] for client in work.chosen(number)]
            self.current_num_join_clients = len(chosen)
            return chosen

        def aggregate_parameters(self) -> None:
            super().aggregate_parameters()
            seconds = time.perf_counter() - self.began
            moved = distance(self.before, dict(self.global_model.named_parameters()))
            done = [client.loss.done() for client in self.selected_clients]
            tell(summed(done, seconds, moved, f"files {digest}"))

        def evaluate(self) -> None:
            """Nothing, as in all systems here."""

    return Server(arguments(work), 0)


def arguments(work: Workload) -> SimpleNamespace:
    """PFLlib's command line; what is not about our work stands at its defaults."""
    return SimpleNamespace(
        algorithm="FedAvg",
        auto_break=False,
        batch_num_per_client=2,
        batch_size=work.batch,
        client_drop_rate=0.0,
        dataset=work.name,
        device="cpu",
        dlg_eval=False,
        dlg_gap=100,
        eval_gap=ROUNDS,
        few_shot=0,
        fine_tuning_epoch_new=0,
        global_rounds=ROUNDS,
        goal="test",
        join_ratio=work.participants / len(work.sizes),
        learning_rate_decay=False,
        learning_rate_decay_gamma=0.99,
        local_epochs=work.epochs,
        local_learning_rate=work.training.lr,
        model=Logits(work),
        num_classes=CLASSES,
        num_clients=len(work.sizes),
        num_new_clients=0,
        random_join_ratio=False,
        save_folder_name="items",
        send_slow_rate=0.0,
        time_select=False,
        time_threthold=10_000,
        top_cnt=100,
        train_slow_rate=0.0,
    )


def serve(order: Order, rounds: Iterator[int], tell: Tell) -> None:
    """Play the rounds that are asked for, inside PFLlib's loop."""
    torch.set_num_threads(THREADS)
    server = make_server(order.work, rounds, tell)
    try:
        server.train()
    except NoMoreRoundsError:
        return
