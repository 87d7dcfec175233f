"""A dry run says what a real run holds and sends."""

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.trainer.counting import counted_step
from tests.trainer.equality import VOCABULARY, Case
from tests.trainer.ranks import RankPool
from tests.trainer.runs import TINY, tiny_training
from trainer.contract import cost
from trainer.contract.cost import RankCost
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.run import EXIT_STATUS, EndClass
from trainer.contract.training import ProcessLayout
from trainer.standalone.dry_run import dry_run, state_bytes

TOLERANCE = 0.06
"""Of bytes sent: shards are filled up to equal sizes, and experts are not chosen quite evenly."""
CASES = [
    (Case("dense", 4, {"zero": 3, "tensor": 2, "micro_batch_sequences": 2}), 0),
    (Case("tied", 2, {"zero": 2, "micro_batch_sequences": 4}), 2**26),
    (Case("dense", 2, {"zero": 1, "micro_batch_sequences": 2}), 0),
    (Case("dense", 4, {"pipeline": 2, "zero": 1, "micro_batch_sequences": 4}), 0),
    (Case("dense", 4, {"zero": 1, "replicate": 2}, training={"precision": "bf16"}), 2**26),
    (Case("moe", 4, {"zero": 0, "expert": 2, "context": 2}, training={"precision": "bf16"}), 0),
    (Case("dense", 4, {"context": 4, "zero": 3}, training={"activation_checkpointing": "full"}), 0),
    (Case("tied", 4, {"pipeline": 2, "tensor": 2, "zero": 0, "micro_batch_sequences": 2}), 0),
    (Case("dense", 4, {"context": 2, "context_attention": "ulysses", "tensor": 2, "zero": 3}), 0),
    (Case("gpt-oss", 2, {"context": 2, "zero": 1}, training={"activation_checkpointing": "full"}), 0),
]


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(4) as ranks:
        yield ranks


@pytest.mark.parametrize(
    ("case", "small_bytes"),
    [
        pytest.param(case, small_bytes, id=str(case), marks=() if index % 3 == 0 else pytest.mark.slow)
        for index, (case, small_bytes) in enumerate(CASES)
    ],
)
def test_state_is_predicted_to_the_byte_and_traffic_closely(
    pool: RankPool, monkeypatch: pytest.MonkeyPatch, case: Case, small_bytes: int
) -> None:
    monkeypatch.setattr(cost, "MAX_SINGLE_GROUP_BYTES", small_bytes)
    monkeypatch.setattr(cost, "MAX_UNREDUCED_GRADIENT_BYTES", small_bytes)
    monkeypatch.setattr("trainer.parallel.data.MAX_SINGLE_GROUP_BYTES", small_bytes)
    training = case.spec()
    sizes = plan_mesh(training, VOCABULARY, case.world)
    for rank, (held, sent, place) in enumerate(pool.run(case.world, counted_step, case, small_bytes)):
        assert state_bytes(training, VOCABULARY, sizes, rank) == held
        predicted: Counter[str] = Counter()
        for each in RankCost(training, VOCABULARY, sizes, place).traffic():
            predicted[each.operation] += each.num_bytes
        assert predicted.keys() == sent.keys()
        for operation, num_bytes in sent.items():
            assert predicted[operation] == pytest.approx(num_bytes, rel=TOLERANCE), (rank, operation)
        memory = RankCost(training, VOCABULARY, sizes, place).memory()
        assert memory.weights == pytest.approx(held.weights, rel=TOLERANCE)
        assert memory.optimizer == pytest.approx(held.optimizer, rel=TOLERANCE)


def test_512_ranks_of_a_large_model_are_planned_here() -> None:
    spec = Case("dense", 512, {"tensor": 8, "pipeline": 4, "pipeline_schedule": "1f1b", "context": 2}).spec()
    fields = {
        **spec.model_dump(), "model": {"preset": "llama-70b"}, "tokenizer": {"vocab_size": 128_256},
        "tokens_per_step": 64 * 4096, "sequence_length": 4096, "precision": "bf16",
    }  # fmt: skip
    lines = list(dry_run(type(spec).model_validate(fields), ProcessLayout(nodes=64, processes_per_node=8)))
    assert lines[0].startswith("mesh: 512 ranks = pipeline 4 x replicate 1 x shard 8 x context 2 x tensor 8")
    assert sum("of the pipeline" in line for line in lines) == 4
    # 70.55e9 parameters over 512 ranks; the norms are on every tensor rank.
    held = [int(line.split()[1].replace(",", "")) for line in lines if line.startswith("  state: ")]
    assert 70_553_706_496 / 512 < sum(held) / 4 < 1.001 * 70_553_706_496 / 512


def test_offloaded_state_takes_room_for_two_buckets_on_the_device() -> None:
    fields = {"model": {"preset": "llama-8b"}, "tokenizer": {"vocab_size": 128_256}}
    plain = tiny_training(**fields, parallelism={"zero": 3})
    offloading = tiny_training(**fields, parallelism={"zero": 3}, optimizer={"offload": True})
    sizes = plan_mesh(plain, 128_256, 4)
    before, after = (RankCost(each, 128_256, sizes, 0).memory() for each in (plain, offloading))
    assert (before.host, after.host) == (0, before.optimizer)
    assert before.total - after.total == before.optimizer - 2 * 2 * 4 * cost.MAX_OFFLOAD_BUCKET_ELEMENTS
    (line,) = [
        line for line in dry_run(offloading, ProcessLayout(processes_per_node=4)) if line.startswith("  state: ")
    ]
    assert "optimiser 14.96 GiB in host memory, of which 256.00 MiB at a time on the device" in line


@pytest.mark.parametrize(
    ("parallelism", "arguments", "status", "message"),
    [
        ({"tensor": 2}, ["--ranks", "8"], EndClass.COMPLETED, "mesh: 8 ranks = pipeline 1"),
        ({"auto": True}, ["--device-memory", "80GiB"], EndClass.COMPLETED, "replicate 2"),
        ({"tensor": 3}, ["--ranks", "8"], EndClass.BAD_SPEC, "tensor 3 is 3 ranks, which does not divide the 8"),
    ],
)
def test_the_command_prints_a_plan_or_why_there_is_none(
    tmp_path: Path, parallelism: dict[str, Any], arguments: list[str], status: EndClass, message: str
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"training": {**TINY, "parallelism": parallelism}, "resources": {"nodes": 2}}))
    command = [sys.executable, "-m", "trainer", str(path), "--dry-run", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert message in ended.stdout + ended.stderr
    assert ended.returncode == EXIT_STATUS[status]
    assert [each.name for each in tmp_path.iterdir()] == ["job.yaml"]
