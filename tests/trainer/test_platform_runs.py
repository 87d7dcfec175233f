"""Runs against a real server of the agent API, in warm processes of this test's own fork server."""

import copy
import os
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.agent_api import TOKEN, AgentApi
from tests.trainer.runs import platform_run, tiny_text, tiny_training
from trainer.agent.rendezvous_client import NodeIdentity, RendezvousClient
from trainer.agent.supervisor import NodeConfig, Supervisor
from trainer.client.http import PlatformClient
from trainer.contract.encryption import Encryptor, authenticate, new_keyset
from trainer.contract.manifest import CheckpointManifest, DatasetManifest, StoredFile
from trainer.contract.node_rendezvous import JoinReply
from trainer.contract.run import DataKeys, DatasetSource, EndClass, ProcessLayout, RunConfig, StopRequest
from trainer.data.prepare import Preparation
from trainer.resilience.assignment import HttpConnection
from trainer.storage.cached import CachedStorage, delete_abandoned
from trainer.storage.folder import FolderStorage
from trainer.storage.presigned import PresignedStorage

ROOT = Path(__file__).resolve().parents[2]


def supervisor_for(api: AgentApi, work: Path, **place: object) -> Supervisor:
    client = PlatformClient(api.url, TOKEN, retry_seconds=5.0)
    return Supervisor(HttpConnection(api.url, TOKEN), client, NodeConfig(work, **place))


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


def prepared_with_small_shards(api: AgentApi, work: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The run for another attempt, after one whose data was put into shards of 4 KiB."""
    monkeypatch.setattr("trainer.agent.dataset.Preparation", partial(Preparation, shard_bytes=4096))
    assert supervisor_for(api, work).run() is EndClass.COMPLETED
    fields = {**api.run.model_dump(), "resume": None, "attempt_number": 2}
    return RunConfig.model_validate(fields)


@pytest.mark.parametrize("packing", ["none", "documents"])
def test_a_later_attempt_streams_the_shards_and_computes_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str
) -> None:
    data = {"source": "dataset:tiny", "packing": packing, "shuffle_shards": 2}
    run, keys, objects = platform_run(tiny_training(data=data), processes=2)
    with AgentApi(run, keys, objects) as api:
        api.run = prepared_with_small_shards(api, tmp_path / "first", monkeypatch)
        first = api.losses()
        assert len(api.datasets[0]["files"]) > 10
        api.received.clear()
        assert supervisor_for(api, tmp_path / "second").run() is EndClass.COMPLETED
        assert api.losses() == first
        steps = [point["values"] for point in api.points() if "train/loss" in point["values"]]
        assert [values["time/data_stall_seconds"] >= 0 for values in steps] == [True] * 20


def test_data_that_was_forgotten_is_prepared_again_beside_a_cache_that_lacks_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, keys, objects = platform_run(tiny_training())
    with AgentApi(run, keys, objects) as api:
        api.run = prepared_with_small_shards(api, tmp_path / "first", monkeypatch)
        first, recipe = api.losses(), api.datasets[0]["recipe"]
        (tmp_path / "first/datasets" / recipe / "train-00000-00002.tokens").unlink()  # as after an eviction
        api.datasets.clear()
        forgotten = {**api.run.dataset.model_dump(), "prepared": None}
        api.run = RunConfig.model_validate({**api.run.model_dump(), "dataset": forgotten})
        api.received.clear()
        assert supervisor_for(api, tmp_path / "first").run() is EndClass.COMPLETED
        assert api.losses() == first
        assert len(api.datasets) == 1


def test_an_error_in_the_data_is_reported_for_those_that_wait(tmp_path: Path) -> None:
    run, keys, objects = prepare_run()
    ciphertext, part = Encryptor(keys.dataset).encrypt(b"bad \xff", "datasets/dset_tiny/raw-001.part")
    broken = run.dataset.model_copy(update={"raw": [StoredFile(path="bad.txt", parts=[part])]})
    with AgentApi(run.model_copy(update={"dataset": broken}), keys, {**objects, part.key: ciphertext}) as api:
        assert supervisor_for(api, tmp_path).run() is EndClass.DATA_ERROR
        assert [release["data_error"] for release in api.released] == [api.ends[0]["message"]]


@pytest.mark.parametrize("choice", ["fail", "skip"])
def test_a_damaged_shard_ends_the_run_or_is_skipped_by_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: str
) -> None:
    training = tiny_training(data={"source": "dataset:tiny", "on_corrupt": choice, "shuffle_shards": 64})
    run, keys, objects = platform_run(training, processes=2)
    with AgentApi(run, keys, objects) as api:
        api.run = prepared_with_small_shards(api, tmp_path / "first", monkeypatch)
        api.received.clear()
        (part,) = next(f["parts"] for f in api.datasets[0]["files"] if f["path"] == "train-00000-00002.tokens")
        api.objects[part["key"]] = api.objects[part["key"]][:-1]
        ended = supervisor_for(api, tmp_path / "second").run()
        if choice == "fail":
            assert ended is EndClass.DATA_ERROR
            assert "shard train-00000-00002.tokens of dataset:tiny is damaged" in api.ends[-1]["message"]
            return
        assert ended is EndClass.COMPLETED
        (event,) = api.events("data.shard_skipped")
        assert (event["source"], event["shard"]) == ("dataset:tiny", "train-00000-00002.tokens")
        skipped = [p["values"]["data/skipped_sequences"] for p in api.points() if "train/loss" in p["values"]]
        assert sum(skipped) > 0
        assert all(count == int(count) for count in skipped)


def test_a_mixture_is_prepared_once_with_one_tokenizer_and_each_part_under_its_own_key(tmp_path: Path) -> None:
    parts = [{"source": "dataset:tiny", "weight": 3}, {"source": "dataset:other"}]
    training = tiny_training(data={"mixture": parts, "packing": "documents"})
    run, keys, objects = platform_run(training)
    other_key = new_keyset()
    text = "".join(f"{line[::-1]}\n" for line in tiny_text().splitlines())
    ciphertext, part = Encryptor(other_key).encrypt(text.encode(), "datasets/dset_other/raw-000.part")
    raw = [StoredFile(path="other.txt", parts=[part])]
    other = DatasetSource(dataset_id="dset_other", name="other", origin="sealed", raw=raw)
    run = run.model_copy(update={"more_datasets": [other]})
    keys = keys.model_copy(update={"more_datasets": {"dset_other": other_key}})
    with AgentApi(run, keys, {**objects, part.key: ciphertext}) as api:
        assert supervisor_for(api, tmp_path / "first").run() is EndClass.COMPLETED
        first = api.losses()
        assert [manifest["dataset_id"] for manifest in api.datasets] == ["dset_tiny", "dset_other"]
        assert len({manifest["recipe"] for manifest in api.datasets}) == 2
        stored = next(file for file in api.datasets[1]["files"] if file["path"] == "tokenizer.json")
        opened = Encryptor(other_key).decrypt_unlisted(
            api.objects[stored["parts"][0]["key"]], stored["parts"][0]["key"]
        )
        (folder,) = (tmp_path / "first/datasets").glob(f"{api.datasets[0]['recipe']}*")
        assert opened == (folder / "tokenizer.json").read_bytes()
        api.run = RunConfig.model_validate({**api.run.model_dump(), "resume": None, "attempt_number": 2})
        api.received.clear()
        assert supervisor_for(api, tmp_path / "second").run() is EndClass.COMPLETED
        assert api.losses() == first
        assert len(api.datasets) == 2


def prepare_run(**changes: object) -> tuple[RunConfig, DataKeys, dict]:
    run, keys, objects = platform_run(tiny_training())
    prepare = {"data": {"source": "dataset:tiny"}, "tokenizer": {"vocab_size": 300}, **changes}
    return RunConfig.model_validate({**run.model_dump(), "training": None, "prepare": prepare}), keys, objects


def test_a_run_that_only_prepares_registers_its_data_which_a_training_run_then_streams(tmp_path: Path) -> None:
    run, keys, objects = prepare_run()
    with AgentApi(run, keys, objects) as api:
        assert supervisor_for(api, tmp_path / "prepare").run() is EndClass.COMPLETED
        assert api.ends[0]["end_class"] == "completed"
        assert (len(api.datasets), api.models, api.checkpoints) == (1, [], [])
        (prepared,) = api.events("dataset.prepared")
        assert (prepared["source"], prepared["train_tokens"]) == ("dataset:tiny", api.datasets[0]["train_tokens"])
        assert (prepared["vocab_size"], api.events("tokenizer.smaller")) == (300, [])
        training = tiny_training().model_dump()
        api.run = RunConfig.model_validate({**api.run.model_dump(), "training": training, "prepare": None})
        assert supervisor_for(api, tmp_path / "train").run() is EndClass.COMPLETED
        assert len(api.datasets) == 1
        assert len(api.losses()) == 20


def test_a_vocabulary_that_the_text_cannot_fill_is_reported(tmp_path: Path) -> None:
    run, keys, objects = prepare_run(tokenizer={"vocab_size": 50_000})
    with AgentApi(run, keys, objects) as api:
        assert supervisor_for(api, tmp_path).run() is EndClass.COMPLETED
        (prepared,), (smaller,) = api.events("dataset.prepared"), api.events("tokenizer.smaller")
        assert (smaller["asked"], smaller["made"]) == (50_000, prepared["vocab_size"])
        assert smaller["made"] < 50_000
        assert "raise tokenizer.sample_characters, add text, or lower tokenizer.vocab_size" in smaller["because"]


def test_a_run_of_several_nodes_ends_when_the_data_that_the_others_wait_for_cannot_be_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PresignedStorage.__init__, "__defaults__", (1.0, None))  # seconds of retries
    run, keys, objects = platform_run(tiny_training(steps=5), layout=ProcessLayout(nodes=2, processes_per_node=1))
    with AgentApi(run, keys, objects, store_full=True) as api:
        supervisor = supervisor_for(api, tmp_path)
        threading.Thread(target=supervisor.run, daemon=True).start()
        try:
            api.wait_for(lambda: api.ends)
        finally:
            supervisor.request_stop(None)
        assert api.ends[0]["end_class"] == "storage_error", api.ends
        assert not api.joins


def test_another_node_that_waits_for_data_can_be_stopped(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training(steps=5), layout=ProcessLayout(nodes=2, processes_per_node=1))
    with AgentApi(run, keys, objects, stop="cancel") as api:
        identity = NodeIdentity(1, "node1", "127.0.0.1")
        threading.Thread(target=supervisor_for(api, tmp_path, node=identity).run, daemon=True).start()
        api.wait_for(lambda: api.ends)
        assert api.ends[0]["end_class"] == "stopped", api.ends


def test_a_run_that_only_prepares_names_the_line_that_is_no_data(tmp_path: Path) -> None:
    run, keys, objects = prepare_run()
    ciphertext, part = Encryptor(keys.dataset).encrypt(
        b'{"text": "a"}\n{"body": "b"}\n', "datasets/dset_tiny/raw-001.part"
    )
    raw = [StoredFile(path="more.jsonl", parts=[part])]
    broken = run.dataset.model_copy(update={"raw": [*run.dataset.raw, *raw]})
    with AgentApi(run.model_copy(update={"dataset": broken}), keys, {**objects, part.key: ciphertext}) as api:
        assert supervisor_for(api, tmp_path).run() is EndClass.DATA_ERROR
        assert "more.jsonl line 2 has no field 'text' (it has: body)" in api.ends[0]["message"]
        assert api.datasets == []


def test_a_run_that_only_prepares_ends_when_it_is_told_to_stop(tmp_path: Path) -> None:
    run, keys, objects = prepare_run()
    with AgentApi(run, keys, objects) as api:
        supervisor = supervisor_for(api, tmp_path)
        supervisor.request_stop(StopRequest.CANCEL)
        assert supervisor.run() is EndClass.STOPPED
        assert (api.ends[0]["stopped_for"], api.datasets) == ("cancel", [])


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


def test_a_later_attempt_reads_its_checkpoint_from_the_copy_near_its_node(tmp_path: Path) -> None:
    """By then the store has lost the checkpoint; that the copy is whole is seen, or the store is asked after all."""
    run, keys, objects = platform_run(tiny_training(steps=100_000), checkpoint={"every_steps": 100_000})
    with AgentApi(run, keys, objects) as api:

        def attempt(number: int, stop_after: int) -> EndClass:
            api.run = RunConfig.model_validate({**api.run.model_dump(), "attempt_number": number})
            api.stop = None
            enough = partial(api.wait_for, lambda: len(api.losses()) > stop_after, 60)
            stopper = threading.Thread(target=lambda: (enough(), setattr(api, "stop", "pause")), daemon=True)
            stopper.start()
            client = PlatformClient(api.url, TOKEN, retry_seconds=5.0)
            connection = HttpConnection(api.url, TOKEN, tmp_path / "kept")
            return Supervisor(connection, client, NodeConfig(tmp_path / f"work{number}")).run()

        assert attempt(1, 3) is EndClass.STOPPED
        saved = api.checkpoints[-1]
        parts = [part["key"] for file in saved["files"] for part in file["parts"]]
        lost = {key: api.objects.pop(key) for key in parts}
        assert attempt(2, saved["step"] + 3) is EndClass.STOPPED, api.ends[-1]
        assert min(step for step in api.losses() if step > saved["step"]) == saved["step"] + 1
        again = api.checkpoints[-1]
        api.run = RunConfig.model_validate({**api.run.model_dump(), "resume": saved})
        api.objects.update(lost)
        for copy in (tmp_path / "kept").rglob("step-*/*"):
            copy.write_bytes(copy.read_bytes()[:-1] + b"x")
        assert attempt(3, again["step"] + 3) is EndClass.STOPPED, api.ends[-1]


def test_only_the_newest_checkpoints_are_kept_near_and_those_of_abandoned_jobs_go(tmp_path: Path) -> None:
    store = FolderStorage(tmp_path / "store")
    kept = CachedStorage(store, tmp_path / "kept" / "job_1")
    for number, step in enumerate((10, 20, 30)):
        kept.put(f"p/checkpoints/step-{step:08d}-1-0/rank0-000.part", b"content %d" % step)
        folder = tmp_path / "kept" / "job_1" / f"step-{step:08d}-1-0"
        os.utime(folder, (number, number))
        kept.put(f"p/models/{step}", b"model")
    assert sorted(path.name for path in (tmp_path / "kept" / "job_1").iterdir()) == [
        "step-00000020-1-0", "step-00000030-1-0",
    ]  # fmt: skip
    assert kept.get("p/checkpoints/step-00000010-1-0/rank0-000.part") == b"content 10"
    delete_abandoned(tmp_path / "kept")
    assert (tmp_path / "kept" / "job_1").exists()
    for path in (tmp_path / "kept" / "job_1", *(tmp_path / "kept" / "job_1").iterdir()):
        os.utime(path, (1, 1))
    delete_abandoned(tmp_path / "kept")
    assert not (tmp_path / "kept" / "job_1").exists()


def test_a_checkpoint_part_that_was_damaged_in_the_store_is_refused_and_reported(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training(steps=10))
    with AgentApi(run, keys, objects) as api:
        assert supervisor_for(api, tmp_path / "first").run() is EndClass.COMPLETED
        key = api.checkpoints[-1]["files"][0]["parts"][0]["key"]
        api.objects[key] = api.objects[key][:-1] + bytes([api.objects[key][-1] ^ 1])
        assert supervisor_for(api, tmp_path / "second").run() is EndClass.CHECKPOINT_DAMAGED
        (reported,) = api.damaged
        assert (reported["generation"], reported["step"]) == (0, 10)
        assert "digest differs" in reported["because"]
        assert "no checkpoint can be read" in api.ends[-1]["message"]


def forged(manifest: dict[str, Any], attack: str, key: str) -> dict[str, Any]:
    """What somebody makes of a manifest who can write where it is stored. `key`: of the job."""
    forgery = copy.deepcopy(manifest)
    files = forgery["files"]
    if attack == "files swapped":
        files[0]["path"], files[1]["path"] = files[1]["path"], files[0]["path"]
    elif attack == "parts swapped":
        files[0]["parts"], files[1]["parts"] = files[1]["parts"], files[0]["parts"]
    elif attack == "a file dropped":
        del files[-1]
    elif attack == "another step":
        forgery["step"] = forgery["data_position"] = 19
    elif attack == "no tag":
        del forgery["tag"]
    elif attack == "another job, another key":
        other = CheckpointManifest.model_validate(forgery)
        forgery = authenticate(other, Encryptor(new_keyset())).model_dump(mode="json")
    else:
        other = CheckpointManifest.model_validate({**forgery, "job_id": "job_other"})
        forgery = authenticate(other, Encryptor(key)).model_dump(mode="json")
    return forgery


@pytest.mark.parametrize(
    "attack",
    [
        "files swapped",
        "parts swapped",
        "a file dropped",
        "another step",
        "no tag",
        "another job, another key",
        "another job",
    ],
)
def test_a_forged_manifest_is_refused_before_a_step_is_trained(
    tmp_path: Path, attack: str, checkpointed: tuple[RunConfig, DataKeys, dict[str, bytes], dict[str, Any]]
) -> None:
    run, keys, objects, manifest = checkpointed
    with AgentApi(run, keys, dict(objects)) as api:
        resume = forged(manifest, attack, keys.job)
        api.run = RunConfig.model_validate({**run.model_dump(), "resume": resume, "attempt_number": 2})
        assert supervisor_for(api, tmp_path / "later").run() is EndClass.STORAGE_ERROR
        assert "the checkpoint's manifest" in api.ends[-1]["message"]
        assert api.losses() == {}


class Refusing(AgentApi):
    """A platform that refuses to say what to run, with `code`."""

    code = ""

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/run":
            return 409, {"code": self.code, "detail": "the manifest of ckpt_1 is not the registered one"}
        return super().answer(method, path, body)


@pytest.mark.parametrize(
    ("code", "end_class"),
    [("manifest_not_authentic", EndClass.STORAGE_ERROR), ("base_not_found", EndClass.BAD_SPEC)],
)
def test_what_the_platform_refuses_ends_the_attempt_with_its_reason(
    code: str, end_class: EndClass, tmp_path: Path
) -> None:
    run, keys, objects = platform_run(tiny_training())
    with Refusing(run, keys, objects) as api:
        api.code = code
        assert supervisor_for(api, tmp_path).run() is end_class
        (end,) = api.ends
        assert end["end_class"] == end_class.value
        assert "the manifest of ckpt_1 is not the registered one" in end["message"]


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory: Any) -> tuple[RunConfig, DataKeys, dict[str, bytes], dict[str, Any]]:
    """A run of ten steps, what it stored, and the manifest of its checkpoint."""
    run, keys, objects = platform_run(tiny_training(steps=10))
    with AgentApi(run, keys, objects) as api:
        assert supervisor_for(api, tmp_path_factory.mktemp("first")).run() is EndClass.COMPLETED
        return run, keys, api.objects, api.checkpoints[-1]


def test_data_that_is_not_text_ends_the_attempt_with_its_place(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training())
    broken = run.dataset.model_copy(update={"origin": "plain"})  # the encrypted bytes, read as if they were text
    with AgentApi(RunConfig.model_validate({**run.model_dump(), "dataset": broken}), keys, objects) as api:
        assert supervisor_for(api, tmp_path).run() is EndClass.DATA_ERROR
        assert "tiny.txt is not UTF-8" in api.ends[0]["message"]


def test_a_platform_that_never_answers_is_named_as_unreachable(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training())
    with AgentApi(run, keys, objects) as api:
        api.api_away = True
        client = PlatformClient(api.url, TOKEN, retry_seconds=0.5)
        supervisor = Supervisor(HttpConnection(api.url, TOKEN), client, NodeConfig(tmp_path))
        assert supervisor.run() is EndClass.PLATFORM_UNREACHABLE


def test_a_refused_call_is_not_tried_again(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training())
    with AgentApi(run, keys, objects) as api:
        assert Supervisor(
            HttpConnection(api.url, "wrong"), PlatformClient(api.url, "wrong"), NodeConfig(tmp_path)
        ).run() is EndClass.STOPPED  # fmt: skip
        assert api.heartbeats == []


def node(index: int, *topology: str) -> NodeIdentity:
    return NodeIdentity(index, f"node{index}", "127.0.0.1", list(topology))


def run_nodes(api: AgentApi, tmp_path: Path, nodes: list[NodeIdentity]) -> list[EndClass]:
    """The agents of a run, each in a thread, the first in this one."""
    supervisors = [supervisor_for(api, tmp_path / each.name, node=each) for each in nodes]
    ends: dict[int, EndClass] = {}
    threads = [
        threading.Thread(target=lambda i=i: ends.update({i: supervisors[i].run()})) for i in range(1, len(nodes))
    ]
    for thread in threads:
        thread.start()
    ends[0] = supervisors[0].run()
    for thread in threads:
        thread.join(60)
    return [ends[i] for i in range(len(nodes))]


def test_two_nodes_train_together_and_the_second_takes_the_data_of_the_first(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training())
    with AgentApi(run, keys, dict(objects)) as api:
        assert supervisor_for(api, tmp_path / "alone").run() is EndClass.COMPLETED
        expected = api.losses()
    run = RunConfig.model_validate({**run.model_dump(), "layout": ProcessLayout(nodes=2, processes_per_node=1)})
    with AgentApi(run, keys, objects) as api:
        # By the switches above them the second comes first.
        assert run_nodes(api, tmp_path, [node(0, "b"), node(1, "a")]) == [EndClass.COMPLETED] * 2
        assert api.losses() == pytest.approx(expected, rel=1e-6)
        assert {end["node_rank"] for end in api.ends} == {0, 1}
        assert {beat["node_rank"] for beat in api.heartbeats} == {0, 1}
        assert [each.node_index for each in api.placed[1]] == [1, 0]
        assert [event["nodes"] for event in api.events("nodes.placed")] == [["node1", "node0"]]
        said = "\n".join(line["text"] for line in api.records("logs", "lines"))
        assert "ranks 0 to 0: node1 (127.0.0.1) under switch a" in said
        assert "replicate (2): across 2 nodes, at most 3 switches between neighbours" in said


def test_a_round_resumes_from_the_checkpoint_that_it_names(tmp_path: Path) -> None:
    """It is read from the platform only if the run's configuration names a different one."""
    run, keys, objects = platform_run(tiny_training(steps=4), checkpoint={"every_steps": 2, "keep_last": 2})
    with AgentApi(run, keys, objects) as api:
        assert supervisor_for(api, tmp_path).run() is EndClass.COMPLETED
        before, newest = [CheckpointManifest.model_validate(each) for each in api.checkpoints[-2:]]
        client = RendezvousClient(PlatformClient(api.url, TOKEN), node(0), lambda: False)
        reply = JoinReply(state="placed", round=2, node_rank=1, resume_from=newest.id)
        assert client.resume_of(reply, newest) is newest
        assert api.checkpoints_read == 0
        assert client.resume_of(reply, before) == newest
        assert client.resume_of(reply, None) == newest
        assert api.checkpoints_read == 2
        assert client.resume_of(JoinReply(state="placed", round=1, resume=before), None) == before
        assert client.resume_of(JoinReply(state="placed", round=1), None) is None


def test_the_agent_is_free_of_torch() -> None:
    code = "import sys, trainer.agent.supervisor, trainer.agent.__main__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}).returncode == 0
