"""Signals that ask a run to save a checkpoint and to end."""

import signal
from collections.abc import Callable
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""Schedulers send them to all processes of a job, SIGUSR1 for instance Slurm with `--signal=USR1@60`. They are for the
agent; the others must live to save their state."""


def on_stop_signal(act: Callable[..., Any]) -> None:
    """Call `act`, with the arguments of a signal handler, when this process receives a stop signal."""
    for each in STOP_SIGNALS:
        signal.signal(each, act)


def ignore_stop_signals() -> None:
    """Leave the decision to the agent, which receives them too."""
    for each in STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)
