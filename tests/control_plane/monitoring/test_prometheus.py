"""A real Prometheus scrapes the web, and evaluates the alert rules and the panels of the dashboards."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.db import connection

from deploy.local.environment import with_repository_on_path
from deploy.local.handle import wait_until
from deploy.monitoring.__main__ import EXAMPLE_URL, files
from deploy.monitoring.alerts import ALERTS
from deploy.monitoring.dashboards import DASHBOARDS

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs prometheus"),
]
TOKEN = "scrape-token-of-the-tests"
PATIENCE_SECONDS = 60


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


class Prometheus:
    """A server that scrapes the web each second."""

    def __init__(self, folder: Path, web: int) -> None:
        self.port = free_port()
        (folder / "token").write_text(TOKEN)
        (folder / "rules.yaml").write_text(files(EXAMPLE_URL)["athanor.rules.yaml"])
        scrape = {
            "job_name": "athanor",
            "authorization": {"credentials_file": str(folder / "token")},
            "static_configs": [{"targets": [f"127.0.0.1:{web}"]}],
        }
        every = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        settings = {"global": every, "rule_files": ["rules.yaml"], "scrape_configs": [scrape]}
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
        self.process = subprocess.Popen(
            [
                "prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn",
            ],
        )  # fmt: skip

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:
                return json.load(response)["data"]
        except OSError:
            return {}

    def value(self, expr: str) -> float | None:
        found = self.get("query", query=expr).get("result", [])
        return float(found[0]["value"][1]) if found else None

    def rules(self) -> dict[str, dict[str, Any]]:
        groups = self.get("rules").get("groups", [])
        return {rule["name"]: rule for group in groups for rule in group["rules"]}


@pytest.fixture
def web() -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The web on the database of the tests, with the port on which it listens."""
    port = free_port()
    database = urllib.parse.urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{connection.settings_dict['NAME']}")
    environment = {**os.environ, "DATABASE_URL": database.geturl(), "ATHANOR_METRICS_TOKEN": TOKEN}
    process = subprocess.Popen(
        [sys.executable, "-m", "athanor.config.program", "web", "--listen", f"127.0.0.1:{port}"],
        env=with_repository_on_path(environment),
    )
    yield process, port
    process.kill()
    process.wait()


@pytest.fixture
def prometheus(web: tuple[subprocess.Popen[bytes], int], tmp_path: Path) -> Iterator[Prometheus]:
    server = Prometheus(tmp_path, web[1])
    yield server
    server.process.terminate()
    server.process.wait()


def test_it_scrapes_evaluates_and_notices_that_the_web_is_gone(
    prometheus: Prometheus, web: tuple[subprocess.Popen[bytes], int]
) -> None:
    scrapes = 'sum(athanor_http_request_seconds_count{route="metrics",status="2xx"})'
    wait_until(lambda: prometheus.value(scrapes) is not None, "the second scrape counts the first", PATIENCE_SECONDS)
    assert prometheus.value("athanor_state_up") == 1.0
    labels = prometheus.get("labels")
    assert "task" in labels
    # `job` and `instance` are labels of the target: a metric's own would become exported_job.
    assert [label for label in labels if label.startswith("exported_")] == []
    wait_until(
        lambda: {rule["health"] for rule in prometheus.rules().values()} == {"ok"},
        "every rule is evaluated without an error", PATIENCE_SECONDS,
    )  # fmt: skip
    assert prometheus.rules().keys() == {alert.name for alert in ALERTS}
    for board in DASHBOARDS:
        for panel in board.panels:
            for expr in panel.queries.values():
                found = prometheus.get("query", query=re.sub(r"\$\w+", "x", expr))
                assert found, (board.name, panel.title, expr)
    assert prometheus.rules()["AthanorDown"]["state"] == "inactive"
    web[0].kill()
    wait_until(
        lambda: prometheus.rules()["AthanorDown"]["state"] == "pending", "the alert is pending", PATIENCE_SECONDS
    )
