from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from protofed.runtime.child_process import ignore_sigint_in_children

ASK = "import signal; print(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
WAIT = (
    "import sys, time; from protofed.runtime.child_process import exit_with_pipe; "
    "exit_with_pipe(int(sys.argv[1])); time.sleep(60)"
)


def test_children_are_born_deaf_to_ctrl_c_and_the_parent_hears_it_afterwards() -> None:
    told: list[str] = []

    def interrupted() -> None:
        with ignore_sigint_in_children():
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            child = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
            told.append(child.stdout)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert told == ["True\n"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.parametrize("leads", [True, False])
def test_a_child_ends_when_the_pipe_of_its_parent_is_closed(leads: bool) -> None:
    life, held = os.pipe()
    words = [sys.executable, "-c", WAIT, str(life)]
    child = subprocess.Popen(words, pass_fds=[life], start_new_session=leads)
    os.close(life)
    assert child.poll() is None
    os.close(held)
    assert child.wait(60) == (-signal.SIGKILL if leads else 1)
