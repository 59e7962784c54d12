"""`check_method`: what every method must satisfy, and the toy federation that it is tried on.

The toy federation runs in milliseconds and is irregular enough to expose faults: four domains, five
classes of which each client lacks one, client sizes that leave a last batch of one, and a net with
batch normalisation.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, cast

import torch
from torch import Tensor, nn

from protofed.core import tree
from protofed.core.hook_results import first_server_state
from protofed.core.message import Failure, Message
from protofed.core.method import AnyMethod, C, Method, S
from protofed.core.model import ImageShape, Net
from protofed.core.reply_validation import decode_reply
from protofed.core.rng import rng, stream_seed
from protofed.core.serialization import pack_tree, unpack_tree
from protofed.core.site import SERVER, ArrayDataset, ClientId, RoundContext, Site
from protofed.core.training import Training, torch_threads
from protofed.engines.engine import RoundEvent, expected_reply, require_replies
from protofed.engines.local_engine import LocalEngine
from protofed.federation.round import Messages, run_round

CLASSES, SIDE, CHANNELS = 5, 8, 3
SIZES = {0: 17, 1: 24, 2: 33, 3: 40}
IMAGE = ImageShape(CHANNELS, SIDE)


@dataclass(frozen=True)
class NoisyPixels:
    """Images as floats around 0, with noise in training, so that a wrong random stream shows."""

    def augment(self, images: Tensor, draw: torch.Generator) -> Tensor:
        x = self.normalize(images)
        return x + 0.1 * torch.randn(x.shape, generator=draw).to(x.device)

    def normalize(self, images: Tensor) -> Tensor:
        return images.permute(0, 3, 1, 2).float() / 127.5 - 1


def toy_net(seed: int = 0) -> Net:
    """A small net with batch normalisation: 3 x 8 x 8 -> 12 -> 8 features -> 5 classes.

    Its initial weights depend on `seed` alone; torch's global generator is left as it was.
    """
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(seed, "toy net"))
        encoder = nn.Sequential(
            nn.Conv2d(CHANNELS, 6, 3, stride=2),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(54, 12),
            nn.BatchNorm1d(12),
            nn.ReLU(),
        )
        return Net(encoder, nn.Linear(12, 8), nn.Linear(8, CLASSES), width=12)


def toy_data(client: ClientId, size: int) -> ArrayDataset:
    """Noisy class patterns with a colour cast per client; class number `client` is absent.

    Images [size, 8, 8, 3] uint8 with labels [size], the same at every call.
    """
    draw = rng("toy data", client)
    patterns = torch.randn(CLASSES, SIDE, SIDE, CHANNELS, generator=rng("toy patterns"))
    cast = torch.randn(CHANNELS, generator=draw)
    held = torch.tensor([label for label in range(CLASSES) if label != client])
    labels = held[torch.randint(len(held), (size,), generator=draw)]
    noise = torch.randn(size, SIDE, SIDE, CHANNELS, generator=draw)
    images = 128 + 40 * (patterns[labels] + cast + 0.7 * noise)
    return ArrayDataset(images.clamp(0, 255).to(torch.uint8), labels)


def toy_sites(method: AnyMethod, seed: int = 0) -> tuple[Site, dict[ClientId, Site]]:
    """The server's site and the clients' sites of the toy federation, net adapted to `method`.

    For tests of a hook alone::

        server, sites = toy_sites(MyMethod())
        batch = next(sites[0].batches(RoundContext(0, 1)))
    """
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(seed, "adapt"))
        net = method.adapt(toy_net(seed), IMAGE)
    server = Site(
        id=SERVER,
        domain="",
        classes=CLASSES,
        net=net,
        pixels=NoisyPixels(),
        train=toy_data(SERVER, 0),
        training=Training(epochs=2, batch=8, lr=0.003),
        seed=seed,
        sizes=SIZES,
        public=toy_data(SERVER, 20).images,
    )
    sites = {
        client: replace(server, id=client, domain=f"domain {client}", train=toy_data(client, size))
        for client, size in SIZES.items()
    }
    return server, sites


ROUNDS = 4


class BrokenMethodError(AssertionError):
    """A method breaks the contract; the text lists every fault found and how to fix it."""


class AuditEngine(LocalEngine[S, C]):
    """Serialises every message, as a network would, and records inputs that `train` changed.

    Replies are decoded within the size that `Method.reply_schema` allows.
    """

    def __init__(self, method: Method[S, C], sites: Mapping[ClientId, Site]):
        super().__init__(method, sites)
        self.changed: set[str] = set()

    def exchange(
        self, messages: Mapping[ClientId, Message], context: RoundContext
    ) -> dict[ClientId, Message | Failure]:
        arrived: dict[ClientId, Message] = {
            c: unpack_tree(pack_tree(m)) for c, m in messages.items()
        }
        before = {
            c: (pack_tree(arrived[c]), pack_tree(self.state(c)), self.state(c)) for c in arrived
        }
        replies = require_replies(super().exchange(arrived, context))
        for client, (received, packed, state) in before.items():
            if pack_tree(arrived[client]) != received:
                self.changed.add("train() changed the message that it received")
            if pack_tree(state) != packed:
                self.changed.add("train() changed the state that it was given")
        return {c: self._arrived(c, messages[c], m, context) for c, m in replies.items()}

    def _arrived(
        self, client: ClientId, received: Message, reply: Message, context: RoundContext
    ) -> Message:
        """A reply decoded from its bytes, which must not exceed what its schema allows."""
        allowed = expected_reply(self.method, self.sites[client], client, received, context)
        return cast(Message, decode_reply(pack_tree(reply), allowed))


class DropoutEngine(LocalEngine[S, C]):
    """Loses the reply of one client in every exchange, a different one each time.

    A method must cope: its `merge` sees only the replies that arrived.
    """

    def exchange(
        self, messages: Mapping[ClientId, Message], context: RoundContext
    ) -> dict[ClientId, Message | Failure]:
        replies = dict(super().exchange(messages, context))
        lost = sorted(replies)[(context.round + context.exchange) % len(replies)]
        return {**replies, lost: Failure("was lost")}


class MethodTrial(Generic[S, C]):
    """A method on the toy federation; each check is one method that yields the faults it finds.

    The trial plays four rounds when it is made; the checks compare further runs with that one.
    """

    def __init__(self, method: Method[S, C]):
        self.method = method
        self.site, self.sites = toy_sites(method)
        self.everyone = sorted(self.sites)
        self.engine = LocalEngine(method, self.sites)
        self.sent: list[Message] = []
        self.received: list[Message] = []
        self.refused: list[str] = []
        self.server = self.play(self.engine, tell=self._listen)

    def _note(self, event: RoundEvent) -> None:
        if event.refused or event.diverged:
            self.refused.append(event.reason)

    def _listen(self, sent: Messages, received: Messages) -> None:
        self.sent += sent.values()
        self.received += received.values()

    def play(
        self,
        engine: LocalEngine[S, C],
        server: S | None = None,
        rounds: Iterable[int] = range(ROUNDS),
        who: Callable[[int], Sequence[ClientId]] | None = None,
        tell: Callable[[Messages, Messages], None] = lambda sent, received: None,
    ) -> S:
        """Run some rounds with an engine's method, from a server state or from the start."""
        method = engine.method
        now = first_server_state(method, self.site) if server is None else server
        for number in rounds:
            chosen = self.everyone if who is None else who(number)
            context = RoundContext(number, ROUNDS)
            now = run_round(method, self.site, now, engine, chosen, context, tell, self._note)
        return now

    def same(self, server: S, engine: LocalEngine[S, C]) -> bool:
        """Whether a second run ended as the first did: server and every client, bit for bit."""
        first, second = (dict(sorted(e.states.items())) for e in (self.engine, engine))
        return tree.equal(self.server, server) and tree.equal(first, second)

    def finite(self) -> Iterator[str]:
        for where, state in (("server", self.server), ("client", self.engine.states)):
            if not tree.finite(state):
                yield f"the {where} state holds NaN or infinity (a class absent at a client?)"

    def pure_train_and_wire(self) -> Iterator[str]:
        engine = AuditEngine(self.method, self.sites)
        server = self.play(engine)
        yield from sorted(engine.changed)
        if not engine.changed and not self.same(server, engine):
            yield "serialising messages changes the result: something travels outside Message"

    def pure_server(self) -> Iterator[str]:
        method, site, server, engine = self.method, self.site, self.server, self.engine_copy()
        for exchange in range(method.exchanges):
            context = RoundContext(ROUNDS, ROUNDS + 1, exchange)
            before = pack_tree(server)
            sent = method.send(site, server, self.everyone, context)
            replies = require_replies(engine.exchange(sent, context))
            packed = pack_tree(replies)
            merged = method.merge(site, server, replies, context)
            if pack_tree(server) != before:
                yield "send() or merge() changed the server state that it was given"
            if pack_tree(replies) != packed:
                yield "merge() changed the replies that it was given"
            server = merged

    def predictions(self) -> Iterator[str]:
        client, site = self.everyone[0], self.sites[self.everyone[0]]
        product, state = self.method.publish(self.server), self.engine.state(client)
        before = pack_tree(self.server), pack_tree(product), pack_tree(state)
        for x, _ in site.eval_batches(site.train):
            main = {"predict()": self.method.predict(site, product, state, x)}
            others = self.method.auxiliary_predictions(site, product, state, x)
            for name, scores in {**main, **others}.items():
                if scores.shape != (len(x), site.classes):
                    yield f"{name} gives scores {list(scores.shape)}, not [images, classes]"
                elif scores.isnan().any():
                    yield f"{name} gives NaN"
        if (pack_tree(self.server), pack_tree(product), pack_tree(state)) != before:
            yield "publish(), predict() or auxiliary_predictions() changed what it was given"

    def pure_warning(self) -> Iterator[str]:
        before = pack_tree(self.server)
        if not isinstance(cast(object, self.method.result_warning(self.server)), str):
            yield 'result_warning() must return a text, "" if there is nothing to tell'
        if pack_tree(self.server) != before:
            yield "result_warning() changed the server state that it was given"

    def engine_copy(self) -> LocalEngine[S, C]:
        """An engine in the state in which the first run ended, sharing no memory with it."""
        engine = LocalEngine(self.method, self.sites)
        engine.states = tree.clone(self.engine.states)
        return engine

    def order_of_clients(self) -> Iterator[str]:
        engine = LocalEngine(self.method, self.sites, order=lambda c: sorted(c, reverse=True))
        if not self.same(self.play(engine), engine):
            yield "the order in which clients run changes the result: draw from site.rng(...)"

    def resume(self) -> Iterator[str]:
        half = ROUNDS // 2
        first = LocalEngine(dataclasses.replace(self.method), self.sites)
        server = self.play(first, rounds=range(half))
        with tempfile.TemporaryDirectory() as folder:
            first.save(Path(folder))
            second = LocalEngine(dataclasses.replace(self.method), self.sites)
            second.load(Path(folder))
        saved: S = unpack_tree(pack_tree(server))
        if not self.same(self.play(second, saved, range(half, ROUNDS)), second):
            yield (
                "a run that was saved and loaded differs from an uninterrupted one: "
                "state must live in the server state, the client state or the message"
            )

    def partial_participation(self) -> Iterator[str]:
        def two(number: int) -> list[ClientId]:
            return sorted({number % len(self.everyone), (number + 1) % len(self.everyone)})

        trials: dict[str, Callable[[], S]] = {
            "only some clients take part": lambda: self.play(self._engine(), who=two),
            "one client takes part": lambda: self.play(self._engine(), who=lambda _: [0]),
            "a client drops out": lambda: self.play(DropoutEngine(self.method, self.sites)),
        }
        for when, trial in trials.items():
            try:
                if not tree.finite(trial()):
                    yield f"NaN or infinity when {when}"
            except Exception as fault:
                yield f"fails when {when}: {fault!r}"

    def _engine(self) -> LocalEngine[S, C]:
        return LocalEngine(self.method, self.sites)

    def client_state_moves(self) -> Iterator[str]:
        for client, site in self.sites.items():
            start, end = self.method.init_client(site), self.engine.states[client]
            if list(tree.leaves([start, end])) and tree.equal(start, end):
                yield f"client {client}'s state never moves: return the new one from train()"
                return

    def bytes_as_documented(self) -> Iterator[str]:
        payload = self.method.payload
        for name, messages, declared in (
            ("up", self.received, payload.up),
            ("down", self.sent, payload.down),
        ):
            found = {part for message in messages for part in message.parts}
            if found != set(declared):
                yield (
                    f"payload.{name} says {sorted(declared) or 'nothing'}, "
                    f"but {sorted(found) or 'nothing'} travelled"
                )

    def admitted(self) -> Iterator[str]:
        if self.refused:
            yield f"its replies are refused ({self.refused[0]}): describe them in reply_schema()"

    def own_randomness(self) -> Iterator[str]:
        before = torch.get_rng_state()
        self.play(LocalEngine(self.method, self.sites), rounds=range(1))
        if not torch.equal(before, torch.get_rng_state()):
            yield "draws from torch's global generator: use site.rng(...meaning...)"


CHECKS: tuple[Callable[[MethodTrial[Any, Any]], Iterator[str]], ...] = (
    MethodTrial.finite,
    MethodTrial.pure_train_and_wire,
    MethodTrial.pure_server,
    MethodTrial.predictions,
    MethodTrial.pure_warning,
    MethodTrial.order_of_clients,
    MethodTrial.resume,
    MethodTrial.partial_participation,
    MethodTrial.client_state_moves,
    MethodTrial.bytes_as_documented,
    MethodTrial.own_randomness,
    MethodTrial.admitted,  # last: it looks at the rounds of all others
)


def check_method(method: Method[S, C]) -> None:
    """Run a method through all checks on a toy federation.

    Raises a `BrokenMethodError` that lists every fault. The checks: hooks are pure, the order of
    clients does not matter, a run can be resumed, everything travels in `Message`, lost replies and
    absent classes do no harm, `payload` and `reply_schema` are right, and no global random numbers
    are used. It takes a few seconds; call it in a test::

        def test_my_method() -> None:
            check_method(MyMethod(mu=0.1))
    """
    if not isinstance(method, Method) or "__dataclass_fields__" not in vars(type(method)):
        raise BrokenMethodError(
            "give an instance of a Method subclass that is decorated with "
            "pydantic.dataclasses.dataclass(frozen=True)"
        )
    with torch_threads(1):
        trial = MethodTrial(method)
        faults = [fault for check in CHECKS for fault in check(trial)]
    if faults:
        lines = "\n  - ".join(faults)
        raise BrokenMethodError(f"{type(method).__name__} breaks the contract:\n  - {lines}")
