"""What the chart's pods run, run here: prepare, then web, worker and beat, through an outage of the database."""

import http.client
import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from deploy.local.environment import with_repository_on_path
from deploy.local.handle import wait_until
from tests.deploy import helm

pytestmark = [helm.needs_helm, pytest.mark.slow, pytest.mark.server]
VALUES = helm.CHART / "ci" / "monitored-values.yaml"
PROGRAM = [sys.executable, "-m", "athanor.config.program"]
POD_IP = "127.0.0.1"
REPORTS_SECONDS = 1.0  # the interval of signs of life; they count as hung after three


class Relay(socketserver.ThreadingTCPServer):
    """Passes connections on to a server, and can be cut."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, host: str, port: int) -> None:
        super().__init__((POD_IP, 0), Passing)
        self.target = (host, port)
        self.is_cut = False
        self.connections: set[socket.socket] = set()
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def cut(self) -> None:
        self.is_cut = True
        for one in list(self.connections):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class Passing(socketserver.BaseRequestHandler):
    server: Relay

    def handle(self) -> None:
        if self.server.is_cut:
            return
        with socket.create_connection(self.server.target) as beyond:
            ends = {self.request, beyond}
            self.server.connections |= ends
            back = threading.Thread(target=self._pass_on, args=(beyond, self.request), daemon=True)
            back.start()
            self._pass_on(self.request, beyond)
            back.join()
            self.server.connections -= ends

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                target.sendall(content)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


class Pod:
    """A container of the chart as a process of this machine."""

    def __init__(self, template: helm.Object, secret: dict[str, str], folder: Path) -> None:
        self.container = helm.container(template)
        self.alive = folder / "athanor-program" / "alive"
        self.port = free_port()
        here = f"{POD_IP}:{self.port}"
        self.args = [re.sub(r"0\.0\.0\.0:\d+", here, one) for one in self.container["args"]]
        variables = helm.environment(template, {"athanor": secret}, POD_IP)
        outside = {n: v for n, v in os.environ.items() if n not in variables and not n.startswith("ATHANOR_")}
        often = {"TMPDIR": str(folder), "WATCHDOG_USEC": str(int(3e6 * REPORTS_SECONDS))}
        self.environment = with_repository_on_path({**outside, **variables, **often})
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.process = subprocess.Popen([*PROGRAM, *self.args], env=self.environment)

    def status(self, probe: str, **headers: str) -> int:
        """Return the status of the answer to a probe, requested as a kubelet does; 0 without an answer."""
        settings = self.container[probe]
        return self.get(settings["httpGet"]["path"], settings["timeoutSeconds"], headers)[0]

    def get(self, path: str, seconds: float, headers: dict[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection(POD_IP, self.port, timeout=seconds)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except OSError:
            return 0, ""
        finally:
            connection.close()

    def succeeds(self, probe: str) -> bool:
        command = self.container[probe]["exec"]["command"]
        done = subprocess.run([sys.executable, *command[1:]], env=self.environment, check=False)
        return done.returncode == 0

    def last_report(self) -> float:
        return float(self.alive.read_text())


def free_port() -> int:
    with socket.create_server((POD_IP, 0)) as probe:
        return int(probe.getsockname()[1])


@pytest.fixture
def relay(running_stores: None) -> Iterator[Relay]:
    """In front of PostgreSQL."""
    address = urlsplit(os.environ["DATABASE_URL"])
    made = Relay(address.hostname or "", address.port or 5432)
    yield made
    made.shutdown()
    made.server_close()


@pytest.fixture
def pods(relay: Relay, tmp_path: Path) -> Iterator[dict[str, Pod]]:
    secret = dict(os.environ)
    of_relay = f"@{POD_IP}:{relay.server_address[1]}/"
    address = urlsplit(secret["DATABASE_URL"])
    secret["DATABASE_URL"] = secret["DATABASE_URL"].replace(f"@{address.hostname}:{address.port}/", of_relay)
    assert of_relay in secret["DATABASE_URL"]
    secret["ATHANOR_BOOTSTRAP_PASSWORD"] = "chosen by the test"
    secret["ATHANOR_METRICS_TOKEN"] = "a token of the test"
    store = f"objectStore.endpoint={os.environ['ATHANOR_S3_ENDPOINT']}"
    templates = helm.pods(helm.render(VALUES, "--set", store))
    made = {}
    for component, template in templates.items():
        folder = tmp_path / component
        folder.mkdir()
        made[component] = Pod(template, secret, folder)
    yield made
    for pod in made.values():
        if pod.process is not None:
            pod.process.kill()
            pod.process.wait()


def test_an_outage_of_the_database_makes_the_web_unready_and_restarts_nothing(
    pods: dict[str, Pod], relay: Relay
) -> None:
    job = pods.pop("prepare")
    for pod in pods.values():
        pod.start()  # before the migrations, as when pods of both start together
    done = subprocess.run([*PROGRAM, *job.args], env=job.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "administrator admin and team demo: made" in done.stdout

    web = pods["web"]
    wait_until(lambda: web.status("startupProbe") == 200, "the web has started", 120)
    wait_until(lambda: web.status("readinessProbe") == 200, "the web is ready", 60)
    assert web.status("readinessProbe", Host="athanor.example") == 200
    assert web.status("readinessProbe", Host="elsewhere.example") == 400
    for component in ("worker", "beat"):
        wait_until(lambda pod=pods[component]: pod.succeeds("startupProbe"), f"{component} has started", 120)

    bearer = {"Authorization": f"Bearer {web.environment['ATHANOR_METRICS_TOKEN']}"}
    assert "athanor_state_up 1.0" in web.get("/metrics", 10, bearer)[1], "plain http, as from Prometheus in the cluster"
    assert web.get("/metrics", 10, {})[0] == 401
    for component in ("worker", "beat"):
        assert pods[component].get("/metrics", 10, {})[0] == 200

    relay.cut()
    wait_until(lambda: web.status("readinessProbe") == 503, "the web is not ready", 60)
    cut_at = {component: pod.last_report() for component, pod in pods.items()}
    for component, pod in pods.items():
        wait_until(
            lambda pod=pod, since=cut_at[component]: pod.last_report() > since + 5 * REPORTS_SECONDS,
            f"{component} reports without a database that it is alive", 60,
        )  # fmt: skip
        assert pod.succeeds("livenessProbe")
        assert pod.process is not None
        assert pod.process.poll() is None
    assert web.status("startupProbe") == 200

    relay.is_cut = False
    wait_until(lambda: web.status("readinessProbe") == 200, "the web is ready again", 60)
    for component, pod in pods.items():
        assert pod.process is not None
        pod.process.send_signal(signal.SIGTERM)
        grace = 60 if component == "worker" else 30
        pod.process.wait(grace)
