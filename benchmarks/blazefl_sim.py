"""A peer: BlazeFL, whose server averages and whose pools of processes or threads run the clients.

Two at a time, one torch thread each; the training is the plain loop's. BLAZEFL_PYTHON may name the
interpreter of an environment that has both protofed and BlazeFL: BlazeFL 2 needs Python 3.12,
BlazeFL 3 needs 3.14, and its threads are meant for a Python without a global lock.
"""

from __future__ import annotations

import copy
import multiprocessing
import platform
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.plain_loop import Images, Trained, distance, summed, train
from benchmarks.serve import LeftOutError, Order, Tell
from benchmarks.workloads import Workload, make_images, make_net

PARALLEL = 2


@dataclass
class Reply:
    """What a client sends; BlazeFL's server reads all but `done`."""

    cid: int
    model_parameters: Any  # a vector of floats; on its way between processes a placeholder for it
    data_size: int
    done: dict[str, Any]  # a Trained; BlazeFL cannot rebuild a named tuple


@dataclass
class Job:
    """What it takes to train a client."""

    work: Workload
    client: int
    images: Images


def fit(net: nn.Module, received: Tensor, job: Job) -> Reply:
    """A client: load the weights, train, reply."""
    core = import_module("blazefl.core")
    core.deserialize_model(net, received)
    done = train(net, job.images, job.work)
    return Reply(job.client, core.serialize_model(net), len(job.images), done._asdict())


def fit_in_process(job: Job, payload: Any, device: str, stop: Any, *, shm_buffer: Reply) -> Reply:
    """A client in a process of the pool; its weights go back through shared memory."""
    torch.set_num_threads(1)
    reply = fit(make_net(job.work), payload.model_parameters, job)
    shm_buffer.model_parameters.copy_(reply.model_parameters)
    reply.model_parameters = import_module("blazefl.core").SHMHandle()
    return reply


def process_pool(net: nn.Module, jobs: list[Job]) -> Any:
    """Clients in processes, which BlazeFL starts anew in each round: by forks, the fastest way."""
    multiprocessing.set_start_method("fork", force=True)
    import_module("torch._dynamo")  # or each new process imports it at its first optimiser: 1 s
    core = import_module("blazefl.core")
    base: Any = core.ProcessPoolClientTrainer

    class Processes(base):  # type: ignore[misc]
        worker = staticmethod(fit_in_process)
        ipc_mode = "SHARED_MEMORY"  # the faster one of BlazeFL 2, the only one of BlazeFL 3

        def __init__(self) -> None:
            self.num_parallels, self.device, self.device_count = PARALLEL, "cpu", 0
            self.cache: list[Reply] = []
            self.manager = multiprocessing.Manager()
            self.stop_event = self.manager.Event()

        def get_client_config(self, cid: int) -> Job:
            return jobs[cid]

        def prepare_uplink_package_buffer(self) -> Reply:
            return Reply(-1, core.serialize_model(net), 0, Trained(0, 0, 0.0)._asdict())

        def convert_buffer_to_uplink(self, buffer: Reply) -> Reply:
            return buffer

    return Processes()


def thread_pool(net: nn.Module, jobs: list[Job]) -> Any:
    """Clients in threads of this process."""
    base: Any = import_module("blazefl.core").ThreadPoolClientTrainer

    class Threads(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.num_parallels, self.device, self.device_count = PARALLEL, "cpu", 0
            self.cache: list[Reply] = []
            self.stop_event = threading.Event()

        def worker(self, cid: int, device: str, payload: Any, stop_event: Any) -> Reply:
            # a copy, because building a net seeds the generator that all threads share
            return fit(copy.deepcopy(net), payload.model_parameters, jobs[cid])

    return Threads()


POOLS = {"blazefl-processes": process_pool, "blazefl-threads": thread_pool}


def make_handler(net: nn.Module, work: Workload) -> Any:
    """BlazeFL's own server of FedAvg; the caller says who takes part, as in all systems here."""

    class Selector:
        def select_model(self, model_name: str) -> nn.Module:
            return net

    return import_module("blazefl.contrib.fedavg").FedAvgBaseServerHandler(
        model_selector=Selector(),
        model_name=work.net,
        dataset=None,
        global_round=1_000_000,
        num_clients=work.participants,
        sample_ratio=1.0,
        device="cpu",
        batch_size=work.batch,
        seed=0,
    )


def about() -> str:
    """The versions at work here, which need not be those of the asking side."""
    free = sys.version_info >= (3, 13) and not sys._is_gil_enabled()
    kind = "free-threaded" if free else "with a global lock"
    return f"blazefl {version('blazefl')}, Python {platform.python_version()} {kind}"


def serve(order: Order, rounds: Iterator[int], tell: Tell) -> None:
    """Play the rounds that are asked for with BlazeFL's server and pools."""
    missing = [name for name in ("blazefl", "tqdm", "numpy") if find_spec(name) is None]
    if missing:
        raise LeftOutError(
            f"{' and '.join(missing)} not installed in Python {platform.python_version()}; BlazeFL "
            "needs 3.12 or newer: let BLAZEFL_PYTHON name one that has it and protofed"
        )
    torch.set_num_threads(1)
    work = order.work
    jobs = [Job(work, i, Images(*make_images(work, i))) for i in range(len(work.sizes))]
    net = make_net(work)
    handler, pool = make_handler(net, work), POOLS[order.system](net, jobs)
    for number in rounds:
        before, began = copy.deepcopy(net.state_dict()), time.perf_counter()
        pool.local_process(handler.downlink_package(), work.chosen(number))
        replies, pool.cache = pool.cache, []
        for reply in replies:
            handler.load(reply)
        seconds = time.perf_counter() - began
        done = [Trained(**reply.done) for reply in replies]
        tell(summed(done, seconds, distance(net, before), about()))
