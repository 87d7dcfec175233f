"""Training that starts from a model in Hugging Face's layout, on any mesh, and its exported model."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError

from tests.trainer.agent_api import TOKEN, AgentApi
from tests.trainer.ranks import RankPool
from tests.trainer.runs import FinishedRun, platform_run, run_alone, stop, tiny_training
from trainer.agent.base_model import fetch_base_model
from trainer.agent.supervisor import NodeConfig, Supervisor
from trainer.client.http import PlatformClient
from trainer.contract.encryption import Encryptor, new_keyset
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.manifest import StoredFile
from trainer.contract.parallelism import MeshSizes
from trainer.contract.run import BaseModelSource, EndClass
from trainer.contract.training import TrainingSpec
from trainer.errors import TrainerError
from trainer.export.folder import with_base
from trainer.export.read import StoredWeights, load_exported
from trainer.parallel.mesh import Mesh
from trainer.resilience.assignment import HttpConnection
from trainer.standalone.job_file import read_job
from trainer.storage.encrypted import encrypt_file
from trainer.storage.folder import FolderStorage

MOE = {
    "hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 64,
    "moe": {"num_experts": 4, "experts_per_token": 2, "expert_size": 32, "shared_experts": 1, "scoring": "sigmoid",
            "balance_rate": 0.01},
}  # fmt: skip


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("first") / "run", tiny_training())


@pytest.fixture(scope="module")
def with_experts(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    training = tiny_training(model={"shape": MOE}, steps=4)
    return run_alone(tmp_path_factory.mktemp("experts") / "run", training)


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    shape = {**tiny_training().model.resolve().model_dump(), "tie_embeddings": True}
    training = tiny_training(model={"shape": shape}, steps=1, schedule={"warmup_steps": 0})
    return run_alone(tmp_path_factory.mktemp("tied") / "run", training)


def going_on(run: FinishedRun, **changes: Any) -> TrainingSpec:
    fields = {"model": {"base": str(run.output / "model")}, "tokenizer": {}, **changes}
    return with_base(tiny_training(**fields), run.output / "model")


def test_training_goes_on_where_the_model_was(first: FinishedRun, tmp_path: Path) -> None:
    second = run_alone(tmp_path / "second", going_on(first), processes=2, data=first.output.parent / "tiny.txt")
    assert second.end_class is EndClass.COMPLETED
    before, after = first.series("evaluation/loss"), second.series("evaluation/loss")
    assert after[0] == pytest.approx(before[20], abs=1e-4)
    assert after[20] < after[0]
    assert [event["phase"] for event in second.events("phase.finished")].count("base_model") == 1
    theirs = transformers.AutoTokenizer.from_pretrained(second.output / "model")
    assert theirs("gold")["input_ids"] == load_exported(first.output / "model")[1].encode("gold").ids
    config = transformers.AutoConfig.from_pretrained(second.output / "model")
    assert config.eos_token_id == 0


def test_sequences_that_the_base_model_does_not_know_are_reported(first: FinishedRun, tmp_path: Path) -> None:
    data = first.output.parent / "tiny.txt"
    longer = run_alone(
        tmp_path / "longer", going_on(first, sequence_length=64, steps=1, schedule={"warmup_steps": 0}), data=data
    )
    (event,) = longer.events("sequence.longer")
    assert (event["sequence_length"], event["base_length"]) == (64, 32)
    assert "knows 32 positions" in event["because"]
    remedied = run_alone(tmp_path / "as-long", going_on(first, steps=1, schedule={"warmup_steps": 0}), data=data)
    assert remedied.series("train/loss")
    assert not remedied.events("sequence.longer")


def test_a_run_that_goes_on_resumes_from_its_own_checkpoint(first: FinishedRun, tmp_path: Path) -> None:
    data = first.output.parent / "tiny.txt"
    whole = run_alone(tmp_path / "whole", going_on(first), data=data)
    stopped = run_alone(tmp_path / "parts", going_on(first), data=data, every_steps=4, at_first_checkpoint=stop)
    assert stopped.end_class is EndClass.STOPPED
    parts = run_alone(tmp_path / "parts", going_on(first), data=data)
    assert parts.series("train/loss")[20] == whole.series("train/loss")[20]


@pytest.fixture(scope="module")
def pool() -> RankPool:
    with RankPool(4) as started:
        yield started


def loaded(mesh: Mesh, training: TrainingSpec, folder: Path) -> dict[str, torch.Tensor] | None:
    """What a mesh made of a folder, whole, on the first rank."""
    from trainer.parallel.full_tensors import gather_full_tensors
    from trainer.parallel.parallelize import parallelize_model

    sizes = plan_mesh(training, training.tokenizer.vocab_size, mesh.world_size)
    assert isinstance(sizes, MeshSizes), sizes
    stored = StoredWeights(folder, training.model.resolve())
    model = parallelize_model(
        training, training.tokenizer.vocab_size, mesh.with_sizes(sizes), 1, load_shard=stored.part_of
    )
    tensors = dict(gather_full_tensors(model.weights))
    del model
    return tensors if mesh.rank == 0 else None


@pytest.mark.parametrize(
    ("kind", "parallelism"),
    [
        ("first", {"zero": 3}),
        ("first", {"tensor": 2}),
        ("first", {"pipeline": 2, "zero": 1}),
        ("tied", {"pipeline": 2, "zero": 0}),
        ("with_experts", {"expert": 2, "zero": 3}),
        ("with_experts", {"tensor": 2, "zero": 2}),
    ],
    ids=str,
)
def test_every_rank_reads_its_part(
    kind: str, parallelism: dict[str, Any], pool: RankPool, request: pytest.FixtureRequest
) -> None:
    run = request.getfixturevalue(kind)
    training = going_on(run, parallelism=parallelism)
    tensors = pool.run(4, loaded, training, run.output / "model")[0]
    model, _ = load_exported(run.output / "model")
    for name, whole in model.named_parameters():
        assert torch.equal(tensors[name], whole), name


def test_the_balance_of_experts_is_part_of_the_model(with_experts: FinishedRun, tmp_path: Path) -> None:
    training = going_on(with_experts, steps=1, optimizer={"learning_rate": 1e-12}, schedule={"warmup_steps": 0})
    second = run_alone(tmp_path / "second", training, data=with_experts.output.parent / "tiny.txt")
    before, after = (load_exported(run.output / "model")[0] for run in (with_experts, second))
    balance = before.blocks["0"].mlp.balance
    assert balance.abs().max() > 0
    assert torch.equal(after.blocks["0"].mlp.balance, balance)  # its rate is no part of the layout, so it rests


def test_a_job_file_names_a_folder(first: FinishedRun, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "training:\n  model: {base: ../model}\n  data: {source: 'builtin:python-stdlib'}\n"
        "  steps: 1\n  schedule: {warmup_steps: 0}\n  tokens_per_step: 32\n  sequence_length: 32\n"
    )
    (tmp_path.parent / "model").symlink_to(first.output / "model")
    _, settings = read_job(job)
    (tmp_path.parent / "model").unlink()
    assert settings.training.model.resolve().hidden_size == 32
    assert settings.training.tokenizer.kind == "model"
    assert settings.training.tokenizer.vocab_size == 300
    _, other = read_job(job, first.output / "model")
    assert other.training.model.base == str(first.output / "model")
    with pytest.raises(TrainerError, match="has no config.json: give the folder of an exported model"):
        read_job(job)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": {"vocab_size": 300}}, "model.base comes with its own tokenizer"),
        ({"model": {"base": "x", "preset": "llama-1m"}}, "give either preset or base"),
        ({"tokenizer": {"kind": "model"}, "model": {"preset": "llama-1m"}}, "needs model.base"),
    ],
)
def test_what_contradicts_a_base_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny_training(**{"model": {"base": "x"}, "tokenizer": {}, **changes})


@pytest.mark.parametrize("origin", ["sealed", "plain"])
def test_a_node_gets_the_model_from_the_store(origin: str, first: FinishedRun, tmp_path: Path) -> None:
    training = going_on(first)
    run, keys, objects = platform_run(training)
    keys = keys.model_copy(update={"base": new_keyset()})
    files = []
    for path in sorted((first.output / "model").iterdir()):
        content = path.read_bytes()
        ciphertext, part = Encryptor(keys.base).encrypt(content, f"jobs/other/model/{path.name}")
        objects[part.key] = ciphertext if origin == "sealed" else content
        files.append(StoredFile(path=path.name, parts=[part]))
    run = run.model_copy(update={"base": BaseModelSource(name="model:art_1", origin=origin, files=files)})
    with AgentApi(run, keys, objects) as api:
        client = PlatformClient(api.url, TOKEN, retry_seconds=5.0)
        place = NodeConfig(tmp_path / "work", cache=tmp_path / "cache")
        assert Supervisor(HttpConnection(api.url, TOKEN), client, place).run() is EndClass.COMPLETED
        losses = first.series("train/loss")
        assert api.losses()[1] < losses[1] - 1.0
        assert len(list((tmp_path / "cache" / "models").iterdir())) == 1


def test_a_new_model_takes_over_the_tokenizer_and_another_shape(first: FinishedRun, tmp_path: Path) -> None:
    data, base = first.output.parent / "tiny.txt", str(first.output / "model")
    wider = {**tiny_training().model.resolve().model_dump(), "hidden_size": 48, "num_heads": 3, "num_kv_heads": 3}
    fields: dict[str, Any] = {"steps": 2, "schedule": {"warmup_steps": 1}, "sequence_length": 16}
    for name, shape in (("same", None), ("wider", wider)):
        model = {"base": base, "weights": "random", **({"shape": shape} if shape is not None else {})}
        training = going_on(first, model=model, **fields)
        assert training.model.resolve().hidden_size == (48 if shape else 32)
        assert training.optimizer.learning_rate == tiny_training().optimizer.learning_rate
        run = run_alone(tmp_path / name, training, data=data)
        assert run.end_class is EndClass.COMPLETED, run.end["message"]
        assert run.series("evaluation/loss")[0] == pytest.approx(math.log(300), abs=0.2), "random weights"
        assert (run.output / "model/tokenizer.json").read_bytes() == (
            first.output / "model/tokenizer.json"
        ).read_bytes()
        config = json.loads((run.output / "model/config.json").read_text())
        assert (config["max_position_embeddings"], config["hidden_size"]) == (16, training.model.resolve().hidden_size)
        assert not run.events("sequence.longer")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": {"preset": "llama-1m", "weights": "random"}}, "weights `random` belongs to a base"),
        ({"model": {"base": "model:x", "weights": "random"}, "lora": {}}, "lora adapts a trained model"),
        ({"model": {"base": "model:x", "preset": "llama-1m"}}, "give either preset or base"),
    ],
)
def test_weights_that_contradict_the_model_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        tiny_training(tokenizer={}, **fields)


def test_the_weights_of_a_base_are_not_fetched_for_a_new_model(first: FinishedRun, tmp_path: Path) -> None:
    keyset, storage = new_keyset(), FolderStorage(tmp_path / "store")
    encryptor = Encryptor(keyset)
    paths = sorted((first.output / "model").iterdir())
    files = [encrypt_file(storage, encryptor, "base/", path.name, path) for path in paths]
    source = BaseModelSource(name="model:x", origin="sealed", files=files)
    fetched = []
    for weights in ("random", "base"):
        training = going_on(first, model={"base": str(first.output / "model"), "weights": weights})
        run, keys, _ = platform_run(training)
        run, keys = run.model_copy(update={"base": source}), keys.model_copy(update={"base": keyset})
        folder = fetch_base_model(tmp_path / "cache", run, keys, storage)
        assert folder is not None
        fetched.append({path.name for path in folder.iterdir()})
    assert fetched[1] - fetched[0] == {"model.safetensors"}
    assert fetched[0] >= {"tokenizer.json", "config.json"}
