"""Everything that a method's author imports, in one line.

Example::

    from protofed.api import Field, Message, Method, MethodInfo, Model, ServerState, Site, dataclass

`dataclass` and `Field` are pydantic's. Each field of a method is a hyperparameter: pydantic checks
its range, and ``protofed methods show`` prints its description and default.
"""

from __future__ import annotations

from pydantic import Field
from pydantic.dataclasses import dataclass

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import (
    Ablations,
    Method,
    MethodInfo,
    Payload,
    ServerState,
    TunedFields,
    average_models,
    reply_from_fit,
)
from protofed.core.model import (
    ArrayShape,
    ImageShape,
    InputShape,
    Model,
    Net,
    NetOutput,
    model_from_net,
    net_from_module,
)
from protofed.core.prototypes import (
    Prototypes,
    class_means,
    prototype_template,
    stack_prototypes,
)
from protofed.core.site import ArrayDataset, ClientId, RoundContext, Site, TrainingBatch
from protofed.core.training import SGD, FitResult, Training, fit_model
from protofed.errors import ProtofedError
from protofed.testing import check_method

__all__ = [
    "SGD",
    "Ablations",
    "ArrayDataset",
    "ArrayShape",
    "ClientId",
    "Field",
    "FitResult",
    "ImageShape",
    "InputShape",
    "Message",
    "Method",
    "MethodInfo",
    "Model",
    "Net",
    "NetOutput",
    "Payload",
    "ProtofedError",
    "Prototypes",
    "RoundContext",
    "ServerState",
    "Site",
    "Training",
    "TrainingBatch",
    "TunedFields",
    "average_models",
    "check_method",
    "class_means",
    "dataclass",
    "fit_model",
    "model_from_net",
    "net_from_module",
    "prototype_template",
    "reply_from_fit",
    "stack_prototypes",
    "tree",
]
