"""The user of a chaos run: submits, cancels, pauses and resumes by the API, and asks again until it is answered."""

import threading
import time
import uuid
from typing import Any

import httpx

from deploy.local.handle import StackHandle
from tests.chaos.checker import FINAL, Shown
from tests.chaos.ledger import Ledger, Wanted
from tests.chaos.script import JobScript

ASK_AGAIN_SECONDS = 0.5
PAGE = 200
PROBE_PATIENCE_SECONDS = 240.0


class User:
    """Safe to use from several threads. `closing` ends its patience."""

    def __init__(self, stack: StackHandle, ledger: Ledger, closing: threading.Event) -> None:
        credentials = stack.credentials
        self._ledger, self._closing = ledger, closing
        self._project = f"chaos-{uuid.uuid4().hex[:8]}"  # of this run alone
        self._http = httpx.Client(
            base_url=f"{credentials['url']}/api/v1",
            headers={"Authorization": f"Bearer {credentials['token']}"},
            timeout=15.0,
            trust_env=False,
        )

    def submit(self, job: JobScript, cluster: str) -> Wanted:
        wanted = Wanted(job.number, key=str(uuid.uuid4()), steps=job.steps)
        with self._ledger.lock:
            self._ledger.jobs.append(wanted)
        body = {
            "version": 1,
            "name": f"chaos-{job.number}",
            "project": self._project,
            "resources": {"processes_per_node": 1, "cluster": cluster},
            "retry": {"max_free": 100, "max_charged": 20},
            "training": {
                "model": {"preset": "llama-1m"},
                "data": {"source": "builtin:python-stdlib"},
                "steps": job.steps,
                "tokens_per_step": 512,
                "sequence_length": 64,
                "schedule": {"warmup_steps": 1},
                "seed": job.number,
            },
        }
        wanted.id = self.ask("POST", "/jobs", body, {"Idempotency-Key": wanted.key}).json()["id"]
        return wanted

    def cancel(self, wanted: Wanted) -> None:
        answer = self.ask("POST", f"/jobs/{wanted.id}:cancel")
        wanted.cancel_accepted = answer.json()["desired"] == "stop"

    def pause(self, wanted: Wanted) -> None:
        wanted.pause_accepted = self.ask("POST", f"/jobs/{wanted.id}:pause").is_success

    def resume(self, wanted: Wanted) -> None:
        wanted.resume_accepted = self.ask("POST", f"/jobs/{wanted.id}:resume").is_success

    def run_to_the_end(self, job: JobScript, cluster: str) -> None:
        """A probe: from the submit to its success."""
        wanted = self.submit(job, cluster)
        until = time.monotonic() + PROBE_PATIENCE_SECONDS
        while (status := self.ask("GET", f"/jobs/{wanted.id}").json()["status"]) not in FINAL:
            if time.monotonic() > until:
                raise TimeoutError(f"probe {wanted.id} is still {status} after {PROBE_PATIENCE_SECONDS:.0f} s")
            self._closing.wait(0.05)

    def unfinished(self) -> list[str]:
        """Ids of jobs that have not ended, asked from the platform."""
        statuses = "queued,admitted,dispatching,starting,running,pausing,paused,stopping"
        return [job["id"] for job in self.list(f"/jobs?project={self._project}&status={statuses}")]

    def jobs_listed(self) -> int:
        return len(self.list(f"/jobs?project={self._project}"))

    def look(self, job_id: str) -> Shown:
        events: list[dict[str, Any]] = []
        while True:
            after = events[-1]["seq"] if events else 0
            page = self.ask("GET", f"/jobs/{job_id}/events?after={after}&limit={PAGE}").json()["items"]
            events += page
            if len(page) < PAGE:
                break
        series = self.ask("GET", f"/jobs/{job_id}/metrics?names=train/loss&points=5000").json()["series"]
        steps = series["train/loss"]["steps"] if "train/loss" in series else []
        return Shown(self.ask("GET", f"/jobs/{job_id}").json(), events, steps)

    def feed(self) -> list[dict[str, Any]]:
        """The team's events, in its order."""
        events: list[dict[str, Any]] = []
        after = "0"
        while True:
            page = self.ask("GET", f"/events?after={after}&limit={PAGE}").json()
            if not page["items"]:
                return events
            events += page["items"]
            after = page["next_after"]

    def list(self, path: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        cursor = ""
        joint = "&" if "?" in path else "?"
        while True:
            page = self.ask("GET", f"{path}{joint}limit={PAGE}" + (f"&cursor={cursor}" if cursor else "")).json()
            items += page["items"]
            if not page["next_cursor"]:
                return items
            cursor = page["next_cursor"]

    def ask(
        self, method: str, path: str, body: dict[str, Any] | None = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Until it is answered by success or by Conflict; any other refusal is an error of the run."""
        while True:
            began = time.monotonic()
            try:
                answer = self._http.request(method, path, json=body, headers=headers)
            except httpx.TransportError:
                pass
            else:
                if answer.is_success or answer.status_code == httpx.codes.CONFLICT and ":" in path:
                    return answer
                if answer.status_code < 500 and answer.status_code not in (409, 429):
                    raise RuntimeError(f"{method} {path}: HTTP {answer.status_code} {answer.text[:300]}")
            if self._closing.wait(max(0.0, ASK_AGAIN_SECONDS - (time.monotonic() - began))):
                raise TimeoutError(f"{method} {path} was not answered before the run's end")
