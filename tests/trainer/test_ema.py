"""The average of the weights: its formula, and runs that evaluate, store, resume and export it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.trainer.runs import FinishedRun, kill_rank, run_alone, stop, tiny_training
from tests.trainer.test_optimizer import backward, make_model, optimizer_of, take_step
from trainer.checkpoint.index import INDEX_NAME
from trainer.checkpoint.reader import read_entries, stored_entries
from trainer.client.local import KEY_FILE
from trainer.contract.cost import Memory, RankCost
from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import MANIFEST_NAME, CheckpointManifest
from trainer.contract.optimisation import EmaSpec, OptimizerSpec
from trainer.contract.parallelism import MeshSizes
from trainer.contract.run import EndClass
from trainer.contract.training import ProcessLayout
from trainer.export.folder import with_base
from trainer.models.lora import is_adapter
from trainer.optim.average import decay_at
from trainer.optim.step import ShardOptimizer
from trainer.standalone.dry_run import dry_run, format_bytes
from trainer.storage.folder import FolderStorage

EMA = {"ema": {"decay": 0.8}}
LOSSES = ("train/loss", "evaluation/loss", "evaluation/unaveraged_loss")


def averaged(seed_steps: int = 0) -> tuple[torch.nn.Module, ShardOptimizer]:
    model = make_model()
    optimizer = optimizer_of(model, OptimizerSpec(), EmaSpec(decay=0.5))
    assert optimizer.average is not None
    optimizer.average.reset()
    for step in range(seed_steps):
        backward(model, step)
        take_step(model, optimizer)
        optimizer.average.update(step, torch.tensor(True))
    return model, optimizer


def average_of(optimizer: ShardOptimizer) -> dict[str, Tensor]:
    return {name[4:]: each for name, each in optimizer.state_tensors().items() if name.startswith("ema/")}


def test_the_average_is_the_recurrence_with_a_decay_that_grows() -> None:
    model, optimizer = averaged()
    assert optimizer.average is not None
    expected = {name: each.detach().double() for name, each in model.named_parameters()}
    for step in range(6):
        backward(model, step)
        take_step(model, optimizer)
        optimizer.average.update(step, torch.tensor(True))
        decay = min(0.5, (1 + step + 1) / (10 + step + 1))
        for name, each in model.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * each.detach().double()
    found = average_of(optimizer)
    assert found.keys() == expected.keys()
    for name, each in found.items():
        torch.testing.assert_close(each.double(), expected[name], rtol=1e-5, atol=1e-7)
    assert decay_at(0.9999, 0) == pytest.approx(2 / 11) and decay_at(0.9999, 10**6) == 0.9999


def test_a_step_that_is_not_applied_leaves_every_bit() -> None:
    _, optimizer = averaged(2)
    assert optimizer.average is not None
    before = {name: each.clone() for name, each in average_of(optimizer).items()}
    optimizer.average.update(2, torch.tensor(False))
    assert all(torch.equal(each, before[name]) for name, each in average_of(optimizer).items())


def test_an_exchange_ends_with_the_same_bits_also_after_an_error() -> None:
    model, optimizer = averaged(2)
    assert optimizer.average is not None
    weights = {name: each.detach().clone() for name, each in model.named_parameters()}
    average = {name: each.clone() for name, each in average_of(optimizer).items()}
    with pytest.raises(ZeroDivisionError), optimizer.average.exchanged():
        assert all(torch.equal(each, average[name]) for name, each in model.named_parameters())
        1 / 0  # noqa: B018 - raises
    assert all(torch.equal(each, weights[name]) for name, each in model.named_parameters())
    assert all(torch.equal(each, average[name]) for name, each in average_of(optimizer).items())
    assert not all(torch.equal(average[name], weights[name]) for name in weights)


@pytest.mark.parametrize("sharded", [False, True])
def test_estimates_count_the_average(sharded: bool) -> None:
    fields: dict[str, Any] = {"parallelism": {"zero": 3}} if sharded else {}
    sizes = MeshSizes(shard=2, zero=3) if sharded else MeshSizes()
    without, found = (RankCost(tiny_training(**fields, **ema), 300, sizes, 0).memory() for ema in ({}, EMA))
    own = without.weights
    assert found == Memory(**{**vars(without), "average": own, "saves": without.saves + own,
                              "shadows": without.shadows + without.shadows // 3})  # fmt: skip
    assert found.total == without.total + own
    if not sharded:
        (line,) = [each for each in dry_run(tiny_training(**EMA), ProcessLayout()) if each.startswith("  state: ")]
        assert line.endswith(f", average of the weights {format_bytes(own)}")


def stored_state(run: FinishedRun, step: int) -> dict[str, Tensor]:
    """The tensors of a checkpoint of a run of one process."""
    encryptor, storage = Encryptor((run.output / KEY_FILE).read_text()), FolderStorage(run.output / "store")
    (folder,) = (each for each in run.checkpoints if int(each.name.split("-")[1]) == step)
    key = f"checkpoints/{folder.name}/{MANIFEST_NAME}"
    manifest = CheckpointManifest.model_validate_json(encryptor.decrypt_unlisted(storage.get(key), key))
    (file,) = (each for each in manifest.files if each.path != INDEX_NAME)
    entries = stored_entries(storage, encryptor, file)
    return {shard.stored: shard.tensor for shard in read_entries(storage, encryptor, file, entries)}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("alone") / "run", tiny_training(**EMA), every_steps=1, keep_last=20)


@pytest.mark.processes
def test_a_run_stores_evaluates_and_exports_the_average(alone: FinishedRun, tmp_path: Path) -> None:
    assert alone.end_class is EndClass.COMPLETED, alone.end
    before = stored_state(alone, 1)
    names = [name.removeprefix("ema/") for name in before if name.startswith("ema/")]
    assert names and {f"model/{name}" for name in names} == {name for name in before if name.startswith("model/")}
    for step in range(2, 21):
        after, decay = stored_state(alone, step), min(0.8, (1 + step) / (10 + step))
        for name in names:
            expected = decay * before[f"ema/{name}"] + (1 - decay) * after[f"model/{name}"]
            torch.testing.assert_close(after[f"ema/{name}"], expected, rtol=1e-5, atol=1e-7)
        before = after
    exported = load_file(alone.output / "model" / "model.safetensors")
    assert torch.equal(exported["model.embed_tokens.weight"], before["ema/embedding.weight"])
    assert not torch.equal(exported["model.embed_tokens.weight"], before["model/embedding.weight"])
    averaged_loss, latest = (alone.series(name) for name in LOSSES[1:])
    assert averaged_loss[0] == latest[0] and averaged_loss[20] != latest[20]
    loaded = with_base(
        tiny_training(model={"base": str(alone.output / "model")}, tokenizer={}, steps=1, schedule={"warmup_steps": 0}),
        alone.output / "model",
    )
    again = run_alone(tmp_path / "again", loaded)
    assert again.series("evaluation/loss")[0] == pytest.approx(averaged_loss[20], abs=1e-6)


@pytest.mark.processes
@pytest.mark.parametrize("shadow", ["none", pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_run_continues_with_the_same_bits(alone: FinishedRun, shadow: Any, tmp_path: Path) -> None:
    run = run_alone(
        tmp_path / "run", tiny_training(**EMA), restarts=1, every_steps=7, shadow=shadow,
        at_first_checkpoint=kill_rank(0),
    )  # fmt: skip
    assert run.end_class is EndClass.COMPLETED, run.end
    assert run.events("checkpoint.restored"), "the run was not resumed"
    for name in LOSSES:
        assert run.series(name) == alone.series(name), name
    found, expected = (load_file(each.output / "model" / "model.safetensors") for each in (run, alone))
    assert all(torch.equal(found[name], each) for name, each in expected.items())


@pytest.mark.processes
def test_the_average_is_read_on_another_mesh(alone: FinishedRun, tmp_path: Path) -> None:
    output = tmp_path / "run"
    sharded = tiny_training(**EMA, parallelism={"zero": 3})
    stopped = run_alone(output, sharded, processes=2, every_steps=5, at_first_checkpoint=stop)
    assert stopped.end_class is EndClass.STOPPED, stopped.end
    resumed = run_alone(output, tiny_training(**EMA, parallelism={"tensor": 2}), processes=2)
    assert resumed.end_class is EndClass.COMPLETED, resumed.end
    for name in LOSSES:
        assert resumed.series(name) == pytest.approx(alone.series(name), abs=1e-3), name
    found, expected = (load_file(each.output / "model" / "model.safetensors") for each in (resumed, alone))
    for name, each in expected.items():
        assert (found[name] - each).abs().max() <= 2e-3, name


@pytest.mark.processes
@pytest.mark.slow
def test_adapters_and_the_best_checkpoint_are_averaged(alone: FinishedRun, tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        **EMA, "model": {"base": str(alone.output / "model")}, "tokenizer": {},
        "lora": {"rank": 4, "alpha": 8.0, "export": "adapter"}, "optimizer": {"learning_rate": 1e-2},
    }  # fmt: skip
    training = with_base(tiny_training(**fields), alone.output / "model")
    run = run_alone(tmp_path / "run", training, keep_best=True)
    assert run.end_class is EndClass.COMPLETED, run.end
    state = stored_state(run, 20)
    assert all(is_adapter(name) for name in state if name.startswith("ema/"))
    exported = load_file(run.output / "model" / "adapter_model.safetensors")
    average = [each for name, each in state.items() if name.startswith("ema/")]
    assert len(exported) == len(average)
    assert all(any(torch.equal(each, other) for other in average) for each in exported.values())
