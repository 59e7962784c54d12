"""Flower's end at a site: a new process for every message, so that it only hands bytes on."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from protofed.deploy.hatch import ask
from protofed.engines.letters import as_bytes, as_record

PATIENCE = 120.0  # seconds for a worker that is being started again

app = ClientApp()


@app.query()
def answer(message: Message, context: Context) -> Message:
    """What the site's worker says to a message."""
    place = Path(str(context.node_config["worker"]))
    return Message(as_record(ask(place, as_bytes(message.content), PATIENCE)), reply_to=message)
