"""A fork server that is killed is replaced, whatever it was doing."""

import subprocess
import sys

# The server is stopped, so that the request to fork waits for its answer when it is killed.
KILLED_WHILE_FORKING = """
import os, signal, threading
from multiprocessing import forkserver
from trainer.resilience.forking import fork, start_fork_server

start_fork_server()
server = forkserver._forkserver._forkserver_pid
os.kill(server, signal.SIGSTOP)
threading.Timer(1.0, os.kill, (server, signal.SIGKILL)).start()
forked = fork("child", print, "it runs")
forked.process.join()
assert forkserver._forkserver._forkserver_pid != server
print(forked.process.exitcode)
"""


def test_a_fork_server_that_is_killed_while_it_forks_is_replaced() -> None:
    run = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_FORKING], capture_output=True, text=True, timeout=120, check=False
    )
    assert (run.returncode, run.stdout) == (0, "0\n"), run.stderr
