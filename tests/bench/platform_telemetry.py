"""Metrics through the API, compared with one row per point in plain PostgreSQL (the layout of MLflow's table, no
server).

A point is one value of one series at one step. Targets: >= 100,000 points/s in batches of 1,000; a batch of 10 at a p50
<= 5 ms; a chart of one series of 1,000,000 points at 1,000 pixels at a p95 <= 50 ms; 50 runs x 5 series in one request
<= 300 ms. All services run; the attempts are those of a simulated cluster.
"""

import http.client
import json
import random
import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import psycopg

from deploy.local.handle import StackHandle
from tests.bench.platform_stack import private_stack, processor_seconds, settings_of, simulated_attempts

WRITERS = 4
SECONDS = 5.0
LONG = 1_000_000
RUNS, SERIES, STEPS = 50, 5, 2_000
TABLE = """
CREATE TABLE bare_metrics (key varchar(250), value double precision, timestamp bigint, run_uuid varchar(32),
  step bigint, is_nan boolean, PRIMARY KEY (key, timestamp, step, run_uuid, value, is_nan));
CREATE INDEX ON bare_metrics (run_uuid);
"""
INSERT = "INSERT INTO bare_metrics VALUES (%s, %s, %s, %s, %s, %s)"


class Sender:
    """One connection that stays open. The client shares the processors with the server: it does as little as it can."""

    def __init__(self, url: str, token: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc)
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def post(self, path: str, body: bytes) -> bytes:
        return self._send("POST", path, body)

    def get(self, path: str) -> bytes:
        return self._send("GET", path, None)

    def _send(self, method: str, path: str, body: bytes | None) -> bytes:
        self._connection.request(method, path, body, self._headers)
        answer = self._connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:300]!r}")
        return content


def batches(first_step: int, steps: int, names: list[str], writer: str) -> Iterator[bytes]:
    """Bodies of `steps` steps each, for ever."""
    sequence = 0
    while True:
        points = [
            {
                "step": step,
                "time": datetime.now(UTC).isoformat(),  # one of another day would be replaced by that of its arrival
                "values": {name: 10 / (1 + step / 1000) + random.random() / 10 for name in names},
            }
            for step in range(first_step + sequence * steps, first_step + (sequence + 1) * steps)
        ]
        yield json.dumps({"writer": writer, "sequence": sequence, "points": points}).encode()
        sequence += 1


def measure() -> dict[str, Any]:
    with private_stack() as stack:
        return _measured(stack, simulated_attempts(stack, 2 * WRITERS + 2 + RUNS))


def _measured(stack: StackHandle, rows: list[dict[str, str]]) -> dict[str, Any]:
    with psycopg.connect(settings_of(stack)["ATHANOR_MIGRATION_DATABASE_URL"], autocommit=True) as bare:
        bare.execute(TABLE)
        return {
            "ingest_1000": _ingest_many(stack, rows[:WRITERS], steps=1000, names=["train/loss"]),
            "ingest_125x8": _ingest_many(stack, rows[WRITERS : 2 * WRITERS], steps=125, names=_names(8)),
            "bare_1000": _bare_ingest(bare, 1000),
            "ingest_10": _ingest_few(stack, rows[2 * WRITERS]),
            "bare_10": _bare_ingest(bare, 10),
            "chart": _chart(stack, rows[2 * WRITERS + 1]),
            "bare_chart": _bare_chart(bare),
            "runs": _runs(stack, rows[2 * WRITERS + 2 :]),
            "bare_runs": _bare_runs(bare),
        }


def _names(count: int) -> list[str]:
    return [f"series/{number}" for number in range(count)]


def _ingest_many(stack: StackHandle, rows: list[dict[str, str]], *, steps: int, names: list[str]) -> dict[str, Any]:
    """Ingest from concurrent writers, one attempt each. Request bodies are prepared before the measurement."""
    made = [[next(bodies) for _ in range(150)] for bodies in (batches(0, steps, names, "rank0") for _ in rows)]
    deadline = time.monotonic() + SECONDS

    def send(row: dict[str, str], bodies: list[bytes]) -> list[float]:
        sender, taken = Sender(stack.credentials["url"], row["token"]), []
        for body in bodies:
            began = time.perf_counter()
            sender.post("/api/agent/v1/metrics", body)
            taken.append(time.perf_counter() - began)
            if time.monotonic() > deadline:
                break
        return taken

    used, began = processor_seconds(stack), time.perf_counter()
    with ThreadPoolExecutor(len(rows)) as pool:
        taken = [one for part in pool.map(send, rows, made) for one in part]
    seconds, used = time.perf_counter() - began, processor_seconds(stack) - used
    points = len(taken) * steps * len(names)
    return {"points_per_second": points / seconds, "points_per_processor_second": points / used, **spread(taken)}


def _ingest_few(stack: StackHandle, row: dict[str, str]) -> dict[str, Any]:
    bodies = batches(0, 10, ["train/loss"], "rank0")
    sender = Sender(stack.credentials["url"], row["token"])
    return spread(timed(lambda: sender.post("/api/agent/v1/metrics", next(bodies)), 600, before=50))


def _chart(stack: StackHandle, row: dict[str, str]) -> dict[str, Any]:
    sender = Sender(stack.credentials["url"], row["token"])
    bodies = batches(0, 5000, ["train/loss"], "rank0")
    began = time.perf_counter()
    for _ in range(LONG // 5000):
        sender.post("/api/agent/v1/metrics", next(bodies))
    filled = time.perf_counter() - began
    reader = Sender(stack.credentials["url"], stack.credentials["token"])
    path = f"/api/v1/jobs/{row['job']}/metrics?names=train/loss&points=1000"
    zoomed = f"{path}&after_step=420000&to_step=470000"
    answer = json.loads(reader.get(path))["series"]["train/loss"]
    assert (answer["steps"][0], answer["steps"][-1]) == (0, LONG - 1)
    assert len(answer["steps"]) > 500
    return {
        "whole": spread(timed(lambda: reader.get(path), 100)),
        "zoomed": spread(timed(lambda: reader.get(zoomed), 100)),
        "seconds_to_fill": filled,
    }


def _runs(stack: StackHandle, rows: list[dict[str, str]]) -> dict[str, Any]:
    for row in rows:
        sender, bodies = Sender(stack.credentials["url"], row["token"]), batches(0, 500, _names(SERIES), "rank0")
        for _ in range(STEPS // 500):
            sender.post("/api/agent/v1/metrics", next(bodies))
    reader = Sender(stack.credentials["url"], stack.credentials["token"])
    asked = {"jobs": [row["job"] for row in rows], "series": _names(SERIES), "points": 500}
    body = json.dumps(asked).encode()
    answer = reader.post("/api/v1/metrics:query", body)
    curves = [curve for item in json.loads(answer)["items"] for curve in item["series"].values()]
    assert len(curves) == RUNS * SERIES
    return {"bytes": len(answer), **spread(timed(lambda: reader.post("/api/v1/metrics:query", body), 40))}


def _row(run: str, step: int) -> tuple[str, float, int, str, int, bool]:
    return "train/loss", 10 / (1 + step / 1000) + random.random() / 10, step * 250, run, step, False


def _bare_ingest(bare: psycopg.Connection, size: int) -> dict[str, Any]:
    """Rows made beforehand, one transaction a batch, one connection: as INSERTs and as COPY."""
    found = {}
    for how, write in (("insert", _insert), ("copy", _copy)):
        run = uuid.uuid4().hex
        made = [[_row(run, number * size + index) for index in range(size)] for number in range(200)]
        began = time.perf_counter()
        taken = timed(lambda made=made, write=write: write(bare, made.pop()), 150, before=20)
        found[how] = {"points_per_second": 170 * size / (time.perf_counter() - began), **spread(taken)}
    return found


def _insert(bare: psycopg.Connection, rows: list[Any]) -> None:
    with bare.transaction(), bare.cursor() as cursor:
        cursor.executemany(INSERT, rows)


def _copy(bare: psycopg.Connection, rows: list[Any]) -> None:
    with bare.transaction(), bare.cursor().copy("COPY bare_metrics FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def _fill(bare: psycopg.Connection, run: str, name: str, steps: int) -> None:
    bare.execute(
        "INSERT INTO bare_metrics SELECT %s, 10.0 / (1 + step / 1000.0) + random() / 10, step * 250, %s, step, false"
        " FROM generate_series(0, %s) AS step",
        (name, run, steps - 1),
    )


def _bare_chart(bare: psycopg.Connection) -> dict[str, Any]:
    """All points of the series, in order, as far as the client; nobody has thinned them out yet."""
    run = uuid.uuid4().hex
    _fill(bare, run, "train/loss", LONG)
    asked = "SELECT step, value, timestamp FROM bare_metrics WHERE run_uuid = %s AND key = %s ORDER BY step"
    return spread(timed(lambda: bare.execute(asked, (run, "train/loss")).fetchall(), 3, before=1))


def _bare_runs(bare: psycopg.Connection) -> dict[str, Any]:
    runs = [uuid.uuid4().hex for _ in range(RUNS)]
    for run in runs:
        for name in _names(SERIES):
            _fill(bare, run, name, STEPS)
    bare.execute("ANALYZE bare_metrics")
    asked = (
        "SELECT run_uuid, key, step, value FROM bare_metrics"
        " WHERE run_uuid = ANY(%s) AND key = ANY(%s) ORDER BY run_uuid, key, step"
    )
    return spread(timed(lambda: bare.execute(asked, (runs, _names(SERIES))).fetchall(), 5, before=1))


def timed(act: Callable[[], Any], count: int, before: int = 5) -> list[float]:
    taken = []
    for number in range(before + count):
        began = time.perf_counter()
        act()
        if number >= before:
            taken.append(time.perf_counter() - began)
    return taken


def spread(taken: list[float]) -> dict[str, float]:
    ordered = sorted(taken)
    return {
        "p50_ms": statistics.median(ordered) * 1e3,
        "p95_ms": ordered[int(len(ordered) * 0.95)] * 1e3,
        "requests": len(ordered),
    }


def lines(figures: dict[str, Any]) -> list[str]:
    bare, chart, runs = figures["bare_1000"], figures["chart"], figures["runs"]
    few, bare_few = figures["ingest_10"], figures["bare_10"]
    one, eight = figures["ingest_1000"], figures["ingest_125x8"]
    return [
        f"  batches of 1,000: {one['points_per_second']:,.0f} points/s of one series a writer, "
        f"{eight['points_per_second']:,.0f} of eight (aim >= 100,000), {WRITERS} writers over HTTP; "
        f"a second of a processor in web and PostgreSQL takes {one['points_per_processor_second']:,.0f} and "
        f"{eight['points_per_processor_second']:,.0f}; bare rows {bare['insert']['points_per_second']:,.0f} by INSERT, "
        f"{bare['copy']['points_per_second']:,.0f} by COPY, one writer",
        f"  batches of 10: p50 {few['p50_ms']:.1f} ms, p95 {few['p95_ms']:.1f} ms (aim p50 <= 5); bare rows "
        f"{bare_few['insert']['p50_ms']:.1f} ms by INSERT, {bare_few['copy']['p50_ms']:.1f} ms by COPY",
        f"  chart of {LONG:,} points at 1,000: p95 {chart['whole']['p95_ms']:.0f} ms (aim <= 50), a zoom into it "
        f"{chart['zoomed']['p95_ms']:.0f} ms; bare rows, only read, {figures['bare_chart']['p50_ms']:.0f} ms",
        f"  {RUNS} runs x {SERIES} series of {STEPS:,} points at 500: p95 {runs['p95_ms']:.0f} ms (aim <= 300), "
        f"{runs['bytes'] / 1e6:.1f} MB; bare rows, only read, {figures['bare_runs']['p50_ms']:.0f} ms",
    ]


if __name__ == "__main__":
    print("\n".join(lines(measure())))
