"""Runs against a real server of the agent API, in warm processes of this test's own fork server."""

import os
import socket
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.trainer.agent_api import TOKEN, AgentApi
from tests.trainer.runs import platform_run, tiny_training
from trainer.agent.supervisor import NodePlace, Supervisor
from trainer.contract.manifest import DatasetManifest
from trainer.contract.run import DatasetSource, EndClass, ProcessLayout, RunConfig
from trainer.platform_client import PlatformClient
from trainer.resilience.assignment import HttpConnection

ROOT = Path(__file__).resolve().parents[2]


def supervisor_for(api: AgentApi, work: Path, **place: object) -> Supervisor:
    client = PlatformClient(api.url, TOKEN, patience_seconds=5.0)
    return Supervisor(HttpConnection(api.url, TOKEN), client, NodePlace(work, **place))


def test_a_stop_asked_for_by_the_platform_ends_with_a_registered_checkpoint(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training(steps=100_000), processes=2, checkpoint={"every_steps": 100_000})
    with AgentApi(run, keys, objects) as api:
        stopper = threading.Thread(
            target=lambda: (api.wait_for(lambda: len(api.losses()) > 3), setattr(api, "stop", "pause")), daemon=True
        )
        stopper.start()
        assert supervisor_for(api, tmp_path).run() is EndClass.STOPPED
        end = api.ends[0]
        assert (end["end_class"], end["stopped_for"]) == ("stopped", "pause")
        assert [checkpoint["step"] for checkpoint in api.checkpoints] == [end["last_step"]]
        assert sorted(api.losses()) == list(range(1, end["last_step"] + 1))
        assert api.models == []


def test_a_deadline_ends_the_run_as_a_stop(tmp_path: Path) -> None:
    run, keys, objects = platform_run(
        tiny_training(steps=100_000), checkpoint={"every_steps": 100_000},
        deadline=datetime.now(UTC) + timedelta(seconds=3),
    )  # fmt: skip
    with AgentApi(run, keys, objects) as api:
        assert supervisor_for(api, tmp_path).run() is EndClass.STOPPED
        assert api.ends[0]["stopped_for"] == "deadline"


def test_a_prepared_data_set_is_used_as_it_is_and_gives_the_same_losses(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training())
    with AgentApi(run, keys, objects) as api:
        assert supervisor_for(api, tmp_path / "first").run() is EndClass.COMPLETED
        first = api.losses()
        prepared = DatasetManifest.model_validate(api.datasets[0])
        source = DatasetSource(dataset_id="dset_tiny", name="tiny", origin="sealed", prepared=prepared)
        api.run = RunConfig.model_validate({**run.model_dump(), "dataset": source, "resume": None, "attempt_number": 2})
        api.received.clear()
        assert supervisor_for(api, tmp_path / "second").run() is EndClass.COMPLETED
        assert api.losses() == first
        assert len(api.datasets) == 1


def test_a_later_attempt_goes_on_from_the_checkpoint_of_the_one_before(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training(steps=30))
    with AgentApi(run, keys, objects) as api:
        assert supervisor_for(api, tmp_path / "whole").run() is EndClass.COMPLETED
        whole = api.losses()
        at_10 = api.checkpoints[0]
        assert at_10["step"] == 10
        api.run = RunConfig.model_validate({**run.model_dump(), "resume": at_10, "attempt_number": 2})
        api.received.clear()
        assert supervisor_for(api, tmp_path / "later").run() is EndClass.COMPLETED
        assert api.losses() == {step: loss for step, loss in whole.items() if step > 10}


def test_a_checkpoint_part_that_was_damaged_in_the_store_is_refused(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training(steps=10))
    with AgentApi(run, keys, objects) as api:
        assert supervisor_for(api, tmp_path / "first").run() is EndClass.COMPLETED
        key = api.checkpoints[-1]["files"][0]["parts"][0]["key"]
        api.objects[key] = api.objects[key][:-1] + bytes([api.objects[key][-1] ^ 1])
        assert supervisor_for(api, tmp_path / "second").run() is EndClass.STORAGE_ERROR
        assert "digest differs" in api.ends[-1]["message"]


def test_data_that_is_not_text_ends_the_attempt_with_its_place(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training())
    broken = run.dataset.model_copy(update={"origin": "plain"})  # the sealed bytes, read as if they were text
    with AgentApi(RunConfig.model_validate({**run.model_dump(), "dataset": broken}), keys, objects) as api:
        assert supervisor_for(api, tmp_path).run() is EndClass.DATA_ERROR
        assert "tiny.txt is not UTF-8" in api.ends[0]["message"]


def test_a_platform_that_never_answers_is_named_as_unreachable(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training())
    with AgentApi(run, keys, objects) as api:
        api.api_away = True
        client = PlatformClient(api.url, TOKEN, patience_seconds=0.5)
        supervisor = Supervisor(HttpConnection(api.url, TOKEN), client, NodePlace(tmp_path))
        assert supervisor.run() is EndClass.PLATFORM_UNREACHABLE


def test_a_refused_call_is_not_tried_again(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training())
    with AgentApi(run, keys, objects) as api:
        assert Supervisor(
            HttpConnection(api.url, "wrong"), PlatformClient(api.url, "wrong"), NodePlace(tmp_path)
        ).run() is EndClass.STOPPED  # fmt: skip
        assert api.heartbeats == []


@pytest.fixture
def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_two_nodes_train_together_and_the_second_takes_the_data_of_the_first(tmp_path: Path, free_port: int) -> None:
    run, keys, objects = platform_run(tiny_training())
    with AgentApi(run, keys, dict(objects)) as api:
        assert supervisor_for(api, tmp_path / "alone").run() is EndClass.COMPLETED
        expected = api.losses()
    run = RunConfig.model_validate({**run.model_dump(), "layout": ProcessLayout(nodes=2, processes_per_node=1)})
    with AgentApi(run, keys, objects) as api:
        nodes = [
            supervisor_for(api, tmp_path / f"node{rank}", node_rank=rank, store_port=free_port) for rank in range(2)
        ]
        ends: list[EndClass] = []
        second = threading.Thread(target=lambda: ends.append(nodes[1].run()))
        second.start()
        ends.append(nodes[0].run())
        second.join(60)
        assert ends == [EndClass.COMPLETED] * 2
        assert api.losses() == pytest.approx(expected, rel=1e-6)
        assert {end["node_rank"] for end in api.ends} == {0, 1}
        assert {beat["node_rank"] for beat in api.heartbeats} == {0, 1}


def test_the_agent_is_free_of_torch() -> None:
    code = "import sys, trainer.agent.supervisor, trainer.agent.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode == 0
