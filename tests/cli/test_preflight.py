"""`athanor preflight`: what it asks for and prints."""

import json
from typing import Any

JOB = "job_01HZZZZZZZZZZZZZZZZZZZZZZZ"
PATH = f"GET /api/v1/jobs/{JOB}/preflights"
MEASURE = {
    "name": "memory bandwidth", "unit": "bytes_per_second", "count": 2, "median": 2.0e12, "lowest": 9.0e11,
    "lowest_at": "n2, rank 1", "highest": 2.0e12, "expected": 2.039e12,
}  # fmt: skip
FINDING = {"severity": "slow", "nodes": ["n2"], "because": "memory bandwidth of n2, rank 1 is 900 GB/s"}
FOUND = {
    "attempt": 2, "time": "2026-03-01T10:00:00Z", "result": "slow", "ranks": 2, "nodes": 2, "device": "A100",
    "seconds": 9.25, "measures": [MEASURE], "findings": [FINDING], "skipped": [],
    "collectives": [
        {"name": "all_reduce", "bytes": 2**26, "seconds": 0.0008, "bus_bytes_per_second": 1.6e11, "expected": None}
    ],
}  # fmt: skip


def test_the_newest_preflight_is_printed(server: Any, athanor: Any, answer: Any) -> None:
    server.answer(PATH, answer({"items": [FOUND, {**FOUND, "attempt": 1}], "next_cursor": None}))
    output = athanor("preflight", JOB).stdout
    assert "attempt 2" in output
    assert "attempt 1" not in output
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert "2 ranks on 2 nodes, A100, measured in 9.2 s" in lines
    assert "memory bandwidth 2 TB/s 900 GB/s n2, rank 1 2 TB/s 2.04 TB/s" in lines
    assert "all_reduce 64 MiB 800 us 160 GB/s -" in lines
    assert "slow: memory bandwidth of n2, rank 1 is 900 GB/s" in lines
    assert json.loads(athanor("preflight", JOB, "--all", "--json").stdout)[1]["attempt"] == 1


CLUSTER = "cls_01HZZZZZZZZZZZZZZZZZZZZZZZ"
NODE = f"/api/v1/clusters/{CLUSTER}/nodes/n1"
RUN = {
    "id": "pre_01HZZZZZZZZZZZZZZZZZZZZZZZ", "cause": "manual", "actor": "ada", "outcome": "", "detail": "",
    "pool": "gpu", "created_at": "2026-03-01T10:00:00Z", "submitted_at": None, "ended_at": None, "report": None,
}  # fmt: skip


def test_a_node_is_measured_and_its_result_awaited(server: Any, athanor: Any, answer: Any) -> None:
    older = {**RUN, "id": "pre_old", "outcome": "stopped", "detail": "a job needed the slots", "cause": "incident"}
    older = {**older, "actor": ""}
    pages = [
        answer({"items": [row, older], "next_cursor": None})
        for row in (RUN, {**RUN, "outcome": "slow", "report": FOUND}, {**RUN, "outcome": "ok", "report": FOUND})
    ]
    server.answer("GET /api/v1/clusters", answer({"items": [{"id": CLUSTER, "name": "iron"}], "next_cursor": None}))
    server.answer(f"POST {NODE}:preflight", answer(RUN, 201))
    server.answer(f"GET {NODE}/preflights", *pages)
    measured = athanor("preflight", "--node", "n1", "--cluster", "iron")
    assert measured.returncode == 1
    assert "started by ada: slow" in measured.stdout
    assert "slow: memory bandwidth of n2" in measured.stdout
    shown = athanor("preflight", "--node", "n1", "--cluster", "iron", "--all")
    assert "started after an incident: stopped\na job needed the slots" in shown.stdout
    assert shown.returncode == 0
    assert athanor("preflight", "--node", "n1").returncode == 2


def test_a_job_without_one_says_how_to_ask_for_it(server: Any, athanor: Any, answer: Any) -> None:
    server.answer(PATH, answer({"items": [], "next_cursor": None}))
    assert "preflight: true" in athanor("preflight", JOB).stdout
