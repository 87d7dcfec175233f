"""A user who registers clusters over HTTP cannot make the server run programs, read files or reach its own network."""

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from athanor.accounts.models import AuditEvent, Team, User
from athanor.accounts.roles import PlatformRole
from athanor.backends.slurm.backend import SlurmBackend
from athanor.clusters import server_config
from athanor.clusters.models import Cluster, Pool
from athanor.config.env import EnvironmentProblem, read
from athanor.dispatch.services import backend_of
from athanor.fleet.clusters import config_problems
from athanor.jobs.models import Job
from tests.control_plane import drive
from tests.control_plane.conftest import Api

pytestmark = pytest.mark.django_db
REST = {"kind": "rest", "url": "http://127.0.0.1:9", "user": "x"}


@pytest.fixture
def operator(make_user: Callable[..., User], other_team: Team) -> Api:
    user = make_user("root", other_team)
    User.objects.filter(pk=user.pk).update(platform_role=PlatformRole.PLATFORM_ADMIN.value)
    client = Api()
    client.force_login(User.objects.get(pk=user.pk))
    return client


@pytest.fixture
def directory(settings: Any, tmp_path: Path) -> Path:
    """The server's directory; `allow` below sets the addresses."""
    folder = tmp_path / "clusters"
    folder.mkdir()
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"cluster_config_dir": folder})
    return folder


@pytest.fixture
def listener() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Return the URL of a server on loopback and the headers of requests that reach it."""
    seen: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(dict(self.headers))
            self.send_response(500)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Do not log requests."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("kind", "config", "pointer"),
    [
        ("local", {"command": ["/bin/sh", "-c", "id"]}, "/config/command"),
        ("local", {"directory": "/etc"}, "/config/directory"),
        ("local", {"profile": {"environment": {"LD_PRELOAD": "/tmp/x.so"}}}, "/config/profile/environment"),
        ("local", {"profile": {"cache_directory": "/etc"}}, "/config/profile/cache_directory"),
        ("slurm", {"log_directory": "/x", "command": ["/bin/sh"]}, "/config/command"),
        ("slurm", {"log_directory": "/x", "slurm_conf": "/tmp/slurm.conf"}, "/config/slurm_conf"),
        ("slurm", {"log_directory": "/x", "profile": {"environment": {"NCCL_DEBUG": "INFO", "PATH": "/tmp"}}},
         "/config/profile/environment/PATH"),
        ("slurm", {"log_directory": "/x", "transport": REST}, "/config/transport/url"),
        ("slurm", {"log_directory": "/x", "transport": {**REST, "token_file": "/etc/passwd"}},
         "/config/transport/token_file"),
        ("slurm", {"log_directory": "/x", "transport": {"kind": "ssh", "host": "h", "user": "u",
         "identity_file": "../id", "known_hosts_file": "known"}}, "/config/transport/identity_file"),
        ("kubernetes", {"image": "x", "kubeconfig_file": "/tmp/evil.yaml"}, "/config/kubeconfig_file"),
        ("kubernetes", {"image": "x", "command": ["sh"]}, "/config/command"),
        ("kubernetes", {"image": "x", "security": {"level": "privileged"}}, "/config/security/level"),
        ("kubernetes", {"image": "x", "cache": {"host_path": "/"}, "profile": {"cache_directory": "/c"}},
         "/config/cache/host_path"),
        ("fake_cluster", {"address": "127.0.0.1:80"}, "/config/address"),
    ],
)  # fmt: skip
def test_what_only_the_server_may_set_is_refused_wherever_it_is_written(
    operator: Api, directory: Path, kind: str, config: dict[str, Any], pointer: str
) -> None:
    row = Cluster.objects.create(name="old", kind=kind, config={})
    for method, where, body in (
        ("POST", "clusters", {"name": "evil", "kind": kind}),
        ("POST", "clusters:check", {"kind": kind}),
        ("PATCH", f"clusters/{row.id}", {}),
    ):
        answer = operator.send(method, where, {**body, "config": config})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_config"), (where, answer.content)
        assert pointer in {error["pointer"] for error in answer.json()["errors"]}, where
    assert not Cluster.objects.filter(name="evil").exists()
    Cluster.objects.filter(pk=row.pk).update(config=config)  # as it was written before the rule, or past it
    with pytest.raises(server_config.ConfigRefused):
        backend_of(Cluster.objects.get(pk=row.pk))
    assert pointer in {problem.pointer for problem in config_problems(Cluster.objects.get(pk=row.pk))}


def test_a_row_with_a_command_starts_nothing(
    directory: Path, submit: Callable[..., Job], pool: Pool, tmp_path: Path
) -> None:
    """Neither the row's, written past the API, nor anything else of it."""
    trace = tmp_path / "ran"
    Cluster.objects.filter(pk=pool.cluster_id).update(
        kind="local", config={"command": ["/bin/sh", "-c", f"id > {trace}"], "directory": str(tmp_path / "jobs")}
    )
    job = submit()
    drive.scheduling.admit()
    drive.settle()
    assert not trace.exists() and not (tmp_path / "jobs").exists()
    assert not job.attempts.exclude(backend_id="").exists()


def test_no_token_of_the_server_reaches_an_address_that_is_not_allowed(
    operator: Api, directory: Path, settings: Any, listener: tuple[str, list[dict[str, str]]]
) -> None:
    url, seen = listener
    (directory / "slurm_token").write_text("SITE-TOKEN")
    config = {"log_directory": "/x", "transport": {**REST, "url": url, "token_file": "slurm_token"}}
    body = {"kind": "slurm", "config": config}
    refused = operator.send("POST", "clusters:check", body).json()
    assert refused["errors"][0]["code"] == "url_not_allowed"
    assert "ATHANOR_CLUSTER_URLS" in refused["errors"][0]["detail"]
    assert seen == []
    settings.ATHANOR = settings.ATHANOR.model_copy(update={"cluster_urls": url})  # the remedy
    assert operator.send("POST", "clusters:check", body).status_code == 200
    assert seen[0]["X-SLURM-USER-TOKEN"] == "SITE-TOKEN"
    event = AuditEvent.objects.get(action="cluster.check")
    assert event.after is not None
    assert url in event.after["config"]


def test_the_servers_part_wins_and_may_hold_everything(operator: Api, directory: Path) -> None:
    part = {"command": ["/opt/python", "-m", "trainer.agent"], "slurm_conf": "/etc/slurm.conf", "partition": "gpu"}
    path = server_config.write("iron", "slurm", part)
    assert path.stat().st_mode & 0o777 == 0o600
    body = {"name": "iron", "kind": "slurm", "config": {"log_directory": "/shared", "partition": "cpu"}}
    made = operator.send("POST", "clusters", body)
    assert made.status_code == 201, made.content
    assert made.json()["setup"]["config"] == body["config"], "the server's part is not shown"
    backend = backend_of(Cluster.objects.get(name="iron"))
    assert isinstance(backend, SlurmBackend)
    effective = server_config.effective("iron", "slurm", body["config"])
    assert effective == {"log_directory": "/shared", **part}
    other = operator.send("POST", "clusters:check", {"name": "iron", "kind": "kubernetes", "config": {"image": "x"}})
    assert other.json()["errors"][0]["pointer"] == "/kind"
    path.write_text("[]")
    broken = operator.send("POST", "clusters:check", {**body})
    assert "iron.cluster.json in ATHANOR_CLUSTER_CONFIG_DIR is not" in broken.json()["detail"]


def test_files_are_named_plainly(directory: Path) -> None:
    written = {"image": "x", "kubeconfig_file": "training.kubeconfig"}
    found = server_config.effective("k", "kubernetes", written)
    assert found["kubeconfig_file"] == str(directory / "training.kubeconfig")
    assert written["kubeconfig_file"] == "training.kubeconfig"
    ssh = {"kind": "ssh", "host": "h", "user": "u", "identity_file": "key", "known_hosts_file": "hosts"}
    found = server_config.effective("s", "slurm", {"transport": ssh, "slurm_conf": "/etc/of/the/login/node.conf"})
    assert found["transport"]["identity_file"] == str(directory / "key")
    assert found["slurm_conf"] == "/etc/of/the/login/node.conf", "by ssh it is a file of the login node"


def test_the_schema_says_what_http_may_write(operator: Api) -> None:
    kinds = {item["kind"]: item["configuration"] for item in operator.send("GET", "clusters:kinds").json()["items"]}
    assert not {"command", "directory"} & set(kinds["local"]["properties"])
    assert "directory" not in kinds["local"].get("required", [])
    assert "environment" not in kinds["local"]["$defs"]["ClusterProfile"]["properties"]
    assert "ATHANOR_CLUSTER_CONFIG_DIR" in kinds["kubernetes"]["properties"]["kubeconfig_file"]["description"]
    assert "command" not in kinds["slurm"]["properties"]
    assert set(kinds["kubernetes"]["$defs"]["CacheVolume"]["properties"]) == {"claim"}
    assert {"level"} == {"level", "run_as_user"} - set(kinds["kubernetes"]["$defs"]["Security"]["properties"])
    assert "environment" in kinds["slurm"]["$defs"]["ClusterProfile"]["properties"]


def test_an_older_row_runs_again_after_the_operator_has_adopted_it(directory: Path, capsys: Any) -> None:
    old = {
        "image": "x", "kubeconfig_file": "/etc/athanor/training.kubeconfig", "command": ["python3", "-m", "trainer"],
        "profile": {"environment": {"A": "b"}},
    }  # fmt: skip
    row = Cluster.objects.create(name="training", kind="kubernetes", config=old)
    call_command("adopt_cluster_config", "training", dry_run=True)
    assert "/etc/athanor/training.kubeconfig" in capsys.readouterr().out
    assert not server_config.server_file("training").exists()
    call_command("adopt_cluster_config", "training")
    row.refresh_from_db()
    assert row.config == {"image": "x", "profile": {"environment": {"A": "b"}}}
    assert server_config.effective("training", "kubernetes", row.config) == old
    assert json.loads(server_config.server_file("training").read_text())["kind"] == "kubernetes"
    assert AuditEvent.objects.filter(action="cluster.adopt_config", target_id=row.id).exists()
    call_command("adopt_cluster_config", "training")
    assert "holds nothing that belongs to the server" in capsys.readouterr().out
    with pytest.raises(CommandError, match="there is no cluster 'none'; there are: training"):
        call_command("adopt_cluster_config", "none")


@pytest.mark.parametrize("text", ["slurm.example.org", "https://slurm.example.org/path", "ftp://x"])
def test_a_bad_list_of_addresses_is_refused_at_start(text: str) -> None:
    with pytest.raises(EnvironmentProblem, match="ATHANOR_CLUSTER_URLS"):
        read({"ATHANOR_CLUSTER_URLS": text})
