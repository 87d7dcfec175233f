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


def test_a_command_of_manage_py_has_its_own_arguments_and_exit_status(tmp_path: Path) -> None:
    environment = with_repository_on_path(dict(os.environ))
    done = subprocess.run(
        [*PROGRAM, "manage", "generate_master_key", "--help"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "generate_master_key" in done.stdout
    wrong = subprocess.run([*PROGRAM, "manage", "nothing"], env=environment, capture_output=True, check=False)
    assert wrong.returncode == 1
