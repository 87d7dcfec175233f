"""The program of a container: it serves, and its health check notices when it hangs."""

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local.environment import with_repository_on_path
from deploy.local.handle import wait_until

HUNG_AFTER_SECONDS = 3.0
PROGRAM = [sys.executable, "-m", "athanor.config.program"]


class Container:
    """The web of a container, with a temporary folder of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        often = {"WATCHDOG_USEC": str(int(HUNG_AFTER_SECONDS * 1e6))}
        self.environment = with_repository_on_path({**environment, **often, "TMPDIR": str(folder)})
        command = [*PROGRAM, "web", "--listen", f"127.0.0.1:{self.port}"]
        self.process = subprocess.Popen(command, env=self.environment)

    def answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except OSError:
            return False
        finally:
            connection.close()

    def is_healthy(self) -> bool:
        command = [*PROGRAM, "healthy", "--seconds", str(HUNG_AFTER_SECONDS)]
        return subprocess.run(command, env=self.environment, check=False).returncode == 0


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    made = Container(tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


def test_it_is_healthy_while_it_serves_and_not_when_it_hangs(container: Container) -> None:
    wait_until(container.answers, "it serves", 60)
    wait_until(container.is_healthy, "it has reported that it is alive", 60)
    container.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: not container.is_healthy(), "its last sign of life is too old", 60)
    container.process.send_signal(signal.SIGCONT)
    wait_until(container.is_healthy, "it reports again", 60)
    container.process.send_signal(signal.SIGTERM)
    assert container.process.wait(30) == -signal.SIGTERM  # after its shutdown, uvicorn sends itself the signal again


def manage(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of manage.py as a container does that has no settings yet."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ATHANOR_")}
    return subprocess.run(
        [*PROGRAM, "manage", *arguments],
        env=with_repository_on_path(environment), capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_the_secrets_of_an_installation_are_made_before_there_are_any() -> None:
    made = dict(line.split("=", 1) for line in manage("generate_secrets").stdout.splitlines())
    assert len(made["ATHANOR_SECRET_KEY"]) >= 48
    assert len(set(made.values())) == len(made)
    environment = {name: value for name, value in made.items() if name in {"ATHANOR_SECRET_KEY", "ATHANOR_MASTER_KEY"}}
    command = [*PROGRAM, "manage", "showmigrations", "--help"]
    done = subprocess.run(command, env=with_repository_on_path(environment), capture_output=True, text=True, check=True)
    assert "showmigrations" in done.stdout


def test_a_command_of_manage_py_has_its_exit_status_and_arguments() -> None:
    refused = manage("migrate")
    assert refused.returncode == 1
    assert "ATHANOR_SECRET_KEY and ATHANOR_MASTER_KEY must be set" in refused.stderr
    assert manage("generate_master_key", "--nothing").returncode == 2


def test_an_address_that_cannot_be_listened_on_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for address in (f"127.0.0.1:{taken.getsockname()[1]}", "8700:", "127.0.0.1:99999"):
            environment = with_repository_on_path(dict(os.environ))
            done = subprocess.run(
                [*PROGRAM, "web", "--listen", address], env=environment, capture_output=True, text=True, check=False
            )
            assert done.returncode == 1
            assert done.stderr.startswith(f"athanor: --listen {address}: "), done.stderr
            assert "Traceback" not in done.stderr
