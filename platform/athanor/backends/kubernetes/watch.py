"""Watches of the API server: for each cluster one watch of our Jobs and one of their pods, in threads owned by
this module. They list once, follow from that version on, list again when the server has
forgotten it (410), and go on where they were when a connection ends.

A mirror answers only while it is heard: bookmarks come each minute. That something is not in it means nothing, for it
may be new; that something was deleted before its eyes is a fact.
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
CONNECTION_SECONDS = 290  # of one watch: servers end them after some minutes anyway
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
UNUSED_SECONDS = 900.0
REMEMBERED = 2000


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
        return self.is_synced and time.monotonic() - self._heard < SILENCE_SECONDS

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()

    def wait(self, seconds: float) -> bool:
        """Until it is fresh, or could not become so. Whether it is."""
        with self.lock:
            self.lock.wait_for(lambda: self.is_fresh or bool(self.error), seconds)
            return self.is_fresh

    def _run(self) -> None:
        pause = FIRST_PAUSE
        while not self._stop.is_set() and self._is_wanted():
            try:
                if not self._version:
                    self._list()
                self._follow()
                pause = FIRST_PAUSE
            except Refused as error:
                if error.code == 410:
                    self._version = ""
                else:
                    self._lose(str(error))
                    self._stop.wait(pause)
            except BackendUnavailable as error:
                self._lose(str(error))
                self._stop.wait(pause)
            except Exception:  # the thread lives as long as the process: what was not foreseen is logged
                log.exception("the watch of %s restarts", self._where)
                self._version = ""
                self._lose("its watch failed")
                self._stop.wait(pause)
            else:
                continue
            pause = min(pause * 2, LONGEST_PAUSE)

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
                self.by_attempt.setdefault(_attempt(state), {})[state.name] = state
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
        self.by_attempt.setdefault(_attempt(state), {})[state.name] = state

    def _drop(self, state: State) -> None:
        self.items.pop((state.namespace, state.name), None)
        attempt = _attempt(state)
        mine = self.by_attempt.get(attempt, {})
        mine.pop(state.name, None)
        if not mine:
            self.by_attempt.pop(attempt, None)
        kept = self.deleted.setdefault(attempt, [])
        kept.append(state)
        del kept[:-8]
        while len(self.deleted) > REMEMBERED:
            self.deleted.popitem(last=False)

    def _lose(self, error: str) -> None:
        with self.lock:
            self.error, self._heard = error, 0.0
            self.lock.notify_all()


def _attempt(state: State) -> str:
    return state.attempt if isinstance(state, PodState) else state.name


class Watch:
    """Jobs and pods of one cluster."""

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
        """Until both are fresh, at the longest so many seconds. Whether they are."""
        self.used = time.monotonic()
        return self.jobs.wait(seconds) and self.pods.wait(seconds)

    def job(self, name: str) -> JobState | None:
        with self.jobs.lock:
            return next(iter(self.jobs.by_attempt.get(name, {}).values()), None)

    def pods_of(self, name: str) -> list[PodState]:
        with self.pods.lock:
            return list(self.pods.by_attempt.get(name, {}).values())

    def departed(self, name: str) -> list[PodState]:
        """Pods that were deleted, as they were last."""
        with self.pods.lock:
            return list(self.pods.deleted.get(name, ()))

    def deleted_job(self, name: str) -> JobState | None:
        """A Job that somebody deleted before our eyes."""
        with self.jobs.lock:
            return next(iter(self.jobs.deleted.get(name, ())), None)

    def stop(self) -> None:
        self.jobs.stop()
        self.pods.stop()

    @property
    def is_alive(self) -> bool:
        return self.jobs.is_alive and self.pods.is_alive


_WATCHES: dict[tuple[int, str], Watch] = {}
_LOCK = threading.Lock()


def watch_of(key: str, config: KubernetesConfig) -> Watch:
    """The watch of a configuration, begun when it is first asked for; it ends when it is asked for no more."""
    with _LOCK:
        found = _WATCHES.get((os.getpid(), key))
        if found is None or not found.is_alive:
            if found is not None:
                found.stop()
            found = _WATCHES[(os.getpid(), key)] = Watch(key, config)
        return found


def stop_all() -> None:
    with _LOCK:
        for watch in _WATCHES.values():
            watch.stop()
        _WATCHES.clear()
