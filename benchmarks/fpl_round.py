"""What FPL costs beside FedAvg: the same round of both, interleaved, as the median of the ratios.

python benchmarks/fpl_round.py [repeats]
"""

from __future__ import annotations

import statistics
import sys
import time

from protofed.core.method import AnyMethod
from protofed.core.site import Step
from protofed.core.threads import torch_threads
from protofed.engines.local import LocalEngine
from protofed.engines.rounds import play_round
from protofed.experiment.federation import assemble
from protofed.experiment.parse import experiment_from
from protofed.methods.fedavg import FedAvg
from protofed.methods.fpl import FPL

RAW = {
    "data": "digits-mini",
    "net": "lsa-cnn",
    "partition": {"kind": "shares", "clients": 4, "samples": 128},
    "training": {"epochs": 5},
}


def main(repeats: int) -> None:
    """Two rounds to warm up (FPL has no prototypes before the second), then A-B-A-B."""
    federation = assemble(experiment_from(RAW))
    methods: dict[str, AnyMethod] = {"fedavg": FedAvg(), "fpl": FPL()}
    servers = {name: method.init_server(federation.server) for name, method in methods.items()}
    engines = {name: LocalEngine(m, federation.sites) for name, m in methods.items()}
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for number in range(2 + repeats):
        for name, method in methods.items():
            began = time.perf_counter()
            servers[name] = play_round(
                method,
                federation.server,
                servers[name],
                engines[name],
                sorted(federation.sites),
                Step(number, 2 + repeats),
            )
            if number >= 2:
                seconds[name].append(time.perf_counter() - began)
    ratios = sorted(b / a for a, b in zip(seconds["fedavg"], seconds["fpl"], strict=True))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print({name: round(value, 3) for name, value in medians.items()}, "s a round (medians)")
    print(
        f"FPL / FedAvg: {statistics.median(ratios):.3f}, the median of {repeats} pairs "
        f"from {ratios[0]:.3f} to {ratios[-1]:.3f}"
    )


if __name__ == "__main__":
    with torch_threads(1):
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 11)
