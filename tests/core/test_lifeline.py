from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from protofed.core.lifeline import deaf_children

ASK = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"


def test_children_are_born_deaf_to_ctrl_c_and_the_parent_hears_it_afterwards() -> None:
    told: list[str] = []

    def interrupted() -> None:
        with deaf_children():
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            child = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
            told.append(child.stdout)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert told == ["True\n"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
