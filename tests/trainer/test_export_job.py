"""Exports of stored checkpoints: the files are those that the training exported after the same step."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.agent_api import AgentApi
from tests.trainer.runs import FinishedRun, platform_run, run_alone, tiny_training
from tests.trainer.test_lora import adapting
from tests.trainer.test_platform_runs import supervisor_for
from trainer.contract.encryption import Encryptor, authenticate, check_manifest, new_keyset
from trainer.contract.export import CheckpointExport
from trainer.contract.manifest import CheckpointManifest, ModelManifest, StoredFile
from trainer.contract.run import BaseModelSource, DataKeys, EndClass, ProcessLayout, RunConfig
from trainer.contract.training import TrainingSpec


class Trained:
    """A finished job: what the platform knows, and the objects in its store."""

    def __init__(
        self, work: Path, training: TrainingSpec, *, processes: int = 1, base: FinishedRun | None = None
    ) -> None:
        run, keys, objects = platform_run(training, processes=processes)
        if base is not None:
            keys = keys.model_copy(update={"base": new_keyset()})
            files = []
            for path in sorted((base.output / "model").iterdir()):
                ciphertext, part = Encryptor(keys.base).encrypt(path.read_bytes(), f"jobs/other/model/{path.name}")
                objects[part.key] = ciphertext
                files.append(StoredFile(path=path.name, parts=[part]))
            run = run.model_copy(
                update={"base": BaseModelSource(name=str(training.model.base), origin="sealed", files=files)}
            )
        with AgentApi(run, keys, objects) as api:
            assert supervisor_for(api, work).run() is EndClass.COMPLETED, api.ends
            self.run, self.keys, self.objects = run, keys, dict(api.objects)
            self.checkpoints = [CheckpointManifest.model_validate(each) for each in api.checkpoints]
            self.model = ModelManifest.model_validate(api.models[0])


def exporting(
    trained: Trained, checkpoint: CheckpointManifest, *, processes: int = 1, **training: Any
) -> tuple[RunConfig, DataKeys]:
    """What the platform hands out to a job that exports a checkpoint of another one."""
    assert trained.run.training is not None
    run = trained.run.model_copy(
        update={
            "job_id": "job_2", "attempt_id": "att_2", "prefix": "teams/t/jobs/job_2/",
            "training": trained.run.training.model_copy(update=training),
            "layout": ProcessLayout(processes_per_node=processes),
            "export": CheckpointExport(job_id="job_1", checkpoint=checkpoint),
        }
    )  # fmt: skip
    return run, trained.keys.model_copy(update={"job": new_keyset(), "replayed": trained.keys.job})


def files_of(manifest: ModelManifest, key: str, objects: dict[str, bytes]) -> dict[str, bytes]:
    encryptor = Encryptor(key)
    return {
        file.path: b"".join(encryptor.decrypt(objects[part.key], part) for part in file.parts)
        for file in manifest.files
    }


def check_exports_the_same(trained: Trained, work: Path, *, processes: int = 1, **training: Any) -> dict[str, bytes]:
    """Export the last checkpoint, and check that it is what the training exported. Return the files."""
    last = trained.checkpoints[-1]
    run, keys = exporting(trained, last, processes=processes, **training)
    with AgentApi(run, keys, dict(trained.objects)) as api:
        assert supervisor_for(api, work).run() is EndClass.COMPLETED, api.ends
        assert api.checkpoints == []
        (model,) = map(ModelManifest.model_validate, api.models)
        check_manifest(model, Encryptor(keys.job), job_id="job_2")
        assert (model.step, model.num_parameters) == (trained.model.step, trained.model.num_parameters) == (
            last.step, trained.model.num_parameters,
        )  # fmt: skip
        assert all(file.plaintext_sha256 for file in model.files), "signed like the export of a training"
        found = files_of(model, keys.job, api.objects)
    expected = files_of(trained.model, trained.keys.job, trained.objects)
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []
    return found


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"), tiny_training(ema={"decay": 0.8}))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("base") / "run", tiny_training())


def test_the_export_of_a_checkpoint_is_that_of_its_training(trained: Trained, tmp_path: Path) -> None:
    files = check_exports_the_same(trained, tmp_path)
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(files)


def test_an_earlier_checkpoint_is_another_model(trained: Trained, tmp_path: Path) -> None:
    run, keys = exporting(trained, trained.checkpoints[0])
    with AgentApi(run, keys, dict(trained.objects)) as api:
        assert supervisor_for(api, tmp_path).run() is EndClass.COMPLETED, api.ends
        (model,) = map(ModelManifest.model_validate, api.models)
        found = files_of(model, keys.job, api.objects)
        assert (model.step, model.metrics) == (10, trained.checkpoints[0].metrics)
    last = files_of(trained.model, trained.keys.job, trained.objects)
    assert found["model.safetensors"] != last["model.safetensors"]
    assert found["config.json"] == last["config.json"]


def test_two_processes_export_what_one_has_trained(trained: Trained, tmp_path: Path) -> None:
    check_exports_the_same(trained, tmp_path, processes=2)


@pytest.mark.slow
def test_one_process_exports_what_two_have_trained(tmp_path: Path) -> None:
    trained = Trained(tmp_path / "run", tiny_training(parallelism={"zero": 3}), processes=2)
    plain = tiny_training().parallelism
    check_exports_the_same(trained, tmp_path / "export", parallelism=plain)


@pytest.mark.parametrize("form", ["merged", "adapter"])
def test_adapters_are_exported_as_the_training_does(form: str, base: FinishedRun, tmp_path: Path) -> None:
    training = adapting(base, lora={"rank": 4, "export": form})
    trained = Trained(tmp_path / "run", training, base=base)
    files = check_exports_the_same(trained, tmp_path / "export")
    assert ("adapter_config.json" in files) == (form == "adapter")


def test_a_damaged_checkpoint_is_reported_with_its_step(trained: Trained, tmp_path: Path) -> None:
    last = trained.checkpoints[-1]
    run, keys = exporting(trained, last)
    objects = dict(trained.objects)
    (part, *_) = last.files[0].parts
    objects[part.key] = objects[part.key][:-1] + b"?"
    with AgentApi(run, keys, objects) as api:
        assert supervisor_for(api, tmp_path).run() is EndClass.CHECKPOINT_DAMAGED
        assert "the checkpoint of step 20 is damaged" in api.ends[0]["message"]
        assert api.models == []


def test_a_record_that_the_key_of_the_job_does_not_authenticate_is_refused(trained: Trained, tmp_path: Path) -> None:
    last = trained.checkpoints[-1]
    forged = authenticate(last.model_copy(update={"step": 15}), Encryptor(new_keyset()))
    run, keys = exporting(trained, forged)
    with AgentApi(run, keys, dict(trained.objects)) as api:
        assert supervisor_for(api, tmp_path).run() is EndClass.CHECKPOINT_DAMAGED
        assert "the record of the checkpoint of step 15 is not authentic" in api.ends[0]["message"]


def test_trainers_of_earlier_versions_find_no_training(trained: Trained) -> None:
    run, _ = exporting(trained, trained.checkpoints[0])
    sent = json.loads(run.model_dump_json())
    assert sent["training"] is None and sent["exported"]["steps"] == 20, "they would train"
    assert RunConfig.model_validate(sent) == run
