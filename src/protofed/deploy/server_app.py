"""Flower's end at the coordinator: plays the run that `protofed submit` has written down."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from protofed.deploy.coordinate import play
from protofed.engines.post import Post

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run, from asking who is there to its last line."""
    play(Post(grid), Path(str(context.run_config["job"])))
