"""Informers: for each cluster one list and watch of our Jobs and one of their pods, each in a thread.

They list once, watch from that version on, list again when the server has compacted it (410), and resume when a
connection ends.

A mirror answers only while it is fresh: bookmarks arrive each minute. That an object is not in it proves nothing, since
it may be new; a deletion that it has received is a fact.
"""

import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from athanor.backends.base import BackendUnavailable
from athanor.backends.kubernetes import names
from athanor.backends.kubernetes.client import KubernetesClient, Refused, client_of, path
from athanor.backends.kubernetes.config import KubernetesConfig
from athanor.backends.kubernetes.state import JobState, PodState, job_state, pod_state

log = logging.getLogger(__name__)

Json = dict[str, Any]
State = TypeVar("State", JobState, PodState)
SILENCE_SECONDS = 75.0  # servers send a bookmark each minute
CONNECTION_SECONDS = 290  # timeoutSeconds of a watch request
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 5.0
UNUSED_SECONDS = 900.0
MAX_DELETED_ATTEMPTS = 2000  # attempts with deleted objects that a mirror remembers


class Mirror(Generic[State]):
    """The last known objects of one kind, as summaries. All reading is under `lock`."""

    def __init__(
        self, client: Callable[[], KubernetesClient], where: str, selector: str, summary: Callable[[Json], State],
        is_wanted: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.lock = threading.Condition()
        self.items: dict[tuple[str, str], State] = {}
        self.by_attempt: dict[str, dict[str, State]] = {}
        self.deleted: OrderedDict[str, list[State]] = OrderedDict()
        self.error = ""
        self.is_synced = False
        self._heard = 0.0
        self._client = client
        self._where = where
        self._selector = selector
        self._summary: Callable[[Json], State] = summary
        self._is_wanted = is_wanted
        self._version = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {where}", daemon=True)
        self._thread.start()

    @property
    def is_fresh(self) -> bool:
        """Return whether it is complete and has received something recently."""
        return self.is_synced and time.monotonic() - self._heard < SILENCE_SECONDS

    @property
    def is_alive(self) -> bool:
        """Return whether its thread runs."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Ask its thread to end."""
        self._stop.set()

    def wait(self, seconds: float) -> bool:
        """Wait until it is fresh or has an error. Return whether it is fresh."""
        with self.lock:
            self.lock.wait_for(lambda: self.is_fresh or bool(self.error), seconds)
            return self.is_fresh

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._stop.is_set() and self._is_wanted():
            try:
                if not self._version:
                    self._list()
                self._follow()
                pause = FIRST_PAUSE_SECONDS
            except Refused as error:
                if error.code == 410:
                    self._version = ""
                else:
                    self._set_error(str(error))
                    self._stop.wait(pause)
            except BackendUnavailable as error:
                self._set_error(str(error))
                self._stop.wait(pause)
            except Exception:  # the thread must survive unexpected errors
                log.exception("the watch of %s restarts", self._where)
                self._version = ""
                self._set_error("its watch failed")
                self._stop.wait(pause)
            else:
                continue
            pause = min(pause * 2, MAX_PAUSE_SECONDS)

    def _list(self) -> None:
        items: dict[tuple[str, str], State] = {}
        version = ""
        for page in self._client().list(self._where, labelSelector=self._selector):
            version = page["metadata"]["resourceVersion"]
            for item in page.get("items") or []:
                state = self._summary(item)
                items[(state.namespace, state.name)] = state
        with self.lock:
            self.items = items
            self.by_attempt = {}
            for state in items.values():
                self.by_attempt.setdefault(_attempt_name(state), {})[state.name] = state
            self._version, self.is_synced = version, True

    def _follow(self) -> None:
        events = self._client().stream(
            self._where, self._stop, SILENCE_SECONDS, labelSelector=self._selector, resourceVersion=self._version,
            allowWatchBookmarks="true", timeoutSeconds=CONNECTION_SECONDS,
        )  # fmt: skip
        for event in events:
            kind, item = event["type"], event["object"]
            if kind == "ERROR":
                raise Refused(int(item.get("code") or 0), str(item.get("reason")), str(item.get("message")))
            with self.lock:
                if kind in ("ADDED", "MODIFIED"):
                    self._put(self._summary(item))
                elif kind == "DELETED":
                    self._drop(self._summary(item))
                if kind != "OPEN":
                    self._version = item["metadata"]["resourceVersion"]
                self._heard, self.error = time.monotonic(), ""
                self.lock.notify_all()
            if not self._is_wanted():
                return

    def _put(self, state: State) -> None:
        self.items[(state.namespace, state.name)] = state
        self.by_attempt.setdefault(_attempt_name(state), {})[state.name] = state

    def _drop(self, state: State) -> None:
        self.items.pop((state.namespace, state.name), None)
        attempt = _attempt_name(state)
        remaining = self.by_attempt.get(attempt, {})
        remaining.pop(state.name, None)
        if not remaining:
            self.by_attempt.pop(attempt, None)
        deleted = self.deleted.setdefault(attempt, [])
        deleted.append(state)
        del deleted[:-8]
        while len(self.deleted) > MAX_DELETED_ATTEMPTS:
            self.deleted.popitem(last=False)

    def _set_error(self, error: str) -> None:
        with self.lock:
            self.error, self._heard = error, 0.0
            self.lock.notify_all()


def _attempt_name(state: State) -> str:
    return state.attempt if isinstance(state, PodState) else state.name


class Watch:
    """The watched Jobs and pods of one cluster."""

    def __init__(self, key: str, config: KubernetesConfig) -> None:
        self.used = time.monotonic()

        def client() -> KubernetesClient:
            return client_of(key, config)

        def is_wanted() -> bool:
            return time.monotonic() - self.used < UNUSED_SECONDS

        ours = names.ours(config)
        self.jobs = Mirror(client, path("batch/v1", "jobs"), ours, job_state, is_wanted)
        self.pods = Mirror(client, path("v1", "pods"), ours, pod_state, is_wanted)

    def wait(self, seconds: float) -> bool:
        """Wait until both are fresh, at most `seconds` for each. Return whether they are."""
        self.used = time.monotonic()
        return self.jobs.wait(seconds) and self.pods.wait(seconds)

    def job(self, name: str) -> JobState | None:
        """Return the last known Job of an attempt; None without one."""
        with self.jobs.lock:
            return next(iter(self.jobs.by_attempt.get(name, {}).values()), None)

    def pods_of(self, name: str) -> list[PodState]:
        """Return the last known pods of an attempt."""
        with self.pods.lock:
            return list(self.pods.by_attempt.get(name, {}).values())

    def deleted_pods(self, name: str) -> list[PodState]:
        """Return the last deleted pods of an attempt (at most 8), in their last state."""
        with self.pods.lock:
            return list(self.pods.deleted.get(name, ()))

    def deleted_job(self, name: str) -> JobState | None:
        """Return the attempt's Job if its deletion was received."""
        with self.jobs.lock:
            return next(iter(self.jobs.deleted.get(name, ())), None)

    def stop(self) -> None:
        """Stop both."""
        self.jobs.stop()
        self.pods.stop()

    @property
    def is_alive(self) -> bool:
        """Return whether both threads run."""
        return self.jobs.is_alive and self.pods.is_alive


_WATCHES: dict[tuple[int, str], Watch] = {}
_LOCK = threading.Lock()


def watch_of(key: str, config: KubernetesConfig) -> Watch:
    """Return the watch of a configuration; start it on first use. It ends when it is no longer used."""
    with _LOCK:
        found = _WATCHES.get((os.getpid(), key))
        if found is None or not found.is_alive:
            if found is not None:
                found.stop()
            found = _WATCHES[(os.getpid(), key)] = Watch(key, config)
        return found


def stop_all() -> None:
    """Stop all watches of the process."""
    with _LOCK:
        for watch in _WATCHES.values():
            watch.stop()
        _WATCHES.clear()
