"""Reports reach the platform in order, each exactly once, whatever happens on the way."""

import multiprocessing
import subprocess
import sys
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from deploy.local.handle import wait_until
from tests.small_disk import SmallDisk, small_disk
from tests.trainer.agent_api import TOKEN, AgentApi
from tests.trainer.runs import platform_run, tiny_training
from trainer.agent.logs import LogFollower
from trainer.agent.shipper import Shipper
from trainer.client.http import PlatformClient
from trainer.client.platform import AttemptOver
from trainer.contract.run import LogLine, MetricPoint
from trainer.reporting import spool as spool_module
from trainer.reporting.spool import SpoolWriter


@pytest.fixture
def api():
    run, keys, objects = platform_run(tiny_training())
    with AgentApi(run, keys, objects) as server:
        yield server


def shipper_to(api: AgentApi, spool: Path) -> Shipper:
    return Shipper(spool, PlatformClient(api.url, TOKEN, retry_seconds=1.0))


def write_points(writer: SpoolWriter, steps: range) -> None:
    """One batch for each step."""
    for step in steps:
        writer.add(MetricPoint(step=step, time=datetime.now(UTC), values={"train/loss": 1.0 / (step + 1)}))
        writer.flush()


def steps_of(api: AgentApi) -> list[int]:
    return [point["step"] for point in api.points()]


def test_batches_arrive_in_order_and_leave_the_disk_once_acknowledged(api: AgentApi, tmp_path: Path) -> None:
    write_points(SpoolWriter(tmp_path, "metrics", "rank0-g0"), range(12))
    shipper_to(api, tmp_path).deliver_all()
    assert steps_of(api) == list(range(12))
    assert list((tmp_path / "metrics").iterdir()) == []


def test_a_writer_knows_whether_the_platform_has_what_it_wrote(api: AgentApi, tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "metrics", "rank0-g0")
    write_points(SpoolWriter(tmp_path, "metrics", "rank0-g1"), range(1))
    assert writer.wait_until_delivered(0), "another writer's batches do not count"
    write_points(writer, range(3))
    assert not writer.wait_until_delivered(0)
    shipper_to(api, tmp_path).deliver_all()
    assert writer.wait_until_delivered(0)


def test_a_writer_counts_what_is_on_disk_and_not_delivered(api: AgentApi, tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "metrics", "rank0")
    write_points(writer, range(3))
    assert writer.num_spooled() == 3
    shipper_to(api, tmp_path).deliver_all()
    write_points(writer, range(3, 5))
    assert writer.num_spooled() == 2


def test_a_writer_waits_for_what_it_wrote_before_and_not_for_what_follows(
    api: AgentApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that are reported faster than they are delivered do not hold up a checkpoint."""
    writer, shipper, following = SpoolWriter(tmp_path, "metrics", "rank0-g0"), shipper_to(api, tmp_path), count(3)

    def deliver_and_add(_: float) -> None:
        shipper.deliver_all()
        step = next(following)
        write_points(writer, range(step, step + 1))

    write_points(writer, range(3))
    monkeypatch.setattr(spool_module, "time", SimpleNamespace(monotonic=time.monotonic, sleep=deliver_and_add))
    assert writer.wait_until_delivered(2.0)
    assert steps_of(api) == [0, 1, 2]


def test_batches_stay_while_the_platform_is_away(api: AgentApi, tmp_path: Path) -> None:
    write_points(SpoolWriter(tmp_path, "metrics", "rank0-g0"), range(3))
    api.api_away = True
    with pytest.raises(httpx.HTTPError):
        shipper_to(api, tmp_path).deliver_all()
    assert len(list((tmp_path / "metrics").iterdir())) == 3
    api.api_away = False
    shipper_to(api, tmp_path).deliver_all()
    assert steps_of(api) == [0, 1, 2]


def test_a_batch_that_was_taken_but_not_acknowledged_is_sent_again_and_not_doubled(
    api: AgentApi, tmp_path: Path
) -> None:
    write_points(SpoolWriter(tmp_path, "metrics", "rank0-g0"), range(2))
    copy = (tmp_path / "metrics" / "metrics-rank0-g0.000000000.json").read_bytes()
    shipper_to(api, tmp_path).deliver_all()
    (tmp_path / "metrics" / "metrics-rank0-g0.000000000.json").write_bytes(copy)
    shipper_to(api, tmp_path).deliver_all()
    assert (api.doubled, steps_of(api)) == (1, [0, 1])
    assert list((tmp_path / "metrics").iterdir()) == []


def test_a_new_shipper_goes_on_where_a_dead_one_stopped(api: AgentApi, tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "metrics", "rank0-g0")
    write_points(writer, range(2))
    shipper_to(api, tmp_path).deliver_all()
    write_points(writer, range(2, 4))
    shipper_to(api, tmp_path).deliver_all()
    assert steps_of(api) == [0, 1, 2, 3]


def test_a_platform_that_lost_batches_still_gets_all_that_is_left(api: AgentApi, tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "metrics", "rank0-g0")
    shipper = shipper_to(api, tmp_path)
    write_points(writer, range(3))
    shipper.deliver_all()
    api.received.clear()
    write_points(writer, range(3, 6))
    shipper.deliver_all()
    shipper.deliver_all()
    assert steps_of(api) == [3, 4, 5]


def test_two_writers_do_not_hold_each_other_up(api: AgentApi, tmp_path: Path) -> None:
    write_points(SpoolWriter(tmp_path, "metrics", "rank0-g0"), range(2))
    write_points(SpoolWriter(tmp_path, "metrics", "rank0-g1"), range(2, 4))
    shipper_to(api, tmp_path).deliver_all()
    assert sorted(steps_of(api)) == [0, 1, 2, 3]
    assert {writer for _, writer in api.received} == {"metrics-rank0-g0", "metrics-rank0-g1"}


def test_a_half_written_batch_is_not_sent(api: AgentApi, tmp_path: Path) -> None:
    write_points(SpoolWriter(tmp_path, "metrics", "rank0-g0"), range(1))
    (tmp_path / "metrics" / "metrics-rank0-g0.000000001.partial").write_text("{")
    shipper_to(api, tmp_path).deliver_all()
    assert steps_of(api) == [0]


def test_a_full_spool_drops_log_lines_and_says_so_but_never_metrics(
    api: AgentApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_batch = LogLine(time=datetime.now(UTC), rank=0, stream="stdout", text="line 0").model_dump_json()
    monkeypatch.setattr(spool_module, "MAX_SPOOLED_LOG_BYTES", len(one_batch) + 100)
    logs, metrics = SpoolWriter(tmp_path, "logs", "agent0"), SpoolWriter(tmp_path, "metrics", "rank0-g0")
    for number in range(5):
        logs.add(LogLine(time=datetime.now(UTC), rank=0, stream="stdout", text=f"line {number}"))
        logs.flush()
    write_points(metrics, range(5))
    shipper_to(api, tmp_path).deliver_all()
    logs.add(LogLine(time=datetime.now(UTC), rank=0, stream="stdout", text="line 5"))
    logs.flush()
    shipper_to(api, tmp_path).deliver_all()
    texts = [line["text"] for line in api.records("logs", "lines")]
    assert texts[:2] == ["line 0", "line 1"]
    assert texts[2].startswith("3 log lines were dropped")
    assert texts[3] == "line 5"
    assert steps_of(api) == [0, 1, 2, 3, 4]


def test_long_log_lines_are_cut_into_batches_that_a_server_takes(api: AgentApi, tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, "logs", "agent0")
    for _ in range(300):
        writer.add(LogLine(time=datetime.now(UTC), rank=0, stream="stdout", text="x" * 8000))
    writer.flush()
    sizes = [path.stat().st_size for path in (tmp_path / "logs").iterdir()]
    assert max(sizes) < 1_000_000
    shipper_to(api, tmp_path).deliver_all()
    assert len(api.records("logs", "lines")) == 300


def test_a_withdrawn_token_ends_the_shipping(api: AgentApi, tmp_path: Path) -> None:
    write_points(SpoolWriter(tmp_path, "metrics", "rank0-g0"), range(1))
    api.over = True
    with pytest.raises(AttemptOver):
        shipper_to(api, tmp_path).deliver_all()


def test_what_is_waiting_at_the_end_is_delivered_before_the_end(api: AgentApi, tmp_path: Path) -> None:
    shipper = shipper_to(api, tmp_path)
    shipper.start()
    write_points(SpoolWriter(tmp_path, "metrics", "rank0-g0"), range(50))
    assert shipper.finish(30)
    assert steps_of(api) == list(range(50))


@pytest.fixture
def disk(tmp_path: Path):
    with small_disk(tmp_path / "disk", "1m") as made:
        yield made


def test_what_a_full_disk_refused_is_delivered_when_there_is_room(api: AgentApi, disk: SmallDisk) -> None:
    writer = SpoolWriter(disk.path, "metrics", "rank0-g0")
    shipper = shipper_to(api, disk.path)
    write_points(writer, range(1))
    disk.fill()
    write_points(writer, range(1, 4))
    assert not writer.flush()
    shipper.deliver_all()
    assert not writer.wait_until_delivered(0), "a checkpoint must not be taken for reported"
    disk.free()
    write_points(writer, range(4, 6))
    shipper.deliver_all()
    assert writer.wait_until_delivered(0)
    assert steps_of(api) == [0, 1, 2, 3, 4, 5]


def test_a_read_only_disk_loses_no_report_either(api: AgentApi, disk: SmallDisk) -> None:
    writer = SpoolWriter(disk.path, "metrics", "rank0-g0")
    disk.set_read_only(True)
    write_points(writer, range(2))
    disk.set_read_only(False)
    assert writer.flush()
    shipper_to(api, disk.path).deliver_all()
    assert steps_of(api) == [0, 1]


def test_log_lines_that_a_full_disk_refuses_take_a_limited_amount_of_memory(
    api: AgentApi, disk: SmallDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "MAX_LOG_CHARACTERS_IN_MEMORY", 100)
    writer = SpoolWriter(disk.path, "logs", "agent0")
    disk.fill()
    for number in range(10):
        writer.add(LogLine(time=datetime.now(UTC), rank=0, stream="stdout", text=f"{number}" * 40))
        assert not writer.flush()
    disk.free()
    assert writer.flush()
    shipper_to(api, disk.path).deliver_all()
    first, *rest = [line["text"] for line in api.records("logs", "lines")]
    assert first.startswith("8 log lines were dropped")
    assert rest == ["0" * 40, "1" * 40]


def test_a_rank_prints_on_while_the_disk_is_full(api: AgentApi, disk: SmallDisk) -> None:
    """Its pipe holds 64 KiB: a follower that stops to read would block it."""
    follower = LogFollower(SpoolWriter(disk.path, "logs", "agent0"))
    disk.fill()
    script = "for number in range(3000): print(f'line {number:04d} ' + 'x' * 90)"
    process = Printing([sys.executable, "-c", script])
    follower.follow(process, 0)
    wait_until(lambda: process.running.poll() is not None, "the rank has printed everything", 30)
    disk.free()
    follower.drain(30)
    shipper_to(api, disk.path).deliver_all()
    assert [line["text"][5:9] for line in api.records("logs", "lines")] == [f"{number:04d}" for number in range(3000)]


class Printing:
    """A process with the pipes of a forked one."""

    def __init__(self, command: list[str]) -> None:
        self.stdout, stdout = multiprocessing.Pipe(duplex=False)
        self.stderr, stderr = multiprocessing.Pipe(duplex=False)
        with stdout, stderr:
            self.running = subprocess.Popen(command, stdout=stdout.fileno(), stderr=stderr.fileno())
