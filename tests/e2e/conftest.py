"""One private stack for all end-to-end tests, and the command line as its user."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, Response, expect, sync_playwright

from deploy.local.environment import with_repository_on_path
from deploy.local.handle import StackHandle, wait_until
from tests.e2e.browsing import CHROMIUM

# Small enough for a job of seconds, long enough that something can be done to it on the way.
TINY = {
    "version": 1,
    "name": "tiny",
    "resources": {"processes_per_node": 2, "accelerator": "cpu"},
    "checkpoint": {"every_steps": 10, "keep_last": 2},
    "training": {
        "model": {
            "shape": {
                "hidden_size": 32, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "intermediate_size": 64,
                "tie_embeddings": True,
            },
        },
        "data": {"source": "builtin:python-stdlib"},
        "tokenizer": {"vocab_size": 512},
        "steps": 20,
        "tokens_per_step": 256,
        "sequence_length": 64,
        "schedule": {"warmup_steps": 1},
        "evaluation": {"every_steps": 10, "sequences": 8},
    },
}  # fmt: skip
FINAL = {"succeeded", "failed", "cancelled", "expired"}


class Stack(StackHandle):
    """A stack with its platform, and what its first user knows of it."""

    def __init__(self, data_dir: Path, settings: dict[str, str] | None = None) -> None:
        super().__init__(data_dir, settings)
        # One for all requests: making a client loads the machine's certificates, which costs more than the request.
        self._http = httpx.Client(timeout=20)

    @property
    def url(self) -> str:
        return str(self.credentials["url"])

    @property
    def token(self) -> str:
        return str(self.credentials["token"])

    @property
    def username(self) -> str:
        return str(self.credentials["username"])

    @property
    def password(self) -> str:
        return str(self.credentials["password"])

    @property
    def team(self) -> str:
        return str(self.credentials["team"])

    def kill(self, service: str) -> None:
        before = self.identity(service)
        super().kill(service)
        wait_until(lambda: not before.is_alive(), f"{service} is gone", 10)

    def athanor(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(Path(sys.executable).with_name("athanor")), *arguments],
            env=with_repository_on_path({**self.environment, "ATHANOR_URL": self.url, "ATHANOR_TOKEN": self.token}),
            capture_output=True,
            text=True,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        result = self.athanor(*arguments, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    def get(self, path: str, **params: Any) -> Any:
        """GET of api/v1, asked again while the web is away."""
        answer: list[Any] = []

        def answered() -> bool:
            try:
                response = self._http.get(
                    f"{self.url}/api/v1{path}", params=params, headers={"Authorization": f"Bearer {self.token}"}
                )
            except httpx.TransportError:
                return False
            if response.status_code >= 500:
                return False
            response.raise_for_status()
            answer.append(response.json())
            return True

        wait_until(answered, f"GET {path} is answered", 60)
        return answer[-1]

    def spec(self, tmp_path: Path, processes: int = 2, **training: Any) -> Path:
        """A file with a tiny job's spec, some fields of `training` changed."""
        resources = {**TINY["resources"], "processes_per_node": processes}
        spec = {**TINY, "resources": resources, "training": {**TINY["training"], **training}}
        path = tmp_path / "job.json"
        path.write_text(json.dumps(spec))
        return path

    def submit(self, tmp_path: Path, processes: int = 2, **training: Any) -> str:
        """A tiny job, with some fields of `training` changed; its id."""
        return str(self.json("submit", str(self.spec(tmp_path, processes, **training)))["id"])

    def job(self, job_id: str) -> Any:
        return self.get(f"/jobs/{job_id}")

    def wait_for_step(self, job_id: str, step: int, within_seconds: float = 120) -> None:
        def reached() -> bool:
            job = self.job(job_id)
            assert job["status"] not in FINAL, f"ended as {job['status']} before step {step}: {job['reason']}"
            return ((job["progress"] or {}).get("step") or 0) >= step

        wait_until(reached, f"{job_id} reaches step {step}", within_seconds)

    def wait_for_end(self, job_id: str, within_seconds: float = 240) -> Any:
        wait_until(lambda: self.job(job_id)["status"] in FINAL, f"{job_id} ends", within_seconds)
        return self.job(job_id)

    def steps_of(self, job_id: str, name: str = "train/loss") -> list[int]:
        """Every step that has a value, in order, as stored."""
        return list(self.curve(job_id, name)["steps"])

    def curve(self, job_id: str, name: str) -> Any:
        return self.get(f"/jobs/{job_id}/metrics", names=name, points=5000)["series"][name]


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    # The receivers of webhooks in these tests are on this machine.
    running = Stack(tmp_path_factory.mktemp("stack") / "data", {"ATHANOR_WEBHOOK_ALLOW": "127.0.0.1"})
    running.up()
    yield running
    running.down()
    for process in running.job_processes():
        process.kill()


@pytest.fixture(autouse=True)
def every_service_is_up(stack: Stack) -> None:
    """A test that broke something leaves the repair to the supervisor; the next one starts when it is done."""

    def all_alive() -> bool:
        return all(stack.identity(name).is_alive() for name in stack.state["services"])

    wait_until(all_alive, "every service is up again", 60)
    stack.get("/jobs", limit=1)


@pytest.fixture(autouse=True)
def a_failed_test_leaves_nothing_running(request: pytest.FixtureRequest, stack: Stack) -> Iterator[None]:
    """Or the next one would wait for slots that nobody gives back."""
    before = request.session.testsfailed
    yield
    if request.session.testsfailed == before:
        return
    left = [job["id"] for job in stack.get("/jobs", limit=200)["items"] if job["status"] not in FINAL]
    if left:
        stack.athanor("cancel", *left)
        for job_id in left:
            stack.wait_for_end(job_id)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        # --no-sandbox: Chromium refuses its sandbox to root, as whom a container's tests run.
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser, stack) -> Iterator[Page]:
    """A fresh browser profile; an error in the page's own code, or what its content security policy forbids, fails the
    test."""
    context = browser.new_context(base_url=stack.url, viewport={"width": 1280, "height": 860})
    context.set_default_timeout(20_000)
    expect.set_options(timeout=20_000)
    page = context.new_page()
    crashes: list[str] = []
    page.on("pageerror", lambda error: crashes.append(str(error)))
    page.on("console", lambda said: crashes.append(said.text) if _is_forbidden(said.text) else None)
    page.on("response", lambda answer: crashes.append(f"422: {answer.url}") if _is_refused_read(answer) else None)
    yield page
    context.close()
    assert not crashes, "\n".join(crashes)


def _is_forbidden(said: str) -> bool:
    """What the content policy stopped. Not Chromium's own style attributes, which its editing of text makes."""
    return "Content Security Policy" in said and "style attributes" not in said


def _is_refused_read(answer: Response) -> bool:
    """A page that asks with a parameter which the API does not have shows nothing."""
    return answer.status == 422 and answer.request.method == "GET"
