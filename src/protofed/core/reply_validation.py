"""Whether a reply may reach a method: the one place that checks what clients send.

What is expected comes from the method (`Method.reply_schema`, `Payload.optional`) and from what the
federation has declared; nothing here knows any method by name.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.serialization import unpack_tree
from protofed.errors import printable_text

# No net that still learns holds a larger number, and the squares of smaller ones can be summed in
# float32 without overflow.
LARGEST = 1e12
MOST_TIMES = 4  # a reply may have this many times the bytes of its template
FRAME = 1 << 16  # bytes for names, layout and metrics, whatever the size of the tensors
MOST_METRICS, MOST_NAME, MOST_REASON = 20, 60, 300


class ReplyTemplate(NamedTuple):
    """What one client's reply is compared with.

    Keys, shapes and dtypes of `template` count, values do not. A client may report fewer examples
    than it declared, but not more.
    """

    template: Message  # its keys, shapes and dtypes; values do not count
    optional: Collection[str]  # parts that may be missing
    declared_size: int  # the examples that the client has declared

    @property
    def max_bytes(self) -> int:
        """The largest number of bytes that a reply may take on the wire."""
        return MOST_TIMES * tree.nbytes(self.template) + FRAME


def decode_reply(blob: bytes, expected: ReplyTemplate) -> object:
    """Decode a reply's bytes without trusting them; more than `expected.max_bytes` are not read.

    The result may be any tree; pass it to `rejection_reason` before using it. Bytes that are no
    packed tree raise a `ProtofedError`.
    """
    return unpack_tree(blob, most=expected.max_bytes)


def rejection_reason(reply: object, expected: ReplyTemplate) -> str:
    """Why a reply must not reach the method, as one printable line; "" if it may.

    Refused are wrong types, missing or unexpected parts, other shapes or dtypes, NaN, infinity and
    huge numbers, classes that do not exist, and more examples than the client declared.
    """
    return printable_text(next(_faults(reply, expected), ""), MOST_REASON)


def _faults(reply: object, expected: ReplyTemplate) -> Iterator[str]:
    """Every fault of a reply; later checks rely on earlier ones, so use only the first."""
    if type(reply) is not Message:
        yield f"a {type(reply).__name__} is no message"
        return
    yield from _size(reply.size, expected.declared_size)
    yield from _metrics(reply.metrics)
    template, optional = expected.template, expected.optional
    yield from _compare("model", reply.model, template.model, expected)
    if not (reply.protos is None and "protos" in optional):
        yield from _compare("protos", reply.protos, template.protos, expected)
    if not isinstance(reply.extras, Mapping):
        yield f"extras: a {type(reply.extras).__name__}, not a table"
    lacking = [name for name in template.extras if name in optional and name not in reply.extras]
    wanted = {name: part for name, part in template.extras.items() if name not in lacking}
    yield from _compare("extras", reply.extras, wanted, expected)


def _size(size: object, declared: int) -> Iterator[str]:
    if type(size) is not int:
        yield f"size: a {type(size).__name__}, not a whole number"
    elif not 1 <= size <= declared:
        yield f"size: {size:d} examples, but it declared {declared}"


def _metrics(metrics: object) -> Iterator[str]:
    if not isinstance(metrics, Mapping):
        yield f"metrics: a {type(metrics).__name__}, not a table"
        return
    if len(metrics) > MOST_METRICS:
        yield f"metrics: {len(metrics)} of them, at most {MOST_METRICS} are allowed"
    for name, value in metrics.items():
        if type(name) is not str or len(name) > MOST_NAME:
            yield f"metrics: a name that is no text of at most {MOST_NAME} characters"
        elif type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            yield f"metrics.{name}: not a finite number"


def _compare(where: str, found: object, wanted: object, expected: ReplyTemplate) -> Iterator[str]:
    """The faults of a part that must look like `wanted`."""
    if isinstance(wanted, Tensor):
        yield from _tensor(where, found, wanted.dtype, tuple(wanted.shape))
    elif isinstance(wanted, Prototypes):
        yield from _table(where, found, wanted, expected.declared_size)
    elif isinstance(wanted, Model):
        if type(found) is not Model:
            yield f"{where}: {_kind(found)}, not a model"
            return
        yield from _compare(f"{where}.weights", found.weights, wanted.weights, expected)
        yield from _compare(f"{where}.buffers", found.buffers, wanted.buffers, expected)
    elif isinstance(wanted, Mapping):
        yield from _keys(where, found, wanted)
        parts = dict(found) if isinstance(found, Mapping) else {}
        for name, part in wanted.items():
            yield from _compare(f"{where}.{name}", parts[name], part, expected)
    elif found is not None:
        yield f"{where}: must not be sent"


def _keys(where: str, found: object, wanted: Mapping[str, object]) -> Iterator[str]:
    if not isinstance(found, Mapping):
        yield f"{where}: {_kind(found)}, not a table"
        return
    missing = [name for name in wanted if name not in found]
    if missing:
        yield f"{where}.{missing[0]}: is missing"
    for name in found:
        if name not in wanted:
            yield f"{where}.{printable_text(str(name), MOST_NAME)}: must not be sent"


def _tensor(
    where: str, found: object, dtype: torch.dtype, shape: tuple[int | None, ...]
) -> Iterator[str]:
    """The faults of one tensor; None in `shape` stands for any length but 0."""
    if not isinstance(found, Tensor) or found.layout != torch.strided or found.is_meta:
        yield f"{where}: {_kind(found)}, not a dense tensor"
        return
    if found.dtype != dtype:
        yield f"{where}: {_short(found.dtype)}, not {_short(dtype)}"
    same = all(f > 0 if w is None else f == w for f, w in zip(found.shape, shape, strict=False))
    if len(found.shape) != len(shape) or not same:
        wanted = ", ".join("any" if w is None else str(w) for w in shape)
        yield f"{where}: shape {list(found.shape)}, not [{wanted}]"
    if found.numel():
        low, high = (float(edge) for edge in found.detach().aminmax())
        if not -torch.inf < low <= high < torch.inf:
            yield f"{where}: holds NaN or infinity"
        if max(-low, high) > LARGEST:
            yield f"{where}: holds a number beyond {LARGEST:g}"


def _table(where: str, found: object, wanted: Prototypes, declared: int) -> Iterator[str]:
    """The faults of prototypes: no more rows per class than `wanted`, counts as declared."""
    if type(found) is not Prototypes:
        yield f"{where}: {_kind(found)}, not prototypes"
        return
    rows = len(found.labels) if isinstance(found.labels, Tensor) and found.labels.dim() else None
    yield from _tensor(f"{where}.labels", found.labels, torch.int64, (None,))
    yield from _tensor(f"{where}.counts", found.counts, torch.int64, (rows,))
    width = wanted.vectors.shape[1]
    yield from _tensor(f"{where}.vectors", found.vectors, wanted.vectors.dtype, (rows, width))
    most = torch.bincount(wanted.labels)
    if not 0 <= int(found.labels.min()) <= int(found.labels.max()) < len(most):
        yield f"{where}.labels: a class outside 0..{len(most) - 1}"
    over = torch.bincount(found.labels, minlength=len(most)) > most
    if over.any():
        label = int(over.int().argmax())
        yield f"{where}.labels: more than {int(most[label])} rows of class {label}"
    if int(found.counts.min()) < 1:
        yield f"{where}.counts: a row of {int(found.counts.min())} examples"
    each = int(most.max())  # rows of one class may share examples, each row may hold all
    if int(found.counts.max()) > declared or int(found.counts.sum()) > declared * each:
        yield f"{where}.counts: more examples than the {declared} that it declared"


def _kind(found: object) -> str:
    return "nothing" if found is None else f"a {type(found).__name__}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
