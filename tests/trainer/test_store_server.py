"""The rendezvous store takes the connections of many ranks, or says which limit is in the way."""

import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from trainer.errors import TrainerError
from trainer.resilience import store_server

ROOT = Path(__file__).resolve().parents[2]
# The fork server, and so the store, start with the usual soft limit, here a smaller one.
CONNECT = """
    import resource
    from datetime import timedelta

    from trainer.resilience.forking import start_fork_server
    from trainer.resilience.store_server import start_store

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    start_fork_server()
    forked, address = start_store("127.0.0.1", 80)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    from torch.distributed import TCPStore

    clients = []
    for number in range(160):
        clients.append(TCPStore(address.host, address.port, is_master=False, timeout=timedelta(seconds=60)))
        clients[-1].set(str(number), "here")
    clients[0].wait([str(number) for number in range(160)])
    print(len(clients), "connected")
    forked.process.kill()
    forked.process.join()
"""


def test_more_ranks_connect_than_the_soft_limit_allows() -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 1000:
        pytest.skip("this machine allows fewer than 1,000 open files")
    command = [sys.executable, "-c", textwrap.dedent(CONNECT)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert "160 connected" in ended.stdout, ended.stderr


def test_a_hard_limit_that_is_too_small_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_server, "_hard_limit", lambda: 1024)
    with pytest.raises(TrainerError, match="1,000 ranks needs 1,100 open files, and this node allows 1,024.*to 1,100"):
        store_server.start_store("127.0.0.1", 1000)
