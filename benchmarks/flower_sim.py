"""The second peer: Flower's simulation, two ray actors of one core each, as its tutorial has it.

A client builds its net for every message, as in the tutorial, but its images only once in each
actor. The training is the plain loop's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any

from benchmarks.plain_loop import Images, distance, train
from benchmarks.serve import LeftOutError, Order, Round, Tell
from benchmarks.workloads import Workload, make_images, make_net

ACTORS = 2
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_NUM_THREADS": "1",
}


@cache
def images(work: Workload, client: int) -> Images:
    """A client's images, made once in each actor."""
    return Images(*make_images(work, client))


def client_app(work: Workload) -> Any:
    """A client: load the weights, train, reply."""
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    def fit(message: Message, context: Context) -> Message:
        net = make_net(work)
        arrays: Any = message.content["arrays"]
        net.load_state_dict(arrays.to_torch_state_dict())
        data = images(work, int(context.node_config["partition-id"]))
        done = train(net, data, work)
        metrics = MetricRecord({"num-examples": len(data), **done._asdict()})
        reply = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
        return Message(content=reply, reply_to=message)

    app = ClientApp()
    app.train()(fit)
    return app


def sums(replies: list[Any], weighted_by: str) -> Any:
    """The steps and samples of all clients together, and the mean loss of a step."""
    from flwr.app import MetricRecord

    found = [reply["metrics"] for reply in replies]
    steps = sum(m["steps"] for m in found)
    loss = sum(m["loss"] * m["steps"] for m in found) / steps
    return MetricRecord({"steps": steps, "samples": sum(m["samples"] for m in found), "loss": loss})


def server_app(work: Workload, rounds: Iterator[int], tell: Tell) -> Any:
    """The server: one round of Flower's FedAvg for each that is asked for."""
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg

    def main(grid: Grid, context: Context) -> None:
        model = make_net(work)
        strategy = FedAvg(
            fraction_train=work.participants / len(work.sizes),
            fraction_evaluate=0.0,
            min_train_nodes=work.participants,
            min_available_nodes=len(work.sizes),
            train_metrics_aggr_fn=sums,
        )
        for _ in rounds:
            began = time.perf_counter()
            result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=1)
            state = result.arrays.to_torch_state_dict()
            seconds = time.perf_counter() - began
            moved = distance(model, state)
            model.load_state_dict(state)
            done: Any = result.train_metrics_clientapp[1]
            tell(Round(seconds, done["steps"], done["samples"], done["loss"], moved))

    app = ServerApp()
    app.main()(main)
    return app


def serve(order: Order, rounds: Iterator[int], tell: Tell) -> None:
    """Play the rounds that are asked for, inside Flower's own loop."""
    missing = [name for name in ("flwr", "ray") if find_spec(name) is None]
    if missing:
        raise LeftOutError(f"{' and '.join(missing)} not installed: pip install 'protofed[bench]'")
    os.environ.update(SETTINGS)
    from flwr.simulation import run_simulation

    work = order.work
    run_simulation(
        server_app(work, rounds, tell),
        client_app(work),
        num_supernodes=len(work.sizes),
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": ACTORS, "logging_level": "warning"},
        },
    )
