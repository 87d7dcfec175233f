"""Low-rank adapters: only they are trained and stored, on any mesh alike, and the export has them in its weights."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from tests.trainer.runs import MIXTURE, FinishedRun, run_alone, stop, tiny_training
from tests.trainer.shadow_runs import after_step, kill, shadow_run
from trainer.contract.models import MODELS
from trainer.contract.optimisation import LoraSpec
from trainer.contract.run import EndClass
from trainer.contract.training import TrainingSpec
from trainer.errors import TrainerError
from trainer.export.folder import with_base
from trainer.export.read import load_exported
from trainer.models.decoder import Decoder
from trainer.models.lora import LoRALinear, add_adapters, seed_dropout

LORA = {"rank": 4, "alpha": 8.0}
QUICK = {"learning_rate": 0.03}
TOKENS = torch.arange(64).view(2, 32)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("first") / "run", tiny_training())


def adapting(run: FinishedRun, **changes: Any) -> TrainingSpec:
    fields = {
        "model": {"base": str(run.output / "model")},
        "tokenizer": {},
        "lora": LORA,
        "optimizer": QUICK,
        **changes,
    }
    return with_base(tiny_training(**fields), run.output / "model")


@pytest.fixture(scope="module")
def adapted(first: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("adapted") / "run", adapting(first), data=first.output.parent / "tiny.txt")


def test_adapters_learn_and_the_export_is_both_merged(adapted: FinishedRun, first: FinishedRun, tmp_path: Path) -> None:
    losses = adapted.series("evaluation/loss")
    assert losses[0] == pytest.approx(first.series("evaluation/loss")[20], abs=1e-4)  # adapters begin as nothing
    assert losses[20] < losses[0] - 0.01
    again = adapting(adapted, lora=None, steps=1, schedule={"warmup_steps": 0})
    seen = run_alone(tmp_path / "seen", again, data=first.output.parent / "tiny.txt").series("evaluation/loss")
    assert seen[0] == pytest.approx(losses[20], abs=1e-4)


def test_what_has_no_adapter_is_what_it_was(adapted: FinishedRun, first: FinishedRun) -> None:
    before, after = (load_exported(run.output / "model")[0].state_dict() for run in (first, adapted))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.startswith("blocks.") and "norm" not in name}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(adapted.output / "model", dtype=torch.float32)
    tokens = torch.arange(64).view(2, 32)
    with torch.no_grad():
        ours = load_exported(adapted.output / "model")[0](tokens)
        torch.testing.assert_close(ours, theirs.eval()(tokens).logits, rtol=1e-5, atol=1e-5)


def logits_with_peft(base: Path, adapter: Path) -> torch.Tensor:
    """By `transformers` and `peft` alone."""
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        return peft.PeftModel.from_pretrained(model, adapter).eval()(TOKENS).logits


def logits_of(run: FinishedRun) -> torch.Tensor:
    with torch.no_grad():
        return load_exported(run.output / "model")[0](TOKENS)


@pytest.mark.parametrize("parallelism", [{}, {"pipeline": 2}], ids=str)
def test_an_adapter_alone_is_put_on_its_base_by_peft(
    parallelism: dict[str, int], adapted: FinishedRun, first: FinishedRun, tmp_path: Path
) -> None:
    training = adapting(first, lora={**LORA, "export": "adapter"}, parallelism=parallelism)
    data = first.output.parent / "tiny.txt"
    run = run_alone(tmp_path / "run", training, processes=2 if parallelism else 1, data=data)
    assert run.end_class is EndClass.COMPLETED, run.end
    tolerance = 1e-3 if parallelism else 1e-5
    found = logits_with_peft(first.output / "model", run.output / "model")
    torch.testing.assert_close(found, logits_of(adapted), rtol=tolerance, atol=tolerance)
    assert not torch.allclose(found, logits_of(first), atol=0.01)
    assert transformers.AutoTokenizer.from_pretrained(run.output / "model").eos_token == "<|endoftext|>"
    weights = sum(path.stat().st_size for path in (run.output / "model").glob("*.safetensors"))
    assert weights < (first.output / "model" / "model.safetensors").stat().st_size / 2
    with pytest.raises(TrainerError, match=r"has no config\.json"):
        load_exported(run.output / "model")


def test_an_adapter_of_a_mixture_is_of_its_attention(first: FinishedRun, tmp_path: Path) -> None:
    data = first.output.parent / "tiny.txt"
    base = run_alone(tmp_path / "base", tiny_training(model={"shape": MIXTURE}, steps=4), data=data)
    targets = ["query", "value", "output"]
    merged, alone = (
        run_alone(
            tmp_path / kind, adapting(base, lora={**LORA, "targets": targets, "export": kind}, steps=8), data=data
        )
        for kind in ("merged", "adapter")
    )
    found = logits_with_peft(base.output / "model", alone.output / "model")
    torch.testing.assert_close(found, logits_of(merged), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, logits_of(base), atol=1e-3)
    with pytest.raises(ValueError, match=r"remove them from lora\.targets, or set lora\.export to merged"):
        TrainingSpec.model_validate({**adapting(base).model_dump(), "lora": {**LORA, "export": "adapter"}})


def test_only_the_chosen_matrices_get_adapters(first: FinishedRun, tmp_path: Path) -> None:
    training = adapting(first, lora={**LORA, "targets": ["query", "down"]}, steps=4)
    run = run_alone(tmp_path / "run", training, data=first.output.parent / "tiny.txt")
    before, after = (load_exported(run.output / "model")[0].state_dict() for run in (first, run))
    changed = {name.split(".", 2)[2] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"attention.query.weight", "mlp.down.weight"}


def test_a_checkpoint_has_the_adapters_alone_and_a_resume_goes_on(
    adapted: FinishedRun, first: FinishedRun, tmp_path: Path
) -> None:
    data = first.output.parent / "tiny.txt"
    stopped = run_alone(tmp_path / "run", adapting(first), data=data, every_steps=4, at_first_checkpoint=stop)
    assert stopped.end_class is EndClass.STOPPED
    sizes = [sum(path.stat().st_size for path in run.checkpoints[-1].iterdir()) for run in (stopped, first)]
    assert sizes[0] < sizes[1] / 2
    resumed = run_alone(tmp_path / "run", adapting(first), data=data, every_steps=4)
    assert resumed.series("train/loss")[20] == adapted.series("train/loss")[20]


@pytest.mark.parametrize(
    ("processes", "changes"),
    [
        (2, {"parallelism": {"zero": 3}}),
        (2, {"parallelism": {"tensor": 2}}),
        (2, {"parallelism": {"pipeline": 2}}),
        (2, {"parallelism": {"zero": 0}, "activation_checkpointing": "full"}),
        (2, {"optimizer": {"name": "muon"}}),
    ],
    ids=str,
)
def test_any_mesh_trains_the_same_adapters(
    processes: int, changes: dict[str, Any], first: FinishedRun, adapted: FinishedRun, tmp_path: Path
) -> None:
    data = first.output.parent / "tiny.txt"
    run = run_alone(tmp_path / "run", adapting(first, **changes), processes=processes, data=data)
    assert run.end_class is EndClass.COMPLETED, run.end
    expected = adapted
    if "optimizer" in changes:
        expected = run_alone(tmp_path / "alone", adapting(first, **changes), data=data)
    assert run.series("train/loss")[20] == pytest.approx(expected.series("train/loss")[20], rel=1e-4)
    whole, parts = (load_exported(each.output / "model")[0].state_dict() for each in (expected, run))
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-3, atol=1e-4)


def test_bf16_keeps_the_adapters_exact_while_the_rest_is_rounded(first: FinishedRun, tmp_path: Path) -> None:
    data = first.output.parent / "tiny.txt"
    run = run_alone(tmp_path / "run", adapting(first, precision="bf16"), processes=2, data=data)
    losses = run.series("evaluation/loss")
    assert losses[20] < losses[0] - 0.01


def test_adapters_need_a_model() -> None:
    with pytest.raises(ValueError, match=r"lora adapts a trained model; name it in model\.base"):
        tiny_training(lora=LORA)


@pytest.mark.parametrize("targets", [["query", "down"], ["key", "value", "output", "gate", "up"]])
@pytest.mark.parametrize("preset", ["llama-1m", "moe-1m"])
def test_counts_of_adapters_are_those_of_the_model(preset: str, targets: list[str]) -> None:
    shape = MODELS[preset]
    model = Decoder(shape, 300, 32)
    add_adapters(model, LoraSpec(rank=4, targets=targets))
    counted = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert counted == shape.adapter_parameters(4, targets)


def test_dropout_drops_inputs_of_adapters_in_training_alone() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 8, bias=False)
    adapter, plain = LoRALinear(linear, 4, 2.0, dropout=0.25), LoRALinear(linear, 4, 2.0)
    for name in ("lora_a", "lora_b"):
        matrix = torch.randn_like(getattr(plain, name))
        for module in (adapter, plain):
            getattr(module, name).data.copy_(matrix)
    x_BI = torch.randn(2, 64)
    with torch.no_grad():
        assert torch.equal(adapter(x_BI), plain(x_BI))
    expected, mean = plain(x_BI), adapter(x_BI.expand(4000, 2, 64)).mean(0)
    assert not torch.equal(adapter(x_BI), expected)
    assert torch.allclose(mean, expected, atol=0.05 * expected.abs().max().item())
    seeded = []
    for _ in range(2):
        seed_dropout(1, 2, 3)
        seeded.append(adapter(x_BI))
    assert torch.equal(*seeded)
    seed_dropout(1, 3, 3)
    assert not torch.equal(adapter(x_BI), seeded[0])


@pytest.mark.parametrize("parallelism", [{}, {"tensor": 2}], ids=str)
def test_a_resumed_run_drops_the_same_inputs_recomputed_or_not(
    first: FinishedRun, tmp_path: Path, parallelism: dict[str, Any]
) -> None:
    data = first.output.parent / "tiny.txt"
    fields: dict[str, Any] = {"lora": {**LORA, "dropout": 0.3}, "parallelism": parallelism}
    whole = run_alone(tmp_path / "whole", adapting(first, **fields), data=data, processes=2)
    full = adapting(first, activation_checkpointing="full", **fields)
    stopped = run_alone(tmp_path / "stopped", full, data=data, processes=2, at_first_checkpoint=stop, every_steps=5)
    assert stopped.end_class is EndClass.STOPPED, stopped.end["message"]
    resumed = run_alone(tmp_path / "stopped", full, data=data, processes=2)
    assert resumed.end_class is EndClass.COMPLETED, resumed.end["message"]
    assert resumed.series("train/loss") == pytest.approx(whole.series("train/loss"), rel=1e-5)
    without = run_alone(tmp_path / "without", adapting(first, parallelism=parallelism), data=data, processes=2)
    assert whole.series("train/loss")[10] != pytest.approx(without.series("train/loss")[10], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [LORA, {**LORA, "dropout": 0.1, "quantization": "nf4"}], ids=str)
def test_adapters_continue_from_their_copies(first: FinishedRun, tmp_path: Path, lora: dict) -> None:
    training = adapting(first, steps=60, lora=lora)
    undisturbed = shadow_run(tmp_path / "undisturbed", training, restarts=0, shadow="none")
    run = shadow_run(tmp_path / "run", training, after_step(30, kill(1)))
    assert [event["tier"] for event in run.events("checkpoint.restored")] == ["shadow"]
    assert run.series("train/loss") == undisturbed.series("train/loss")
