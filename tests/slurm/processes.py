"""Processes and ports of the tests' own servers."""

import ctypes
import os
import random
import signal
import socket

from deploy.local import ports

PR_SET_PDEATHSIG = 1


def search_path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


def free_ports(count: int) -> list[int]:
    held = []
    for port in random.sample(ports.INTERNAL_RANGE, 1000):
        listening = ports.hold(port)
        if listening is not None:
            held.append(listening)
        if len(held) == count:
            break
    chosen = [listening.getsockname()[1] for listening in held]
    for listening in held:
        listening.close()
    return chosen


def listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
