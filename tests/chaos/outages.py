"""Kills or freezes one service of a stack, and measures how long the platform then takes to work again."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from deploy.local.handle import StackHandle, wait_until

GONE_WITHIN_SECONDS = 10.0


@dataclass(frozen=True)
class Recovery:
    """`seconds`: from when the service could be started again until `works` held; that time without any outage is
    what a healthy platform takes."""

    service: str
    down_seconds: float
    seconds: float
    frozen: bool = False


def kill_and_recover(
    stack: StackHandle,
    service: str,
    down_seconds: float,
    *,
    pause: Callable[[float], object],
    works: Callable[[], object],
) -> Recovery:
    """`works` returns when the platform has done a piece of work from end to end, or raises."""
    before = stack.identity(service)
    if down_seconds:
        stack.suspend("supervisor")  # which would start it again at once
    try:
        stack.kill(service)
        wait_until(lambda: not before.is_alive(), f"{service} is gone", GONE_WITHIN_SECONDS)
        if down_seconds:
            pause(down_seconds)
    finally:
        if down_seconds:
            stack.resume("supervisor")
    released = time.monotonic()
    works()
    return Recovery(service, down_seconds, time.monotonic() - released)


def freeze_and_recover(
    stack: StackHandle,
    service: str,
    seconds: float,
    *,
    pause: Callable[[float], object],
    works: Callable[[], object],
) -> Recovery:
    """As a machine that sleeps, or a long garbage collection: nobody knows that it is not there."""
    stack.suspend(service)
    try:
        pause(seconds)
    finally:
        stack.resume(service)
    released = time.monotonic()
    works()
    return Recovery(service, seconds, time.monotonic() - released, frozen=True)
