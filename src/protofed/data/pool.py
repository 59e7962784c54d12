"""Decoding on all cores: every file's image or fault, in order."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from protofed.core.errors import ProtofedError
from protofed.core.lifeline import exit_with_parent, ignore_sigint_in_children
from protofed.core.machine import usable_cores
from protofed.core.progress import telling
from protofed.data.decode import DecodedImage, decode_images
from protofed.data.layout import ImageFile, StrayFile

CHUNK = 16  # files that a worker takes at a time
ALONE = 128  # files up to which starting workers costs more than it gains


def decode_in_parallel(
    files: Sequence[ImageFile | StrayFile], side: int, doing: str
) -> Iterator[DecodedImage | str]:
    """Every file's image or fault, in order; progress is told on the way as what we are doing."""
    good = [file.path for file in files if not file.fault]
    work = [(side, good[start : start + CHUNK]) for start in range(0, len(good), CHUNK)]
    results = (one for many in _in_parallel(work, len(good)) for one in many)
    tell = telling.get()
    for number, file in enumerate(files, start=1):
        yield file.fault or next(results)
        tell(doing, number, len(files))


def _in_parallel(
    work: Sequence[tuple[int, list[str]]], count: int
) -> Iterator[list[DecodedImage | str]]:
    """`decode_all` in a process for each core; here, if that is quicker or not allowed."""
    if count <= ALONE or usable_cores() == 1 or multiprocessing.current_process().daemon:
        yield from map(decode_images, work)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(usable_cores(), context, initializer=exit_with_parent)
    try:
        with ignore_sigint_in_children():
            results = pool.map(decode_images, work)
        yield from results
    except BrokenProcessPool:
        raise ProtofedError(
            "a process that decoded images died: out of memory, or this is a script without\n"
            "if __name__ == '__main__': around what it does, which worker processes need"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)
