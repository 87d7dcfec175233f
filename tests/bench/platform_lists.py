"""GET /jobs among 100,000 jobs of a team, by each filter, first and deep pages of 50. Aim: p95 <= 60 ms.

Beside it what the same page costs without the platform: the rows by one index, with their JSON, by psycopg alone.
"""

import json
import time
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from ulid import ULID

from tests.bench.platform_stack import api, made_attempts, private_stack, settings_of, small_job
from tests.bench.platform_telemetry import Sender, spread, timed

JOBS = 100_000
BARE = "SELECT * FROM jobs_job WHERE team_id = (SELECT team_id FROM jobs_job LIMIT 1) ORDER BY id DESC LIMIT 50"
REQUESTS = 60
FILTERS = {
    "no filter": "",
    "team": "team={team}",
    "status=succeeded": "status=succeeded",
    "status=running (1 in 5,000)": "status=running",
    "status=queued,running": "status=queued,running",
    "project": "project=project-7",
    "label (1 in 500)": "label.sweep=123",
    "label (1 in 2)": "label.env=prod",
    "q, a part of the name": "q=ama-99",
    "q, a part of few names": "q=996-lr3",
    "q, in no name": "q=zzz",
    "created_after, an hour": "created_after={hour}",
    "person": "created_by=admin",
    "sort=-loss": "sort=-loss",
    "sort=name": "sort=name",
}


def measure() -> dict[str, Any]:
    with private_stack() as stack:
        stack.suspend("supervisor")  # which would start a frozen worker again
        stack.suspend("worker")  # it would end the rows that no backend knows
        try:
            with api(stack) as client:
                headers = {"Idempotency-Key": str(uuid.uuid4())}
                client.post("/jobs", json=small_job(), headers=headers).raise_for_status()
            began = time.perf_counter()
            made_attempts(stack, 1, jobs=JOBS)
            filled = time.perf_counter() - began
            reader = Sender(stack.credentials["url"], stack.credentials["token"])
            hour = (datetime.now(UTC) - timedelta(hours=1)).isoformat().replace("+00:00", "Z")
            found: dict[str, Any] = {"seconds_to_fill": filled, "lists": {}}
            for name, query in FILTERS.items():
                path = f"/api/v1/jobs?limit=50&{query.format(team=stack.credentials['team'], hour=hour)}"
                found["lists"][name] = _pages(reader, path)
            with psycopg.connect(settings_of(stack)["DATABASE_URL"], autocommit=True) as bare:
                found["bare"] = spread(timed(lambda: bare.execute(BARE).fetchall(), REQUESTS))
            return found
        finally:
            stack.resume("worker")
            stack.resume("supervisor")


def _pages(reader: Sender, path: str) -> dict[str, Any]:
    """The first page, and one from 80 % of the way down where there is one."""
    first = json.loads(reader.get(path))
    answer = {"first": spread(timed(lambda: reader.get(path), REQUESTS)), "rows": len(first["items"])}
    if first["next_cursor"]:
        deep = f"{path}&cursor={first['next_cursor'] if 'sort=' in path else _cursor(first)}"
        answer["deep"] = spread(timed(lambda: reader.get(deep), REQUESTS))
    return answer


def _cursor(first: dict[str, Any]) -> str:
    """Of a page that begins 80 % of the way down, in the order of creation."""
    moment = datetime.fromisoformat(first["items"][0]["created_at"]) - timedelta(seconds=JOBS * 0.8)
    return f"job_{ULID.from_datetime(moment)}"


def lines(figures: dict[str, Any]) -> list[str]:
    text_lines = [
        f"  {JOBS:,} jobs, pages of 50, p50 / p95 (aim p95 <= 60 ms); bare rows {figures['bare']['p95_ms']:.1f} ms"
    ]
    for name, pages in figures["lists"].items():
        deep = pages.get("deep")
        further = f", deep {deep['p50_ms']:.0f} / {deep['p95_ms']:.0f} ms" if deep else ""
        first = pages["first"]
        text_lines.append(
            f"  {name}: first {first['p50_ms']:.0f} / {first['p95_ms']:.0f} ms ({pages['rows']} jobs){further}"
        )
    return text_lines


if __name__ == "__main__":
    print("\n".join(lines(measure())))
