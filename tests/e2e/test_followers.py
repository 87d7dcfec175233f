"""Whoever follows a team misses nothing and sees nothing twice, whatever is killed meanwhile."""

import json
import os
import signal
import threading
import uuid

import httpx
import pytest

from deploy.local.handle import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
RETRY_SECONDS = 0.2


class Follower:
    """As a pipeline would: it keeps the last id, and comes back with it whenever the stream ends."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token
        self.seen: list[int] = []
        self.openings = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._read()
            except (httpx.HTTPError, ValueError):
                self._stop.wait(RETRY_SECONDS)

    def _read(self) -> None:
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "text/event-stream"}
        headers["Last-Event-ID"] = str(self.seen[-1] if self.seen else 0)
        with httpx.stream("GET", f"{self._url}/api/v1/events", headers=headers, timeout=5.0) as response:
            response.raise_for_status()
            self.openings += 1
            for line in response.iter_lines():
                if line.startswith("data: ") and (event := json.loads(line[6:])).get("team_seq"):
                    self.seen.append(event["team_seq"])
                if self._stop.is_set():
                    return

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


def make_events(stack, count: int) -> None:
    """Jobs that are cancelled at once; asked for again while the platform is away."""
    for _ in range(count):
        job = stack.json("submit", "--preset", "demo", "--idempotency-key", str(uuid.uuid4()))
        stack.json("cancel", job["id"])


def all_of(stack) -> list[int]:
    found: list[int] = []
    while True:
        page = stack.get("/events", after=found[-1] if found else 0, limit=1000)
        if not page["items"]:
            return found
        found += [event["team_seq"] for event in page["items"]]


@pytest.mark.slow
def test_followers_miss_nothing_when_web_and_database_are_killed(stack) -> None:
    followers = [Follower(stack.url, stack.token) for _ in range(4)]
    try:
        make_events(stack, 2)
        for victim in ("web", "postgres"):
            before = stack.identity(victim)
            stack.kill(victim)
            make_events(stack, 2)
            stack.wait_for_restart(victim, before)
            make_events(stack, 2)
        expected = all_of(stack)
        assert expected == list(range(1, len(expected) + 1)), "numbers without gaps"
        wait_until(lambda: all(len(f.seen) >= len(expected) for f in followers), "every event has arrived")
    finally:
        for follower in followers:
            follower.close()
    for follower in followers:
        assert follower.seen[: len(expected)] == expected
        assert follower.openings >= 2, "it was cut off when the web was killed"


def test_a_web_process_that_is_asked_to_stop_ends_its_streams_at_once(stack) -> None:
    webs = [name for name in stack.state["services"] if name == "web" or name.startswith("web-")]
    before = {name: stack.identity(name) for name in webs}
    headers = {"Authorization": f"Bearer {stack.token}", "Accept": "text/event-stream"}
    with httpx.stream("GET", f"{stack.url}/api/v1/events", headers=headers, timeout=20.0) as response:
        assert response.status_code == 200
        for name in webs:
            os.kill(stack.pid(name), signal.SIGTERM)
        for _ in response.iter_bytes():  # ends, and not by a cut connection
            continue
    for name in webs:
        stack.wait_for_restart(name, before[name])
        log = (stack.folder.logs / f"{name}.log").read_text()
        assert "timeout graceful shutdown exceeded" not in log
