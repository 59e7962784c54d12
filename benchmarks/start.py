"""How soon commands answer: from `protofed run` to its first round, predictions, pages, tables."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from benchmarks import processes
from benchmarks.measure import ROOT

RUN = ("--data", "digits-mini", "--rounds", "2")
METHODS = ("fedavg", "fpl", "fedseproto")
IMAGES = 30


class Sample(NamedTuple):
    """What one call took."""

    wall: float
    cpu: float  # of all its processes, until they ended
    others: float  # share of the machine that other processes used


def start(repeats: int) -> dict[str, Any]:
    """Seconds of each command in turn, after one of each; the images of digits-mini are cached."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        calls = commands(place)
        samples: dict[str, list[Sample]] = {name: [] for name in calls}
        for number in range(1 + repeats):
            for name, call in calls.items():
                sample = timed(call)
                if number:
                    samples[name].append(sample)
    return {
        "work": f"digits-mini, 2 rounds; {len(METHODS)} runs, {IMAGES} images to predict",
        "samples": {n: [[round(x, 3) for x in s] for s in many] for n, many in samples.items()},
        "median": {n: round(median(s.wall for s in many), 3) for n, many in samples.items()},
        "cpu": {n: round(median(s.cpu for s in many), 3) for n, many in samples.items()},
    }


def commands(place: Path) -> dict[str, Callable[[], float | None]]:
    """The calls by name; what they read is made first."""
    runs, images = place / "runs", place / "images"
    compare = ("compare", *METHODS, *RUN, "--runs", str(runs))
    protofed(*compare)
    draw_images(images)
    (trained,) = runs.glob("fedavg-*")
    read = {
        "predict": ("predict", str(trained), str(images)),
        "report": ("report", str(runs), "-o", str(place / "page.html")),
        "runs": ("runs", str(runs)),
        "compare": compare,  # of runs that are finished
        "plot curves": ("plot", "curves", str(runs), "-o", str(place / "curves")),
    }
    later = {name: partial(protofed, *words) for name, words in read.items()}
    return {"first round": partial(first_round, place), **later}


def timed(call: Callable[[], float | None]) -> Sample:
    """What a call took; its own figure for the wall clock, if it has one."""
    busy, used, began = processes.busy_seconds(), children_seconds(), time.perf_counter()
    own = call()
    wall = time.perf_counter() - began
    cpu = children_seconds() - used
    others = max(0.0, processes.busy_seconds() - busy - cpu) / (wall * (os.cpu_count() or 1))
    return Sample(wall if own is None else own, cpu, others)


def children_seconds() -> float:
    """The processor time of all processes below this one that have ended."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def protofed(*words: str) -> None:
    """A command, to its end."""
    command = [sys.executable, "-m", "protofed", *words]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)


def first_round(place: Path) -> float:
    """Seconds from the start of a run to its first trained and scored round."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        scores = Path(folder) / "run" / "scores.jsonl"
        words = ("run", "--method", "fedavg", *RUN, "--out", str(scores.parent))
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "protofed", *words],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        while not (scores.exists() and scores.stat().st_size):
            if process.poll() is not None:
                raise RuntimeError(f"the run ended before its first round: {process.returncode}")
            time.sleep(0.005)
        seconds = time.perf_counter() - began
        process.wait()
    return seconds


def draw_images(folder: Path) -> None:
    """Pictures of noise, to be predicted."""
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (IMAGES, 32, 32, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(folder / f"{number:02d}.png")
