"""What a site says of itself before a run, checked field by field."""

from __future__ import annotations

import re

from protofed.core.reply_validation import FRAME
from protofed.core.serialization import unpack_tree
from protofed.engines.flower_engine import NoAnswer
from protofed.engines.site_protocol import SiteRequest, check_response
from protofed.errors import ProtofedError
from protofed.federation.remote_sites import SiteDescription
from protofed.runtime.json_files import (
    parse_json_object,
    require_fields,
    require_int,
    require_list,
    require_object,
    require_text,
)

MOST_IMAGES = 10**9
MOST_CLASSES = 10_000
MOST_CLASS_NAME, MOST_NOTE, MOST_VERSION = 200, 300, 60  # characters
MOST_VERSIONS = 10
FINGERPRINT = re.compile("[0-9a-f]{64}")


def parse_site_description(
    name: str, ask: SiteRequest, answer: bytes | NoAnswer
) -> SiteDescription:
    """Read a site's description of itself from its answer to `ask`.

    Each field is checked for its type and bounds, and all of them for whether they can be true
    together; the error names the field that is wrong.
    """
    if isinstance(answer, NoAnswer):
        raise ProtofedError(answer.reason)
    try:
        return _read(name, check_response(unpack_tree(answer, most=4 * FRAME), ask.question).text)
    except ProtofedError as fault:
        hint = f"to leave {name} out of a new run, name the others with <sites>"
        raise ProtofedError(str(fault), hint) from fault


def _read(name: str, text: str) -> SiteDescription:
    try:
        fields = parse_json_object(text)
        require_fields(fields, SiteDescription._fields)
        description = _description(fields)
        _check_plausible(name, description)
    except ProtofedError as fault:
        raise ProtofedError(f"its description is refused: {fault}") from fault
    return description


def _description(fields: dict[str, object]) -> SiteDescription:
    """A description in which every field is of its type and within its bounds."""
    classes = _texts("classes", fields["classes"], 1, MOST_CLASSES, MOST_CLASS_NAME)
    held = require_object("held", fields["held"])
    return SiteDescription(
        site=require_text("site", fields["site"], 1, MOST_CLASS_NAME),
        classes=tuple(sorted(classes)),
        train=require_int("train", fields["train"], 1, MOST_IMAGES),
        held={label: require_int("held", count, 1, MOST_IMAGES) for label, count in held.items()},
        test=require_int("test", fields["test"], 0, MOST_IMAGES),
        fingerprint=require_text("fingerprint", fields["fingerprint"], 64, 64),
        note=require_text("note", fields["note"], 0, MOST_NOTE),
        versions=_texts("versions", fields["versions"], 0, MOST_VERSIONS, MOST_VERSION),
    )


def _texts(what: str, value: object, least: int, most: int, length: int) -> tuple[str, ...]:
    entries = require_list(what, value, least, most)
    return tuple(require_text(f"an entry of {what}", entry, 1, length) for entry in entries)


def _check_plausible(name: str, description: SiteDescription) -> None:
    """Refuse what cannot be true, though each field for itself could be."""
    if description.site != name:
        raise ProtofedError(f"site must be {name}, not {description.site}")
    if len({*description.classes}) < len(description.classes):
        raise ProtofedError("classes has an entry twice")
    if not description.held.keys() <= {*description.classes}:
        raise ProtofedError("held counts a class that is not in classes")
    counted = sum(description.held.values())
    if description.held and counted != description.train:
        raise ProtofedError(f"held adds up to {counted}, but train is {description.train}")
    if not FINGERPRINT.fullmatch(description.fingerprint):
        raise ProtofedError("fingerprint must be the 64 digits of a SHA-256, 0 to 9 and a to f")
