"""deploy/compose.yaml trains the demo job in the images of `make images`: `make compose-test`.

Needs buildah and podman, and the images in their storage. PostgreSQL, Valkey and SeaweedFS are of an image that is
built here from packages (tests/deploy/images), as there may be no registry.
"""

import json
import os
import shlex
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import httpx
import pytest
import yaml
from botocore.exceptions import ClientError

from deploy.local.administrator import Administrator
from deploy.local.environment import REPOSITORY
from deploy.local.handle import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not os.environ.get("ATHANOR_TEST_COMPOSE"), reason="part of `make compose-test`"),
]

COMPOSE = REPOSITORY / "deploy" / "compose.yaml"
STORES = "localhost/athanor-test/stores"
CURL_REFUSED = 7  # its exit status: the connection is refused
PORTS = ("ATHANOR_PORT", "DATABASE_PORT", "VALKEY_PORT", "STORE_PORT")
# Options for machines where the defaults do not work: of podman, of `podman run`, of `buildah bud`.
RUN_OPTIONS = os.environ.get("ATHANOR_TEST_PODMAN_RUN", "")
BUILD_OPTIONS = shlex.split(os.environ.get("ATHANOR_TEST_BUILD", ""))


def podman(*arguments: str) -> str:
    command = ["podman", *shlex.split(os.environ.get("ATHANOR_TEST_PODMAN", "")), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


class Installation:
    """One that runs by compose.yaml, with secrets, ports and volumes of its own."""

    def __init__(self, folder: Path) -> None:
        self._version = next(iter(podman("images", "--format", "{{.Tag}}", "athanor/platform").split()))
        printed = podman("run", "--rm", *shlex.split(RUN_OPTIONS), f"athanor/platform:{self._version}",
                         "manage", "generate_secrets")  # fmt: skip
        self.secrets = dict(line.split("=", 1) for line in printed.splitlines())
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self._project = f"athanor-test-{os.getpid()}"
        self._environment_file = folder / "environment"
        images = {f"{name}_IMAGE": f"{STORES}:latest" for name in ("POSTGRES", "VALKEY", "STORE")}
        values = {**self.secrets, **self.ports, **images, "ATHANOR_VERSION": self._version}
        self._environment_file.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        self._environment_file.chmod(0o600)
        self.url = f"http://127.0.0.1:{self.ports['ATHANOR_PORT']}"

    def compose(self, *arguments: str) -> None:
        command = [
            str(Path(sys.executable).with_name("podman-compose")), "--in-pod=false",
            f"--podman-args={os.environ.get('ATHANOR_TEST_PODMAN', '')}", f"--podman-run-args={RUN_OPTIONS}",
            "--env-file", str(self._environment_file), "-p", self._project, "-f", str(COMPOSE), *arguments,
        ]  # fmt: skip
        # The settings of the tests' own stack would replace those of the file.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ATHANOR_")}
        subprocess.run(command, env=environment, check=True)

    def container(self, service: str) -> str:
        return f"{self._project}_{service}_1"

    def store_address(self) -> str:
        """Return the address of the store's container, which any process of the machine reaches."""
        known = json.loads(podman("inspect", self.container("store")))[0]["NetworkSettings"]["Networks"]
        return str(next(iter(known.values()))["IPAddress"])

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).is_success
        except httpx.HTTPError:
            return False

    def cli(self, token: str, *arguments: str) -> Any:
        environment = {**os.environ, "ATHANOR_URL": self.url, "ATHANOR_TOKEN": token}
        command = [str(Path(sys.executable).with_name("athanor")), *arguments, "--json"]
        return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [made.getsockname()[1] for made in sockets]
    for made in sockets:
        made.close()
    return ports


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    base = os.environ.get("ATHANOR_TEST_BASE", "python:3.12-slim")
    folder = Path(__file__).with_name("images")
    subprocess.run(
        ["buildah", "bud", "--build-arg", f"BASE={base}", *BUILD_OPTIONS, "-t", STORES,
         "-f", str(folder / "stores.Containerfile"), str(folder)],
        check=True,
    )  # fmt: skip
    made = Installation(tmp_path_factory.mktemp("installation"))
    try:
        made.compose("up", "-d")
        wait_until(made.is_ready, "the platform is ready", 180)
        yield made
    finally:
        made.compose("down", "--volumes", "--timeout", "20")


@pytest.fixture(scope="module")
def token(installation: Installation) -> str:
    administrator = Administrator(
        {"url": installation.url, "username": "admin", "password": installation.secrets["ATHANOR_BOOTSTRAP_PASSWORD"]}
    )
    made: str = administrator.call("POST", "tokens", {"name": "compose test", "team": "demo"})["token"]
    return made


def test_the_demo_job_is_trained_and_its_model_downloaded(
    installation: Installation, token: str, tmp_path: Path
) -> None:
    submitted = installation.cli(token, "submit", "--preset", "demo")

    def status() -> Any:
        return installation.cli(token, "show", submitted["id"])["status"]

    wait_until(lambda: status() in ("succeeded", "failed", "cancelled"), "the job has ended", 600)
    job = installation.cli(token, "show", submitted["id"])
    assert job["status"] == "succeeded"
    assert job["validation_loss"]["after"] < job["validation_loss"]["before"]
    downloaded = installation.cli(token, "download", job["id"], "--output", str(tmp_path / "model"))
    assert any(file["path"].endswith(".safetensors") for file in downloaded["files"])


@pytest.mark.parametrize("service", ["web", "worker", "beat"])
def test_programs_run_unprivileged_on_a_root_that_they_cannot_change(installation: Installation, service: str) -> None:
    lines = podman("exec", installation.container(service), "cat", "/proc/1/status").splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert int(status["Uid"].split()[0]) > 0
    assert int(status["CapEff"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    writes = "import pathlib; pathlib.Path('/opt/athanor/planted').write_text('')"
    with pytest.raises(subprocess.CalledProcessError):
        podman("exec", installation.container(service), "python", "-c", writes)


def test_the_stores_inner_servers_do_not_answer_outside_of_their_container(installation: Installation) -> None:
    for port in (8080, 8181, 8888, 9101, 9333, 18080, 18888, 19333):
        command = ["curl", "-s", "--connect-timeout", "5", f"http://{installation.store_address()}:{port}/"]
        assert subprocess.run(command, check=False).returncode == CURL_REFUSED, port


def test_who_reaches_the_stores_grpc_port_makes_no_access_key(installation: Installation, tmp_path: Path) -> None:
    key = field(1, b"planted") + field(2, b"planted secret")
    identity = field(1, b"planted") + field(2, key) + field(3, b"Admin")
    request = field(1, identity)
    body = tmp_path / "body"
    body.write_bytes(b"\0" + struct.pack(">I", len(request)) + request)
    answer = subprocess.run(
        ["curl", "-sSi", "--http2-prior-knowledge", "--max-time", "20", "-H", "content-type: application/grpc",
         "-H", "te: trailers", "--data-binary", f"@{body}",
         f"http://{installation.store_address()}:18333/messaging_pb.SeaweedS3IamCache/PutIdentity"],
        check=True, stdout=subprocess.PIPE, text=True,
    ).stdout  # fmt: skip
    assert "grpc-status: 16" in answer, "it is not refused as unauthenticated"
    store = boto3.client(
        "s3", endpoint_url=f"http://127.0.0.1:{installation.ports['STORE_PORT']}", region_name="us-east-1",
        aws_access_key_id="planted", aws_secret_access_key="planted secret",
    )  # fmt: skip
    with pytest.raises(ClientError, match="InvalidAccessKeyId"):
        store.list_buckets()


def field(number: int, content: bytes) -> bytes:
    """Return a field of a protobuf message, of less than 128 bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def test_no_secret_is_in_a_command_line_or_a_log(installation: Installation) -> None:
    lines = subprocess.run(["ps", "-eww", "-o", "args"], check=True, stdout=subprocess.PIPE, text=True).stdout
    logs = "".join(
        podman("logs", installation.container(service)) for service in yaml.safe_load(COMPOSE.read_text())["services"]
    )
    for name, value in installation.secrets.items():
        assert value not in lines, name
        assert value not in logs, name
