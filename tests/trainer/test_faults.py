"""A few cells of the fault kit (`tests/chaos/faults`); `make chaos` runs all of them, and random kills."""

import json
from pathlib import Path

import pytest

from tests.chaos.faults.cells import Cells
from tests.chaos.faults.check import trained
from tests.chaos.faults.table import KINDS, PHASES, cell


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Cells:
    return Cells(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize(
    ("kind", "phase"),
    [("exit", "start"), ("kill", "step"), ("disk", "export"), ("platform", "checkpoint")] + [("bit", "backward")],
)
def test_a_run_survives_a_fault(cells: Cells, kind: str, phase: str) -> None:
    result = cells.run(kind, phase)
    if result.verdict == "skipped":
        pytest.skip(result.because)
    assert result.verdict == "ok", result.problems


def test_each_cell_has_an_outcome_or_a_reason() -> None:
    impossible = {(kind, phase) for kind in KINDS for phase in PHASES if isinstance(cell(kind, phase), str)}
    assert {kind for kind, _ in impossible} == {"shard", "bit"}


def write_records(folder: Path, group: str, rank: int, steps: list[int], row: str) -> None:
    lines = [json.dumps({"step": step, "rows": [f"{row}{step}"], "is_applied": True}) for step in steps]
    (folder / f"{group}-{rank:02}-1{rank}.jsonl").write_text("\n".join(lines))


def test_steps_that_were_rolled_back_do_not_count(tmp_path: Path) -> None:
    write_records(tmp_path, "01-000", 0, [0, 1, 2, 3], "a")
    write_records(tmp_path, "01-000", 1, [0, 1, 2], "b")
    write_records(tmp_path, "01-001", 0, [2, 3], "c")
    found = trained(tmp_path)
    assert {step: sorted(rows) for step, rows in found.rows.items()} == {
        0: ["a0", "b0"], 1: ["a1", "b1"], 2: ["c2"], 3: ["c3"],
    }  # fmt: skip
    assert set(found.times.values()) == {1}


def test_a_step_that_is_applied_twice_is_seen(tmp_path: Path) -> None:
    write_records(tmp_path, "01-000", 0, [0, 1, 1, 2], "a")
    assert trained(tmp_path).times == {0: 1, 1: 2, 2: 1}
