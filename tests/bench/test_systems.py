"""The harness on tiny work: real processes, equal work, weights that move."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from benchmarks.measure import check, interleave
from benchmarks.ours import make_sites
from benchmarks.plain_loop import Images, average
from benchmarks.serve import Order, Round
from benchmarks.workloads import MEAN, PAD, SIDE, STD, WORKLOADS, Workload, make_images

TINY = Workload("tiny", "lsa-cnn", (24, 40), epochs=2, batch=16)


def orders(*systems: str) -> dict[str, Order]:
    return {system: Order(system, TINY, workers=0) for system in systems}


@pytest.mark.long
def test_ours_and_the_plain_loop_do_the_same_work() -> None:
    found = interleave(orders("ours", "plain"), repeats=2)
    ours, plain = found["systems"]["ours"], found["systems"]["plain"]
    assert (ours["steps"], ours["samples"]) == (plain["steps"], plain["samples"]) == (10, 128)
    assert len(ours["seconds"]) == len(plain["seconds"]) == 2
    assert len(ours["loss"]) == 4  # one that warmed up, two timed, one weighed
    assert found["ratios"].keys() == {"plain"}
    assert ours["process_mb"] > 100
    assert plain["tree_mb"] > 100


@pytest.mark.long
def test_fpl_is_measured_too() -> None:
    work = replace(TINY, epochs=1)
    both = {m: Order("ours", work, method=m, workers=0) for m in ("fedavg", "fpl")}
    found = interleave(both, repeats=1)
    assert found["systems"]["fpl"]["steps"] == found["systems"]["fedavg"]["steps"] == 5
    assert found["ratios"]["fpl"] > 0


def test_flower_does_the_same_work() -> None:
    if find_spec("flwr") is None or find_spec("ray") is None:
        pytest.skip("needs Flower's simulation: pip install 'protofed[bench]'")
    found = interleave(orders("flower"), repeats=1)
    assert found["systems"]["flower"]["steps"] == 10


def blazefl_is_there() -> bool:
    return "BLAZEFL_PYTHON" in os.environ or find_spec("blazefl") is not None


def test_blazefl_does_the_same_work() -> None:
    if not blazefl_is_there():
        pytest.skip("needs BlazeFL, or BLAZEFL_PYTHON with the interpreter of one")
    found = interleave(orders("blazefl-processes", "blazefl-threads"), repeats=1)
    assert found["systems"].keys() == {"blazefl-processes", "blazefl-threads"}
    for record in found["systems"].values():
        assert (record["steps"], record["samples"]) == (10, 128)
        assert record["about"].startswith("blazefl ")


def test_blazefl_is_left_out_with_the_reason() -> None:
    if blazefl_is_there():
        pytest.skip("BlazeFL is there")
    found = interleave(orders("blazefl-threads"), repeats=1)
    assert "needs 3.12 or newer" in found["skipped"]["blazefl-threads"]


def test_pfllib_does_the_same_work() -> None:
    if "PFLLIB_DIR" not in os.environ or find_spec("h5py") is None:
        pytest.skip("needs h5py, and PFLLIB_DIR with a checkout of PFLlib")
    record = interleave(orders("pfllib"), repeats=1)["systems"]["pfllib"]
    assert (record["steps"], record["samples"]) == (10, 128)  # with the last, short batches


@pytest.mark.parametrize("folder", [None, "nothing here"])
def test_pfllib_is_left_out_with_the_reason(
    folder: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PFLLIB_DIR", raising=False)
    if folder:
        monkeypatch.setenv("PFLLIB_DIR", str(tmp_path / folder))
    why = interleave(orders("pfllib"), repeats=1)["skipped"]["pfllib"]
    assert ("is no checkout" if folder else "is not set") in why


@pytest.mark.long
def test_pfllibs_loop_is_the_one_that_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop of the same shape in its place: our hooks feed it, count it and end it."""
    for path, text in LOOP.items():
        file = tmp_path / "system" / "flcore" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setenv("PFLLIB_DIR", str(tmp_path))
    record = interleave(orders("pfllib"), repeats=1)["systems"]["pfllib"]
    assert (record["steps"], record["samples"]) == (10, 128)


LOOP = {
    "servers/serverbase.py": "",
    "clients/clientbase.py": "",
    "servers/serveravg.py": """
import copy
class FedAvg:
    def __init__(self, args, times):
        self.args, self.global_model = args, copy.deepcopy(args.model)
        self.set_clients(None)
    def train(self):
        while True:
            self.selected_clients = self.select_clients()
            for client in self.selected_clients:
                client.model = copy.deepcopy(self.global_model)
                client.train()
            self.evaluate()
            self.aggregate_parameters()
    def aggregate_parameters(self):
        self.global_model = self.selected_clients[-1].model
""",
    "clients/clientavg.py": """
class clientAVG:
    def __init__(self, args, id, train_samples, test_samples, train_slow, send_slow):
        self.batch_size, self.local_epochs, self.train_samples = (
            args.batch_size, args.local_epochs, train_samples)
    def train(self):
        loader = self.load_train_data()
        for epoch in range(self.local_epochs):
            for x, y in loader:
                self.optimizer.zero_grad()
                self.loss(self.model(x), y).backward()
                self.optimizer.step()
""",
}


def test_ours_takes_a_precision() -> None:
    order = replace(orders("ours")["ours"], precision="bfloat16")
    found = interleave({"bfloat16": order}, repeats=1)
    assert found["systems"]["bfloat16"]["steps"] == 10
    server, sites = make_sites(TINY, "bfloat16")
    assert {site.net.precision for site in (server, *sites.values())} == {"bfloat16"}


def test_a_system_that_is_not_there_is_left_out_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    if find_spec("flwr") is not None and find_spec("ray") is not None:
        pytest.skip("Flower's simulation is installed")
    found = interleave(orders("flower"), repeats=1)
    assert found["systems"] == {}
    assert "not installed" in found["skipped"]["flower"]
    assert "left out" in capsys.readouterr().out


def test_a_system_that_fails_is_shown_with_its_last_words() -> None:
    broken = Order("plain", replace(TINY, net="no such net"))
    with pytest.raises(RuntimeError, match="no such net"):
        interleave({"plain": broken}, repeats=1)


@pytest.mark.parametrize(
    ("rounds", "fault"),
    [
        ([(9, 128, 2.0, 1.0)], "other work"),
        ([(10, 127, 2.0, 1.0)], "other work"),
        ([(10, 128, 2.0, 0.0)], "did not move"),
        ([(10, 128, 2.0, math.nan)], "did not move"),
        ([(10, 128, 2.0, 1.0), (10, 128, 2.1, 1.0)], "did not learn"),
    ],
)
def test_figures_of_work_that_was_not_done_are_refused(
    rounds: list[tuple[int, int, float, float]], fault: str
) -> None:
    played = [Round(1.0, steps, samples, loss, moved) for steps, samples, loss, moved in rounds]
    with pytest.raises(RuntimeError, match=fault):
        check("ours", Order("ours", TINY), played)


def test_w1_is_the_stated_work() -> None:
    w1 = WORKLOADS["w1"]
    assert sum(w1.sizes) == 3152
    assert w1.expected() == (5 * sum(-(-n // 64) for n in w1.sizes), 5 * 3152)
    assert WORKLOADS["w3"].expected() == (20 * 5, 20 * 50 * 5)
    assert all(len(work.chosen(3)) == work.participants for work in WORKLOADS.values())


def test_the_plain_loop_crops_and_mirrors_as_we_do() -> None:
    """Every image it hands out is a window of the padded original, perhaps mirrored."""
    images, labels = make_images(TINY, 0)
    data = Images(images, labels)
    got, label = data[5]
    stored = (got * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)) * 255
    padded = torch.zeros(3, SIDE + 2 * PAD, SIDE + 2 * PAD)
    padded[:, PAD:-PAD, PAD:-PAD] = images[5].permute(2, 0, 1)
    windows = [
        padded[:, top : top + SIDE, left : left + SIDE]
        for top in range(2 * PAD + 1)
        for left in range(2 * PAD + 1)
    ]
    fits = [torch.allclose(stored, w, atol=0.01) for v in windows for w in (v, v.flip(2))]
    assert any(fits)
    assert label == labels[5]


def test_the_plain_mean_is_weighted() -> None:
    states = [{"w": torch.tensor([0.0, 4.0])}, {"w": torch.tensor([4.0, 0.0])}]
    assert average(states, [1, 3])["w"].tolist() == [3.0, 1.0]
