"""The contract: a method is federated averaging, and its file says only what its paper changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeAlias, cast

import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor
from typing_extensions import TypeVar

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import ImageShape, Model, Net, NetOutput
from protofed.core.prototypes import Prototypes, prototype_template
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.core.training import STRICT, FitResult, Training, fit_model


@tree.node
class ServerState:
    """What the server keeps between rounds: the global model and, if shared, prototypes.

    A method that needs more derives its own node::

        @tree.node
        class AnchorServer(ServerState):
            anchors: Tensor  # [C, D]
    """

    model: Model
    protos: Prototypes | None = field(default=None, kw_only=True)  # none before the first round


class Payload(NamedTuple):
    """What crosses the wire: parts are called "model", "protos", or by the name of an extra.

    Sites check their policy against it, the model card prints it, and `check_method` compares it
    with what really travels. The shapes of these parts are in `Method.reply_schema`.
    """

    up: tuple[str, ...] = ("model",)  # from a client
    down: tuple[str, ...] = ("model",)  # to a client
    optional: tuple[str, ...] = ()  # parts of `up` that a reply may lack
    counts: bool = False  # whether the counts behind prototypes change the result


# What a method may ask of a federation. Equal features: nets may differ, the width of z not.
Need: TypeAlias = Literal["equal nets", "equal features", "public images"]


# By name: the fields that make a method one of its paper's ablations.
Ablations: TypeAlias = Mapping[str, Mapping[str, Any]]


class MethodInfo(NamedTuple):
    """Where a method comes from."""

    label: str  # as tables print it
    title: str
    venue: str = ""
    year: int | None = None
    link: str = ""
    family: str = "baseline"  # or "prototype", "drift", "aggregation", ...
    caveat: str = ""  # what a reader must know of the implementation, e.g. a reconstruction


S = TypeVar("S", bound=ServerState, default=ServerState)  # server state
C = TypeVar("C", default=None)  # client state: private, kept by the engine


@dataclass(frozen=True, config={**STRICT, "strict": True})
class Method(Generic[S, C]):
    """Federated averaging, as pure functions over explicit state; fields are hyperparameters.

    Hooks take state and return state: none changes its inputs or sets anything on `self`.
    """

    info: ClassVar[MethodInfo]
    ablations: ClassVar[Ablations] = {}  # what its paper takes away

    @property
    def exchanges(self) -> int:
        """How many exchanges make a round."""
        return 1

    @property
    def personal(self) -> bool:
        """Whether each client is scored with a model of its own."""
        return False

    @property
    def payload(self) -> Payload:
        """What it puts on the wire; `check_method` compares this with what really travels."""
        return Payload()

    @property
    def needs(self) -> tuple[Need, ...]:
        """What it cannot do without; a run that lacks it is refused before it starts."""
        return ("equal nets",)

    def epochs_per_round(self, training: Training) -> int:
        """How many epochs a client trains in one round, all legs together."""
        return training.epochs

    def warning(self, net: Net) -> str:
        """What a reader of the scores must know about this method on this net, or nothing."""
        return ""

    def adapt(self, net: Net, image: ImageShape) -> Net:
        """Add to the user's net what the paper adds."""
        return net

    def init_server(self, site: Site) -> S:
        """The server's state before the first round."""
        return cast(S, ServerState(site.initial_model()))

    def init_client(self, site: Site) -> C:
        """A client's private state before its first round; it never leaves the client."""
        return cast(C, None)

    def publish(self, server: S) -> Message:
        """The product: what is broadcast, and what is scored."""
        return Message(model=server.model, protos=server.protos)

    def send(
        self, site: Site, server: S, to: Sequence[ClientId], context: RoundContext
    ) -> dict[ClientId, Message]:
        """One message for each chosen client; `site` is the server's."""
        return dict.fromkeys(to, self.publish(server))

    def loss(
        self, site: Site, received: Message, state: C, model: Model, batch: TrainingBatch
    ) -> Tensor:
        """What a client minimises on one batch; may move `model`'s buffers, nothing else."""
        return F.cross_entropy(site.forward_train(model, batch.x).logits, batch.y)

    def local_fit(
        self,
        site: Site,
        received: Message,
        state: C,
        context: RoundContext,
        *,
        start: Model | None = None,
        on_gradients: Callable[[Model], None] | None = None,
        on_batch: Callable[[TrainingBatch], None] | None = None,
    ) -> FitResult[Model]:
        """Minimise `loss` on the client's images: the trained model, the steps, the mean loss.

        Training starts from the received model, or from `start`. `on_gradients` may change the
        gradients of the model before each step, for example to clip them; `on_batch` sees each
        batch before its loss is computed.
        """

        def loss(model: Model, batch: TrainingBatch) -> Tensor:
            if on_batch is not None:
                on_batch(batch)
            return self.loss(site, received, state, model, batch)

        begin = received.model if start is None else start
        return fit_model(begin, site.batches(context), loss, site.training, on_gradients)

    def train(
        self, site: Site, received: Message, state: C, context: RoundContext
    ) -> tuple[Message, C]:
        """A client's work in one exchange: its reply and its new private state.

        Most methods call `local_fit`, turn its result into a reply with `reply_from_fit`, and add
        what their paper sends beside the model.
        """
        return reply_from_fit(site, self.local_fit(site, received, state, context)), state

    def reply_schema(self, site: Site, received: Message, context: RoundContext) -> Message:
        """What a reply to `received` looks like: other keys, shapes or types are refused.

        Values do not count. Of prototypes, as many rows a class as here may come; see
        `prototype_template`.
        """
        up = self.payload.up
        model = (
            (received.model if received.model.weights else site.initial_model())
            if "model" in up
            else Model()
        )
        protos = prototype_template(site.classes, site.net.features) if "protos" in up else None
        extras = {name: part for name, part in received.extras.items() if name in up}
        return Message(model=model, protos=protos, extras=extras)

    def merge(
        self, site: Site, server: S, replies: Mapping[ClientId, Message], context: RoundContext
    ) -> S:
        """The server's new state from the replies that arrived, in the order of client ids."""
        return replace(server, model=average_models(replies))

    def inference_model(self, site: Site, received: Message, state: C) -> Model:
        """The whole model that predicts: what is scored, exported and looked into.

        A personal method puts it together from what the server sent and what the client keeps,
        as in ``received.model | state``.
        """
        return received.model

    def inference_inputs(self, site: Site) -> tuple[Tensor, ...]:
        """What the net gets beside the images when it predicts, the same for all images."""
        return ()

    def class_scores(self, out: NetOutput) -> Tensor:
        """Class scores [B, C] from what the net gave; the largest is the prediction."""
        return out.logits

    def predict(self, site: Site, received: Message, state: C, x: Tensor) -> Tensor:
        """Class scores [B, C]; at the server, or at a client with its state if `personal`.

        Override the three hooks above instead: a model is exported through them.
        """
        model = self.inference_model(site, received, state)
        more = (part.to(x.device) for part in self.inference_inputs(site))
        return self.class_scores(site.forward_eval(model, x, *more))

    def auxiliary_predictions(
        self, site: Site, received: Message, state: C, x: Tensor
    ) -> dict[str, Tensor]:
        """Other ways to predict that are scored beside `predict`, by name: scores [B, C] each."""
        return {}


AnyMethod: TypeAlias = Method[Any, Any]  # for code that holds methods but never opens their states


def reply_from_fit(site: Site, fitted: FitResult[Model]) -> Message:
    """A client's reply after local training: its model, its examples and its mean loss."""
    return Message(fitted.trained, size=len(site.train), metrics={"loss": fitted.loss})


def average_models(replies: Mapping[ClientId, Message]) -> Model:
    """The mean of the replies' models, weighted by the examples behind each; buffers too."""
    return tree.mean((r.model for r in replies.values()), [r.size for r in replies.values()])
