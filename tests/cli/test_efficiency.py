"""`athanor efficiency`: what it asks for and prints."""

import json
from typing import Any

JOB = "job_01HZZZZZZZZZZZZZZZZZZZZZZZ"
PATH = f"GET /api/v1/jobs/{JOB}/efficiency"
LOADS = ("gpu_utilisation", "gpu_memory", "gpu_power", "cpu_utilisation", "host_memory", "host_power")
ENERGY = {
    "kwh": 1.5, "source": "mixed", "measured_kwh": 1.0, "measured_slot_seconds": 3600.0, "estimated_kwh": 0.5,
    "estimated_slot_seconds": 1800.0, "unknown_slot_seconds": 600.0, "carbon_grams": 750.0,
    "carbon_slot_seconds": 5400.0,
}  # fmt: skip
FOUND: dict[str, Any] = {
    "currency": "EUR", "slot_seconds": 6000.0, "productive_slot_seconds": 4200.0, "idle_slot_seconds": 600.0,
    "goodput": 0.7, "cost": 3_640_000, "unproductive_cost": 1_092_000,
    "loads": {
        **dict.fromkeys(LOADS),
        "gpu_utilisation": {"mean": 0.35, "p10": 0.05, "highest": 1.0, "highest_at": "n1:3"},
        "gpu_power": {"mean": 412.4, "p10": 120.0, "highest": 702.0, "highest_at": "n1:3"},
    },
    "memory": {
        "peak_bytes": 20 * 2**30, "peak_rank": 3, "mean_peak_bytes": 18 * 2**30, "available_bytes": 80 * 2**30,
        "headroom_bytes": 60 * 2**30,
    },
    "energy": ENERGY,
    "suggestions": [{
        "advice": "fewer_slots", "message": "The slots were 35% in use.", "changes": {"resources": {"nodes": 1}},
        "saving": 1_820_000,
    }],
}  # fmt: skip


def lines(output: str) -> list[str]:
    """Return the lines with single spaces."""
    return [" ".join(line.split()) for line in output.splitlines()]


def test_the_summary_is_a_table_with_advice_or_json(server: Any, athanor: Any, answer: Any) -> None:
    server.answer(PATH, answer(FOUND))
    output = lines(athanor("efficiency", JOB).stdout)
    for line in (
        "slot time 1h 40m", "productive 70.0%, 1h 10m", "idle nodes 10m 00s", "cost 3.64 EUR",
        "not productive 1.09 EUR", "GPU utilisation mean 35%, p10 5%, highest 100% (n1:3)",
        "power of a GPU mean 412 W, p10 120 W, highest 702 W (n1:3)", "CPU utilisation not known",
        "peak memory of a process 20.0 GiB (rank 3) of 80.0 GiB, headroom 60.0 GiB",
        "energy 1.500 kWh, mixed; without 10m 00s slot time of which it is not known",
        "CO2 0.750 kg, of 1h 30m slot time", "fewer slots: saves at most 1.82 EUR (estimate)",
        'change: {"resources": {"nodes": 1}}',
    ):  # fmt: skip
        assert line in output, output
    assert json.loads(athanor("efficiency", JOB, "--json").stdout) == FOUND


def test_what_is_not_known_is_not_a_zero(server: Any, athanor: Any, answer: Any) -> None:
    energy = {
        **dict.fromkeys(ENERGY, 0.0), "kwh": None, "source": "unknown", "carbon_grams": None,
        "unknown_slot_seconds": 6000.0,
    }  # fmt: skip
    unknown = {**FOUND, "loads": dict.fromkeys(LOADS), "memory": None, "energy": energy, "suggestions": []}
    server.answer(PATH, answer(unknown))
    output = lines(athanor("efficiency", JOB).stdout)
    for line in (
        "GPU utilisation not known",
        "peak memory of a process not known",
        "energy not known",
        "CO2 not known",
    ):
        assert line in output, output
    over = {**FOUND["memory"], "available_bytes": 19 * 2**30, "headroom_bytes": -(2**30)}
    server.answer(PATH, answer({**FOUND, "memory": over}))
    assert "peak memory of a process 20.0 GiB (rank 3) of 19.0 GiB, 1.0 GiB above it" in lines(
        athanor("efficiency", JOB).stdout
    )
    server.answer(PATH, answer({**FOUND, "goodput": None}))
    assert athanor("efficiency", JOB).stdout == "No attempt has been launched.\n"
