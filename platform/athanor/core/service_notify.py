"""Notify the service manager (systemd, or `deploy.local`) that this process is ready, and that it is alive.

The protocol is that of sd_notify(3): datagrams to the socket that NOTIFY_SOCKET names, and WATCHDOG_USEC, the time
without a message after which the service manager restarts the process. Without NOTIFY_SOCKET nothing is sent.
"""

import os
import socket
from contextlib import suppress

READY = "READY=1"
ALIVE = "WATCHDOG=1"
DEFAULT_INTERVAL_SECONDS = 10.0


def notify(*states: str) -> None:
    """Send the states. Never blocks and never raises: a service manager that does not listen harms no service."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # Linux's abstract namespace
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        sender.sendto("\n".join(states).encode(), address)


def interval_seconds() -> float:
    """Return how often to send ALIVE: three times within the time that the service manager allows."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    return int(microseconds) / 1e6 / 3 if microseconds.isdigit() else DEFAULT_INTERVAL_SECONDS
