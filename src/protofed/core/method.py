"""The contract of a method: federated averaging, of which a paper's file overrides a few hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, ClassVar, Generic, Literal, NamedTuple, TypeAlias, cast

from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo
from torch import Tensor
from typing_extensions import TypeVar

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import InputShape, Model, Net, NetOutput
from protofed.core.prototypes import Prototypes, prototype_template
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.core.training import STRICT, FitResult, Training, fit_model


@tree.node
class ServerState:
    """What the server keeps between rounds: the global model and, if any, global prototypes.

    A method that needs more derives its own node::

        @tree.node
        class AnchorServer(ServerState):
            anchors: Tensor  # [C, D]
    """

    model: Model
    protos: Prototypes | None = field(default=None, kw_only=True)  # none before the first round


class Payload(NamedTuple):
    """The names of what travels: "model", "protos", or the name of an extra.

    Sites check their policy against it, the model card prints it, and `check_method` compares it
    with what really travels. The shapes of these parts are in `Method.reply_schema`. SCAFFOLD,
    which sends a control variate beside the model in both directions, declares::

        Payload(up=("model", "variate"), down=("model", "variate"))
    """

    up: tuple[str, ...] = ("model",)  # from a client
    down: tuple[str, ...] = ("model",)  # to a client
    optional: tuple[str, ...] = ()  # parts of `up` that a reply may lack
    counts: bool = False  # whether the counts behind prototypes change the result


# What a method may require. "equal features": nets may differ, but not the width of z. "sgd": a
# client's move must be a sum of its gradients times the learning rate, as with no other optimiser.
Need: TypeAlias = Literal["equal nets", "equal features", "public images", "sgd"]


# The fields that turn a method into one of its paper's ablations, by the ablation's name.
Ablations: TypeAlias = Mapping[str, Mapping[str, Any]]


# The fields that `protofed tune` searches beside the learning rate, with their ranges or choices.
TunedFields: TypeAlias = Mapping[str, str]


# What data may be like, where some method was made for it.
Condition: TypeAlias = Literal["domain shift", "unequal sizes"]


class MethodInfo(NamedTuple):
    """The paper behind a method, as tables, reports and model cards print it.

    `caveat` marks an implementation that differs from the paper, for example a reconstruction from
    an abstract; it is shown beside the method's scores.
    """

    label: str  # the name in tables
    title: str
    venue: str = ""
    year: int | None = None
    link: str = ""
    family: str = "baseline"  # or "prototype", "drift", "aggregation", ...
    caveat: str = ""  # how the implementation differs, e.g. a reconstruction
    suits: tuple[Condition, ...] = ()  # of data for which `data doctor` names it


FIELDS = "Fields:"  # the heading above them in a docstring
S = TypeVar("S", bound=ServerState, default=ServerState)  # server state
C = TypeVar("C", default=None)  # client state: private, kept by the engine


@dataclass(frozen=True, config={**STRICT, "strict": True})
class Method(Generic[S, C]):
    """Federated averaging as pure functions over explicit state; a subclass overrides what differs.

    Fields are hyperparameters. Hooks take state and return new state: no hook changes its inputs or
    sets anything on `self`. `S` is the type of the server's state, `C` of a client's private state.
    Each exchange of a round calls::

        send (server) -> train (each client; calls local_fit, which calls loss) -> merge (server)

    A paper that adds a loss term overrides `loss` alone; `protofed.methods.fedprox` is an example.
    `check_method` tests whether a subclass keeps the contract.
    """

    info: ClassVar[MethodInfo]
    ablations: ClassVar[Ablations] = {}  # those of its paper
    tuned: ClassVar[TunedFields] = {}  # the one or two fields that matter most

    def __init_subclass__(cls) -> None:
        """Let `help` show what the fields of a method mean: append it to the docstring."""
        super().__init_subclass__()
        fields = [(n, f.description) for n, f in vars(cls).items() if isinstance(f, FieldInfo)]
        lines = [f"    {name}: {meaning}" for name, meaning in fields if meaning]
        if lines:
            cls.__doc__ = "\n".join([(cls.__doc__ or "").rstrip(), "", f"    {FIELDS}", *lines])

    @property
    def exchanges(self) -> int:
        """How many times per round messages go to the clients and replies come back."""
        return 1

    @property
    def personal(self) -> bool:
        """Whether each client is scored with a model of its own rather than the published one."""
        return False

    @property
    def payload(self) -> Payload:
        """Which parts travel up and down; `check_method` compares this with what really travels."""
        return Payload()

    @property
    def needs(self) -> tuple[Need, ...]:
        """What the method requires of a federation; a run without it is refused at the start."""
        return ("equal nets",)

    def epochs_per_round(self, training: Training) -> int:
        """How many epochs a client trains in one round, over all exchanges."""
        return training.epochs

    def warning(self, net: Net) -> str:
        """What a reader of the scores must know about this method on this net; "" if nothing.

        The run prints it and the model card keeps it, for example that a net without batch norm
        turns FedBN into FedAvg.
        """
        return ""

    def result_warning(self, server: S) -> str:
        """What a reader of the scores must know about the server's last state; "" if nothing.

        For a method that became a simpler one without an error, as FPL with one cluster per class.
        The default tells of prototypes that are missing, or the same for all classes.
        """
        protos = server.protos
        if "protos" not in self.payload.down:
            return ""
        if protos is None or not len(protos):
            return f"{self.info.label} ended without prototypes"
        same = len(protos.labels.unique()) > 1 and bool((protos.vectors == protos.vectors[0]).all())
        return f"{self.info.label} ended with the same prototype for all classes" if same else ""

    def adapt(self, net: Net, image: InputShape) -> Net:
        """The user's net with what the paper adds, such as another neck or a second head.

        `image` is the shape of one input: an `ImageShape`, or an `ArrayShape` for data that are no
        images. New layers may use torch's global generator: it is seeded for this call and restored
        afterwards.
        """
        return net

    def init_server(self, site: Site) -> S:
        """The server's state before the first round; `site` is the server's."""
        return cast(S, ServerState(site.initial_model()))

    def init_client(self, site: Site) -> C:
        """A client's private state before its first round; it never leaves the client.

        It must be a tree: a node, dict or list of tensors, a number, text or None. The engine keeps
        it between rounds and saves it in checkpoints.
        """
        return cast(C, None)

    def publish(self, server: S) -> Message:
        """The result of training so far: what `send` broadcasts by default, and what is scored."""
        return Message(model=server.model, protos=server.protos)

    def send(
        self, site: Site, server: S, to: Sequence[ClientId], context: RoundContext
    ) -> dict[ClientId, Message]:
        """One message for each client in `to`; `site` is the server's.

        `context.exchange` counts the exchanges of a round from 0. The default sends
        `publish(server)` to every client.
        """
        return dict.fromkeys(to, self.publish(server))

    def loss(
        self, site: Site, received: Message, state: C, model: Model, batch: TrainingBatch
    ) -> Tensor:
        """The loss of one batch: a scalar that `local_fit` differentiates.

        `model` is the copy being trained. `received.model` is what came from the server; it and
        `state`, the client's private state, stay constant. Use `site.forward_train` for `model`
        alone and `site.forward_eval` for every other model. Only the buffers of `model` may change.
        FedProx::

            task = super().loss(site, received, state, model, batch)
            return task + self.mu * proximal_term(model, received.model)
        """
        return site.task_loss(site.forward_train(model, batch.x).logits, batch.y)

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
        """Train on `loss` over the client's images: the model, the steps, the mean loss.

        Training starts from the received model, or from `start`. A method that keeps part of the
        model at the client passes ``start=received.model | state``. `on_gradients` may change the
        model's gradients before each step, and before the run's own clipping; `on_batch` sees each
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
        what their paper sends beside the model::

            fitted = self.local_fit(site, received, state, context)
            return replace(reply_from_fit(site, fitted), extras={"gap": gap}), state
        """
        return reply_from_fit(site, self.local_fit(site, received, state, context)), state

    def reply_schema(self, site: Site, received: Message, context: RoundContext) -> Message:
        """A message shaped like a valid reply to `received`; a reply that differs is refused.

        Keys, shapes and dtypes count, values do not. For prototypes it gives the most rows per
        class (see `prototype_template`). The default derives it from `payload` and `received`, so a
        method overrides it only if a reply holds something that was not received::

            gap = torch.zeros((), dtype=torch.float64)
            return replace(super().reply_schema(site, received, context), extras={"gap": gap})
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
        """The server's new state from the replies that arrived, in the order of client ids.

        Replies may be missing: never index by a client that is not in `replies`. They may also lie
        on disk, so read each one once. The default averages the models by number of examples.
        """
        return replace(server, model=average_models(replies))

    def inference_model(self, site: Site, received: Message, state: C) -> Model:
        """The whole model that predicts: it is scored, exported and explained.

        A personal method combines what the server sent with what the client keeps, as in
        ``received.model | state``.
        """
        return received.model

    def inference_inputs(self, site: Site) -> tuple[Tensor, ...]:
        """Inputs that the net takes after the images when it predicts; the same for all images."""
        return ()

    def class_scores(self, out: NetOutput) -> Tensor:
        """Class scores [B, C] from the net's output; the largest is the prediction."""
        return out.logits

    def predict(self, site: Site, received: Message, state: C, x: Tensor) -> Tensor:
        """Class scores [B, C] of images x.

        Runs at the server, or, if the method is `personal`, at a client with its private state.
        Override the three hooks above instead: an exported model is built from them.
        """
        model = self.inference_model(site, received, state)
        more = (part.to(x.device) for part in self.inference_inputs(site))
        return self.class_scores(site.forward_eval(model, x, *more))

    def auxiliary_predictions(
        self, site: Site, received: Message, state: C, x: Tensor
    ) -> dict[str, Tensor]:
        """Other predictions that are scored beside `predict`, by name: class scores [B, C] each."""
        return {}


AnyMethod: TypeAlias = Method[Any, Any]  # for code that does not look into their states


def reply_from_fit(site: Site, fitted: FitResult[Model]) -> Message:
    """A client's reply after local training: its model, number of examples and mean loss.

    Use `dataclasses.replace` to add prototypes or extras, or to leave out part of the model.
    """
    return Message(fitted.trained, size=len(site.train), metrics={"loss": fitted.loss})


def average_models(replies: Mapping[ClientId, Message]) -> Model:
    """The mean of the replies' models, weighted by the examples behind each; buffers included.

    mean = sum_n size_n * model_n / sum_n size_n, over the replies that arrived.
    """
    return tree.mean((r.model for r in replies.values()), [r.size for r in replies.values()])
