"""`python -m trainer.agent` as a backend starts it, against a real server of the agent API."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.trainer.agent_api import TOKEN, AgentApi
from tests.trainer.runs import platform_run, tiny_training
from trainer.contract import environment as names
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import CheckpointManifest, ModelManifest
from trainer.contract.run import EXIT_STATUS, AttemptEnd, EndClass, RunConfig

CANARY = "hf_CANARY-of-the-team"
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def agent(api: AgentApi, work: Path, **environment: str) -> Iterator[subprocess.Popen]:
    work.mkdir(exist_ok=True)
    variables = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), names.AGENT_URL: api.url, names.ATTEMPT_TOKEN: TOKEN,
        names.NODE_INDEX: "0", names.WORK_DIR: str(work), **environment,
    }  # fmt: skip
    with (work / "agent.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "trainer.agent"],
            env=variables,
            cwd=work,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def workers_of(process: subprocess.Popen) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AgentApi, dict[str, str], int, Path]]:
    """A whole run of two processes, with the environment that its worker processes had."""
    run, keys, objects = platform_run(tiny_training(), processes=2)
    keys = keys.model_copy(update={"secrets": {"hf-token": CANARY}})
    work = tmp_path_factory.mktemp("agent")
    hostile = {"AWS_SECRET_ACCESS_KEY": "secret", "DATABASE_URL": "postgres://u:p@h/d", "HF_TOKEN": "hf_x"}
    with AgentApi(run, keys, dict(objects)) as api, agent(api, work, **hostile) as process:
        api.wait_for(lambda: any(beat["processes_alive"] == 2 for beat in api.heartbeats))
        pids = [child.pid for child in workers_of(process)]
        seen = "\0".join(Path(f"/proc/{pid}/environ").read_text() for pid in pids)
        for pid in (process.pid, *pids):
            shown = Path(f"/proc/{pid}/cmdline").read_text() + Path(f"/proc/{pid}/environ").read_text()
            assert CANARY not in shown
        status = process.wait(60)
        yield api, dict(pair.split("=", 1) for pair in seen.split("\0") if "=" in pair), status, work


def test_a_run_ends_completed_with_its_reports_checkpoints_model_and_end_marker(finished) -> None:
    api, _, status, _ = finished
    assert status == EXIT_STATUS[EndClass.COMPLETED]
    assert sorted(api.losses()) == list(range(1, 21))
    assert [end["end_class"] for end in api.ends] == ["completed"]
    assert api.ends[0]["last_step"] == 20
    assert [checkpoint["step"] for checkpoint in api.checkpoints] == [10, 20]
    assert [checkpoint["world_size"] for checkpoint in api.checkpoints] == [2, 2]
    model = ModelManifest.model_validate(api.models[0])
    assert {file.path for file in model.files} >= {"model.safetensors", "config.json", "tokenizer.json"}
    encryptor = Encryptor(api.keys.job)
    for file in model.files:
        content = b"".join(encryptor.decrypt(api.objects[part.key], part) for part in file.parts)
        assert file.plaintext_sha256 == hashlib.sha256(content).hexdigest(), file.path
    assert model.metrics["evaluation/loss"] < 4.0
    marker = api.objects["teams/t/jobs/job_1/attempts/1/end.json"]
    opened = encryptor.decrypt_unlisted(marker, "teams/t/jobs/job_1/attempts/1/end.json")
    assert AttemptEnd.model_validate_json(opened).end_class is EndClass.COMPLETED


def test_a_healthy_run_says_in_its_log_how_it_goes(finished) -> None:
    api, _, _, _ = finished
    said = [line["text"] for line in api.records("logs", "lines") if line["rank"] == 0]
    assert any(text.startswith("step 20/20  loss ") for text in said), said
    assert any(text.startswith("checkpoint.saved: step 10") for text in said), said
    assert any(text.startswith("evaluation: step 0") for text in said), said


def test_every_start_up_phase_is_reported_once(finished) -> None:
    phases = [event["phase"] for event in finished[0].events("phase.finished")]
    assert sorted(phases) == sorted(["data", "import", "fork", "rendezvous", "model", "weights", "first_step"])


def test_validation_loss_is_reported_before_the_first_step_and_at_the_end(finished) -> None:
    points = {
        p["step"]: p["values"]["evaluation/loss"] for p in finished[0].points() if "evaluation/loss" in p["values"]
    }
    assert sorted(points) == [0, 10, 20]
    assert points[20] < points[0]


def test_a_checkpoint_has_the_validation_loss_of_its_own_step_though_it_is_stored_in_the_background(finished) -> None:
    api = finished[0]
    points = {p["step"]: p["values"]["evaluation/loss"] for p in api.points() if "evaluation/loss" in p["values"]}
    assert [each["metrics"]["evaluation/loss"] for each in api.checkpoints] == [points[10], points[20]]
    assert [each["metrics"]["evaluation/step"] for each in api.checkpoints] == [10, 20]


def test_the_prepared_data_set_is_encrypted_with_the_data_set_key_and_registered(finished) -> None:
    api = finished[0]
    assert len(api.datasets) == 1
    part = api.datasets[0]["files"][0]["parts"][0]
    assert part["key"].startswith("teams/t/jobs/job_1/dataset/")
    Encryptor(api.keys.dataset).decrypt_unlisted(api.objects[part["key"]], part["key"])


def test_nothing_readable_is_in_the_store(finished) -> None:
    for key, content in finished[0].objects.items():
        assert b"furnace" not in content, key
        assert b"__metadata__" not in content, key
        assert b"end_class" not in content, key


def test_a_worker_has_no_credential_but_the_attempt_token(finished) -> None:
    environment = finished[1]
    assert environment[names.ATTEMPT_TOKEN] == TOKEN
    assert "secret" not in "".join(environment.values())
    assert not {"AWS_SECRET_ACCESS_KEY", "DATABASE_URL", "HF_TOKEN"} & environment.keys()


def test_a_secret_of_the_job_is_in_no_report_and_no_file(finished) -> None:
    api, _, _, work = finished
    reported = [str(batch) for batches in api.received.values() for batch in batches] + [str(api.ends)]
    assert CANARY not in "".join(reported)
    for path in work.rglob("*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path


def test_the_spool_is_empty_after_the_run(finished) -> None:
    assert [path for path in (finished[3] / "spool").rglob("*") if path.is_file()] == []


def test_a_store_that_is_away_during_a_checkpoint_loses_nothing(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training())
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path) as process:
        api.wait_for(lambda: any("dataset/" in key for key in api.objects))
        api.store_away = True
        api.wait_for(lambda: len(api.losses()) >= 15)
        assert api.checkpoints == []
        api.store_away = False
        assert process.wait(60) == EXIT_STATUS[EndClass.COMPLETED]
        assert [CheckpointManifest.model_validate(c).step for c in api.checkpoints] == [10, 20]


@pytest.mark.slow
def test_an_api_that_is_away_holds_up_neither_training_nor_its_reports(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training(steps=300), checkpoint={"every_steps": 1000})
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path) as process:
        api.wait_for(lambda: len(api.losses()) >= 2)
        api.api_away = True
        waiting = tmp_path / "spool" / "metrics"
        while len(list(waiting.glob("*.json"))) < 2 and process.poll() is None:
            time.sleep(0.02)
        api.api_away = False
        assert process.wait(90) == EXIT_STATUS[EndClass.COMPLETED]
        steps = [p["step"] for p in api.points() if "train/loss" in p["values"]]
        assert steps == list(range(1, 301))


def test_a_killed_worker_is_replaced_in_place_and_training_resumes_from_the_checkpoint(tmp_path: Path) -> None:
    policy = {"every_steps": 10, "shadow_every_steps": "none"}
    run, keys, objects = platform_run(tiny_training(steps=60), processes=2, max_restarts_in_place=1, checkpoint=policy)
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path) as process:
        api.wait_for(lambda: api.checkpoints)
        ranks = [child for child in workers_of(process) if child.num_threads() > 2]
        os.kill(ranks[-1].pid, signal.SIGKILL)
        assert process.wait(90) == EXIT_STATUS[EndClass.COMPLETED]
        restarts = api.events("generation.started")
        assert [(event["generation"], "SIGKILL" in event["because"]) for event in restarts] == [(1, True)]
        assert [event["tier"] for event in api.events("checkpoint.restored")] == ["stored"]
        assert sorted(api.losses()) == list(range(1, 61))


class SetBack(AgentApi):
    """A platform whose database is set back to the first checkpoint when an agent asks again."""

    asked = 0

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        status, content = super().answer(method, path, body)
        if path == "/run":
            self.asked += 1
            if self.asked > 1:
                content = {**content, "resume": self.checkpoints[0]}
        return status, content


@pytest.mark.slow
def test_an_agent_refuses_a_checkpoint_older_than_the_one_it_resumed_from(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training(steps=20))
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path / "first") as process:
        assert process.wait(90) == EXIT_STATUS[EndClass.COMPLETED]
        checkpoints, objects = api.checkpoints, api.objects
    later = {"resume": checkpoints[-1], "attempt_number": 2, "max_restarts_in_place": 1}
    training = tiny_training(steps=100_000)
    run = RunConfig.model_validate({**run.model_dump(), **later, "training": training})
    with SetBack(run, keys, objects, checkpoints=checkpoints[:1]) as api, agent(api, tmp_path / "later") as process:
        api.wait_for(lambda: api.losses())
        os.kill(next(child for child in workers_of(process) if child.num_threads() > 2).pid, signal.SIGKILL)
        assert process.wait(90) == EXIT_STATUS[EndClass.STORAGE_ERROR]
        assert "this attempt resumed from the checkpoint of step 20" in api.ends[-1]["message"]


@pytest.mark.slow
def test_a_killed_fork_server_is_replaced_with_all_that_it_carried(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training(steps=60), processes=2, max_restarts_in_place=1)
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path) as process:
        api.wait_for(lambda: api.checkpoints)
        rank = next(child for child in workers_of(process) if child.num_threads() > 2)
        os.kill(rank.ppid(), signal.SIGKILL)
        assert process.wait(90) == EXIT_STATUS[EndClass.COMPLETED]
        assert [event["generation"] for event in api.events("generation.started")] == [1]
        assert sorted(api.losses()) == list(range(1, 61))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1], ids=lambda number: number.name)
def test_a_stop_signal_to_the_whole_process_group_still_leaves_a_checkpoint(tmp_path: Path, number: int) -> None:
    run, keys, objects = platform_run(tiny_training(steps=100_000), processes=2, checkpoint={"every_steps": 100_000})
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path) as process:
        api.wait_for(lambda: len(api.losses()) >= 2)
        os.killpg(process.pid, number)
        assert process.wait(60) == EXIT_STATUS[EndClass.STOPPED]
        assert (api.ends[0]["end_class"], api.ends[0]["stopped_for"]) == ("stopped", None)
        assert [checkpoint["step"] for checkpoint in api.checkpoints] == [api.ends[0]["last_step"]]


def test_a_notice_of_its_spot_machine_is_told_and_leaves_a_checkpoint(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training(steps=100_000), checkpoint={"every_steps": 100_000})
    notice = tmp_path / "notice"
    variables = {names.INTERRUPTION_NOTICE: str(notice)}
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path, **variables) as process:
        api.wait_for(lambda: len(api.losses()) >= 2)
        assert not any(beat["interruption"] for beat in api.heartbeats)
        notice.write_text("terminate")
        api.wait_for(lambda: api.heartbeats[-1]["interruption"] == "terminate")
        api.stop = "pause"  # as the platform answers then
        assert process.wait(60) == EXIT_STATUS[EndClass.STOPPED]
        assert [checkpoint["step"] for checkpoint in api.checkpoints] == [api.ends[0]["last_step"]]


def test_a_withdrawn_token_ends_the_agent_and_all_its_processes(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training(steps=100_000))
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path) as process:
        api.wait_for(lambda: len(api.losses()) >= 2)
        children = workers_of(process)
        api.over = True
        assert process.wait(30) == EXIT_STATUS[EndClass.STOPPED]
        assert psutil.wait_procs(children, 10)[1] == []
        assert api.ends == []


def test_no_process_outlives_a_killed_agent(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training(steps=100_000), processes=2)
    with AgentApi(run, keys, dict(objects)) as api, agent(api, tmp_path) as process:
        api.wait_for(lambda: len(api.losses()) >= 2)
        children = workers_of(process)
        assert len(children) >= 4
        process.kill()
        assert psutil.wait_procs(children, 10)[1] == []
