"""How long migrations since the first release keep others from a table of 1,000,000 jobs. Aim: at most 2 s.

The programs of a private stack stand still while its migrations are undone down to the first release and applied again.
Meanwhile a client for each table takes the locks of a read and of a write, over and over; its longest wait counts.
"""

import subprocess
import sys
import threading
import time
from typing import Any

import psycopg

from deploy.local.environment import REPOSITORY
from deploy.local.handle import StackHandle, wait_until
from tests.bench.platform_stack import api, made_attempts, private_stack, settings_of, small_job
from tests.control_plane.test_expanding_migrations import FIRST_RELEASE

JOBS = 1_000_000
AIM_SECONDS = 2.0
# What migrations can lock, and a large table each: jobs, their labels and events, and what each request reads.
TABLES = (
    "jobs_job", "jobs_label", "jobs_jobevent", "telemetry_progress", "accounts_team", "accounts_user",
    "quotas_quotanode", "webhooks_webhook",
)  # fmt: skip


class Client:
    """Takes the locks of a read and of a write of a table, over and over, until it is stopped."""

    def __init__(self, url: str, table: str) -> None:
        self.table, self.longest, self.requests = table, 0.0, 0
        self._url = url
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_until(lambda: self.requests > 0, f"a request to {table}")

    def stop(self) -> None:
        """Stop after the request that runs."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stopped.is_set():
                began = time.perf_counter()
                connection.execute(f"SELECT 1 FROM {self.table} LIMIT 1").fetchall()
                connection.execute(f"DELETE FROM {self.table} WHERE false")  # takes the lock of a write
                self.longest = max(self.longest, time.perf_counter() - began)
                self.requests += 1


def measure() -> dict[str, Any]:
    with private_stack() as stack:
        with api(stack) as client:
            client.post("/jobs", json=small_job()).raise_for_status()
        for program in ("supervisor", "worker", "web"):
            stack.suspend(program)
        try:
            began = time.perf_counter()
            made_attempts(stack, 1, jobs=JOBS)
            filled = time.perf_counter() - began
            return {"seconds_to_fill": filled, "jobs": JOBS, **_measure(stack)}
        finally:
            for program in ("web", "worker", "supervisor"):
                stack.resume(program)


def _measure(stack: StackHandle) -> dict[str, Any]:
    environment = settings_of(stack)
    owner = environment["ATHANOR_MIGRATION_DATABASE_URL"]
    apps = _apps_since_the_first_release(environment)
    for app in apps:
        _migrate(environment, app, FIRST_RELEASE.get(app, "zero"))
    with psycopg.connect(owner, autocommit=True) as connection:
        rows = {
            table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # type: ignore[index] # a count
            for table in TABLES
        }
    clients = [Client(owner, table) for table in TABLES]
    began = time.perf_counter()
    _migrate(environment)
    seconds = time.perf_counter() - began
    for each in clients:
        each.stop()
    return {
        "apps": apps,
        "seconds": seconds,
        "waits": {each.table: {"rows": rows[each.table], "longest_seconds": each.longest} for each in clients},
    }


def _apps_since_the_first_release(environment: dict[str, str]) -> list[str]:
    """Return the apps with migrations after the first release."""
    newest: dict[str, str] = {}
    for line in _manage(environment, "showmigrations", "--plan").splitlines():
        app, _, name = line.split()[-1].partition(".")
        newest[app] = name
    ours = {path.parent.name for path in (REPOSITORY / "platform" / "athanor").glob("*/migrations")}
    return sorted(app for app in newest if app in ours and newest[app] > FIRST_RELEASE.get(app, ""))


def _migrate(environment: dict[str, str], *target: str) -> None:
    _manage(environment, "migrate", "--verbosity=0", *target)


def _manage(environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "manage.py", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"manage.py {' '.join(arguments)} failed: {done.stderr[-2000:]}")
    return done.stdout


def lines(figures: dict[str, Any]) -> list[str]:
    head = (
        f"  migrations of {', '.join(figures['apps'])} in {figures['seconds']:.1f} s; longest wait of a client "
        f"for a table (aim <= {AIM_SECONDS:g} s)"
    )
    return [head] + [
        f"  {table} ({found['rows']:,} rows): {found['longest_seconds'] * 1e3:.0f} ms"
        for table, found in figures["waits"].items()
    ]


if __name__ == "__main__":
    print("\n".join(lines(measure())))
