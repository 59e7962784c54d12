"""The tables: what they say, and that the docs show the results that are kept."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import benchmarks.__main__ as main
import pytest
import torch
from benchmarks import idle, layers, machine, peak, report
from benchmarks.measure import ratios
from benchmarks.report import Goal
from benchmarks.workloads import WORKLOADS, Workload, make_net


def kept() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(report.RESULTS.read_text())
    return found


def test_the_docs_show_the_results() -> None:
    text = report.SPAN.file.read_text()
    assert text.count(report.SPAN.begin) == text.count(report.SPAN.end) == 1
    assert report.SPAN.within(text, report.markdown(kept())) == text, (
        "run python -m benchmarks --docs"
    )


def test_other_results_make_another_page() -> None:
    """Whichever parts the record has, and those that it does not have."""
    results = kept()
    results["parts"]["startup"] = {"median": {"--help": 12.34}}
    text = report.SPAN.file.read_text()
    assert "| 12.34 s" in report.SPAN.within(text, report.markdown(results))
    assert report.SPAN.within(text, report.markdown(results)) != text


def measure_some(monkeypatch: pytest.MonkeyPatch, busy: float, *words: str) -> None:
    """The command, with parts and a peak that take no time, on a machine that is so busy."""
    seen = idle.Look(busy, [("other work (process 7)", busy)])
    speed = {"cores": 2, "one": 100.0, "all": 200.0}
    monkeypatch.setattr(idle, "look", lambda: seen)
    monkeypatch.setattr(main, "peaks", lambda cores: speed)
    monkeypatch.setitem(main.PARTS, "w1", lambda plan: {"ratios": {"plain": 7.89}})
    monkeypatch.setattr("sys.argv", ["benchmarks", "--only", "w1", *words])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    main.main()


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copies of the record and of the page in place of the real ones."""
    for file in (report.RESULTS, report.SPAN.file):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(report, "SPAN", report.SPAN._replace(file=tmp_path / report.SPAN.file.name))
    monkeypatch.setattr(report, "RESULTS", tmp_path / report.RESULTS.name)
    monkeypatch.setattr(main, "TRIAL", tmp_path / main.TRIAL.name)
    return tmp_path


@pytest.mark.parametrize("same_machine", [True, False])
def test_measuring_one_part_brings_the_page_in_line(
    copies: Path, monkeypatch: pytest.MonkeyPatch, same_machine: bool
) -> None:
    before = kept()
    found = before["machine"] if same_machine else {**before["machine"], "model": "another"}
    monkeypatch.setattr(machine, "describe", lambda: found)
    measure_some(monkeypatch, 0.01)
    assert kept()["parts"]["w1"]["ratios"] == {"plain": 7.89}
    others = {name: part for name, part in kept()["parts"].items() if name != "w1"}
    expected = {name: part for name, part in before["parts"].items() if name != "w1"}
    assert others == (expected if same_machine else {})
    assert "| 7.89 x" in report.SPAN.file.read_text()
    test_the_docs_show_the_results()
    test_other_results_make_another_page()


def test_a_trial_leaves_record_and_page_alone(
    copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = report.RESULTS.read_bytes(), report.SPAN.file.read_bytes()
    measure_some(monkeypatch, 0.9, "--quick")
    assert (report.RESULTS.read_bytes(), report.SPAN.file.read_bytes()) == before
    assert json.loads(main.TRIAL.read_text())["quick"]


def test_a_busy_machine_is_refused_unless_forced(
    copies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = report.RESULTS.read_bytes()
    with pytest.raises(SystemExit, match=r"others use 42% of[^$]*42%  other work \(process 7\)"):
        measure_some(monkeypatch, 0.42)
    assert report.RESULTS.read_bytes() == before
    measure_some(monkeypatch, 0.42, "--force")
    assert kept()["parts"]["w1"]["taken"]["busy"] == 0.42
    assert "- w1: begun" in report.SPAN.file.read_text()
    assert "when others used 42 % of the cores" in report.SPAN.file.read_text()


def test_ratios_are_taken_repeat_by_repeat() -> None:
    systems = {"ours": {"seconds": [1.0, 2.0, 4.0]}, "plain": {"seconds": [3.0, 4.0, 40.0]}}
    assert ratios(systems, "ours") == {"plain": 3.0}  # of 3, 2 and 10
    assert ratios({"plain": systems["plain"]}, "ours") == {}


@pytest.mark.parametrize(
    ("goal", "value", "verdict"),
    [
        (Goal("", (), "x", least=2.0), 2.0, "met"),
        (Goal("", (), "x", least=2.0), 1.99, "missed"),
        (Goal("", (), "s", most=0.5), 0.5, "met"),
        (Goal("", (), "s", most=0.5), 0.51, "missed"),
        (Goal("", (), "s"), 9.0, ""),
        (Goal("", (), "x", least=2.0, flags=("avx2", "amx_bf16")), 2.0, "met"),
        (Goal("", (), "x", least=2.0, flags=("avx512_bf16", "amx_bf16")), 2.0, "needs avx512_bf16"),
    ],
)
def test_goals_are_judged(goal: Goal, value: float, verdict: str) -> None:
    assert goal.verdict(value, ["avx2"]).startswith(verdict)
    assert bool(goal.verdict(value, ["avx2"])) == bool(verdict)


def test_every_goal_belongs_to_a_part() -> None:
    assert {goal.path[0] for goal in report.GOALS} <= main.PARTS.keys()


def test_who_is_left_out_of_what_is_said_once() -> None:
    results = kept()
    for name in ("w1", "w3"):
        results["parts"][name] = {"skipped": {"pfllib": "no folder"}}
    assert "- left out of w1, w3: PFLlib: no folder" in report.facts(results)


def test_a_wrong_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.parser().parse_args(["--only", "w1,w9"])
    assert "no part w9; there are startup" in capsys.readouterr().err


def test_the_operations_of_a_sample_are_those_of_the_layers() -> None:
    """Each layer three times, forward and two gradients; the first needs none of its input."""
    conv1 = 2 * 3 * 32 * 25 * 32**2
    conv2 = 2 * 32 * 64 * 25 * 16**2
    linear = 2 * (64 * 8 * 8 * 512 + 512 * 128 + 128 * 10)
    assert peak.flops_of_sample(WORKLOADS["w1-lsa"]) == 2 * conv1 + 3 * (conv2 + linear)
    conv1 = 2 * 3 * 32 * 25 * 28**2
    conv2 = 2 * 32 * 64 * 25 * 10**2
    linear = 2 * (64 * 5 * 5 * 512 + 512 * 512 + 512 * 10)
    assert peak.flops_of_sample(WORKLOADS["w1"]) == 2 * conv1 + 3 * (conv2 + linear)
    weights = sum(leaf.numel() for leaf in make_net(WORKLOADS["w1"]).parameters())
    assert round(weights / 1e6, 2) == 1.14


def test_the_peak_is_a_speed() -> None:
    assert 0.1 < peak.measure(1, seconds=0.02) < 10_000


@pytest.mark.parametrize("net", layers.NETS)
def test_the_layers_do_the_operations_of_a_step(net: str) -> None:
    """Their passes together are what torch counts in a step."""
    found = layers.layers_of(net)
    passes = sum(layer.flops * (2 if layer.first else 3) for layer in found)
    work = Workload(net, net, (layers.BATCH,), epochs=1, batch=layers.BATCH)
    assert passes / layers.BATCH == peak.flops_of_sample(work)


def test_the_passes_of_a_layer_are_its_gradients() -> None:
    """Each against autograd, on the tensors of a real step, channels last."""
    for layer in layers.layers_of("lsa-cnn"):
        x = layer.x.clone().requires_grad_()
        out = layer.module(x)
        out.backward(layer.upstream)
        found = {name: call() for name, call in layers.passes(layer, torch.float32).items()}
        assert x.dim() == 2 or x.is_contiguous(memory_format=torch.channels_last)
        assert torch.allclose(one_of(found["forward"]), out, atol=1e-5)
        assert torch.allclose(one_of(found["input"]), not_none(x.grad), atol=1e-6)
        # zeroed by no one: this step's gradient came on top of the one that `layers_of` took
        twice = not_none(layer.module.weight.grad)
        assert torch.allclose(2 * one_of(found["weight"]), twice, atol=1e-5)


def one_of(found: object) -> torch.Tensor:
    """The tensor of a pass; convolution_backward returns the ones not asked for as None."""
    if isinstance(found, torch.Tensor):
        return found
    assert isinstance(found, tuple)
    return not_none(next(item for item in found if item is not None))


def not_none(value: torch.Tensor | None) -> torch.Tensor:
    assert value is not None
    return value


@pytest.mark.parametrize("precision", peak.PRECISIONS)
def test_the_layers_are_a_table(precision: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = layers.layers_of("lsa-cnn")
    dtype = getattr(torch, precision)
    *lines, whole = layers.rows(found, dtype, best=100.0, budget=0.0)
    assert [line[0] for line in lines] == [layer.name for layer in found]
    assert lines[0][5:8] == ["", "", ""]  # images need no gradient
    total = sum(float(line[at]) for line in lines for at in (2, 5, 8) if line[at])
    assert float(whole[2]) == pytest.approx(total, abs=0.1)


def test_another_process_is_seen_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is not below this one, at work on one core; this one is not named."""
    monkeypatch.setattr(idle, "NAMED", 1000)
    spin = "import time\nend = time.time() + 20\nwhile time.time() < end: pass"
    start = f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {spin!r}]).pid)"
    with subprocess.Popen([sys.executable, "-c", start], stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout
        pid = int(made.stdout.readline())
    try:
        seen = idle.look(1.0)
    finally:
        os.kill(pid, signal.SIGKILL)
    shares = {name: part for name, part in seen.busiest if f"(process {pid})" in name}
    assert len(shares) == 1
    assert 0 < max(shares.values()) <= seen.share + 0.02  # the kernel counts in hundredths
    assert f"(process {os.getpid()})" not in seen.words()


def test_the_machine_is_stamped() -> None:
    found = machine.describe()
    assert found["capability"] == torch.backends.cpu.get_cpu_capability()
    assert found["cores"] >= 1
    assert found["cpu"]
