from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from protofed.errors import ProtofedError
from protofed.runtime.atomic_io import file_lock, is_locked


@pytest.mark.parametrize("name", ["", "lock"])
def test_a_second_holder_is_refused_until_the_first_is_gone(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with (
        file_lock(path, "busy"),
        pytest.raises(ProtofedError, match="busy"),
        file_lock(path, "busy"),
    ):
        raise AssertionError("never both")
    with file_lock(path, "busy"):
        pass


def test_what_is_raised_inside_is_not_taken_for_another_holder(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match="a pipe is full"), file_lock(tmp_path, "busy"):
        raise BlockingIOError("a pipe is full")


def test_a_place_that_cannot_be_held_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match="cannot write to"), file_lock(tmp_path / "no" / "lock"):
        raise AssertionError("never held")


def test_without_words_for_it_a_second_holder_waits(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with file_lock(tmp_path):
            order.append("second")

    other = threading.Thread(target=second)
    with file_lock(tmp_path):
        other.start()
        other.join(0.2)
        order.append("first")
    other.join()
    assert order == ["first", "second"]


HOLDER = """
import sys, time
from pathlib import Path
from protofed.runtime.atomic_io import file_lock
with file_lock(Path(sys.argv[1]), "busy"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_of_a_killed_process_is_released(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert is_locked(tmp_path)
        holder.kill()
        holder.wait()
    assert not is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []  # nothing is left in the folder


def test_a_system_without_file_locks_is_named_in_one_line() -> None:
    code = "import sys; sys.modules['fcntl'] = None; from protofed.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "run"], capture_output=True, text=True, check=False
    )
    told = "error: protofed needs Linux or macOS; on Windows, run it inside WSL\n"
    assert (done.returncode, done.stderr) == (2, told)
