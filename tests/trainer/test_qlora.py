"""Low-rank adapters on a base in 4 bits: its numbers, its memory, and runs that resume and export."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError
from torch import _dynamo as dynamo
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.trainer.equality import MODELS
from tests.trainer.ranks import RankPool
from tests.trainer.runs import MIXTURE, FinishedRun, run_alone, stop, tiny_training
from tests.trainer.test_lora import LORA, TOKENS, logits_of, logits_with_peft
from trainer.contract.cost import RankCost
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.parallelism import MeshSizes
from trainer.contract.run import EndClass
from trainer.contract.training import ProcessLayout, TrainingSpec
from trainer.export.folder import with_base
from trainer.export.read import StoredWeights, load_exported
from trainer.models.lora import LoRALinear, is_adapter
from trainer.models.nf4 import NF4_VALUES, NF4Weight, QuantizedLinear, dequantize, nf4_linear, quantize
from trainer.parallel.layout import ParamLayout
from trainer.parallel.mesh import Mesh
from trainer.parallel.parallelize import parallelize_model
from trainer.standalone.dry_run import bytes_of, dry_run, state_bytes

SHAPE = {"hidden_size": 128, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 256}
LATENT = MODELS["deepseek"]
QLORA = {**LORA, "quantization": "nf4"}
VOCABULARY = 300


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("first") / "run", tiny_training(model={"shape": SHAPE}))


def adapting(run: FinishedRun, **changes: Any) -> TrainingSpec:
    fields = {
        "model": {"base": str(run.output / "model")},
        "tokenizer": {},
        "lora": QLORA,
        "optimizer": {"learning_rate": 0.005},
        **changes,
    }
    return with_base(tiny_training(**fields), run.output / "model")


@pytest.fixture(scope="module")
def adapted(first: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("adapted") / "run", adapting(first), data=first.output.parent / "tiny.txt")


@pytest.fixture(scope="module")
def pool() -> RankPool:
    with RankPool(2) as started:
        yield started


def nearest(weight: torch.Tensor) -> torch.Tensor:
    """By definition: of each block, the nearest of 16 multiples of its largest magnitude, in fp64."""
    blocks = torch.nn.functional.pad(weight.double().flatten(), (0, -weight.numel() % 64)).view(-1, 64)
    scales = blocks.abs().amax(1, keepdim=True)
    multiples = scales[:, :, None] * torch.tensor(NF4_VALUES, dtype=torch.float64)
    codes = (blocks[:, :, None] - multiples).abs().argmin(-1, keepdim=True)
    return multiples.expand(*codes.shape[:2], 16).gather(-1, codes).flatten()[: weight.numel()].view_as(weight)


def test_numbers_of_nf4_are_stored_exactly_two_in_a_byte() -> None:
    weight = (torch.tensor(NF4_VALUES) * 3.0).repeat(4, 2).view(2, 64)
    packed, scales = quantize(weight)
    assert packed.tolist() == [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF] * 8
    assert scales.tolist() == [3.0, 3.0]
    assert torch.equal(dequantize(packed, scales, [2, 64], torch.float32), weight)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(96, 128), (7, 33)], ids=str)
def test_each_number_becomes_the_nearest(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    weight[0] = 0.0
    found = dequantize(*quantize(weight), list(shape), torch.float32)
    torch.testing.assert_close(found, nearest(weight).float(), rtol=1e-6, atol=1e-7)


def test_the_error_of_normal_numbers_is_that_of_the_format() -> None:
    """0.0728 of a standard deviation on average: what bitsandbytes' tests expect of blocks of 64 numbers."""
    weight = torch.randn(1024, 4096, generator=torch.Generator().manual_seed(1))
    found = dequantize(*quantize(weight), list(weight.shape), torch.float32)
    assert (found - weight).abs().mean().item() == pytest.approx(0.0728, rel=0.005)


def quantized(weight: torch.Tensor) -> NF4Weight:
    place = NF4Weight(weight)
    place.quantize_(weight)
    return place


def saved_bytes(function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int]:
    """The output, and the bytes of the largest tensor of floating-point numbers that is stored for the backward
    pass."""
    sizes = [0]

    def note(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.untyped_storage().nbytes() if tensor.is_floating_point() else 0)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        return function(), max(sizes)


@pytest.mark.parametrize("backend", [None, "aot_eager"])
@pytest.mark.parametrize(("dtype", "has_bias"), [(torch.float32, True), (torch.bfloat16, False)])
def test_an_adapter_on_4_bits_computes_as_on_the_dequantized_matrix(
    dtype: torch.dtype, has_bias: bool, backend: str | None
) -> None:
    dynamo.reset()
    torch.manual_seed(0)
    linear = nn.Linear(256, 512, bias=has_bias, dtype=dtype).requires_grad_(requires_grad=False)
    exact, packed = LoRALinear(linear, 4, 2.0), LoRALinear(linear, 4, 2.0)
    in_4_bits = quantized(linear.weight)
    exact.weight = nn.Parameter(in_4_bits.dequantize(dtype), requires_grad=False)
    del packed.weight
    packed.weight = in_4_bits
    inputs, outputs, largest = torch.randn(3, 8, 256, dtype=dtype), [], []
    for module in (exact, packed):
        module.lora_a = nn.Parameter(torch.linspace(-1, 1, 4 * 256).view(4, 256).to(dtype))
        module.lora_b = nn.Parameter(torch.linspace(1, -1, 512 * 4).view(512, 4).to(dtype))
        run = torch.compile(module, backend=backend) if backend is not None else module
        x = inputs.clone().requires_grad_()
        y, most = saved_bytes(lambda run=run, x=x: run(x))
        y.float().square().sum().backward()
        outputs.append([y, x.grad, module.lora_a.grad, module.lora_b.grad])
        largest.append(most)
    tolerance = {"rtol": 1e-4, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.5}
    for ours, theirs in zip(*reversed(outputs), strict=True):
        torch.testing.assert_close(ours, theirs, **tolerance)
    matrix = 256 * 512 * dtype.itemsize
    assert largest[0] == matrix
    assert largest[1] < matrix / 4, "the dequantized matrix is not stored for the backward pass"


def test_the_operator_is_one_that_torch_can_trace() -> None:
    packed, scales = quantize(torch.randn(128, 64))
    arguments = (torch.randn(2, 3, 64, requires_grad=True), packed, scales, [128, 64])
    assert set(torch.library.opcheck(nf4_linear, arguments).values()) == {"SUCCESS"}


def test_a_run_learns_and_its_export_is_the_base_as_it_was_plus_the_adapters(
    adapted: FinishedRun, first: FinishedRun, tmp_path: Path
) -> None:
    assert adapted.end_class is EndClass.COMPLETED, adapted.end
    losses = adapted.series("evaluation/loss")
    assert losses[0] == pytest.approx(first.series("evaluation/loss")[20], abs=0.05)
    assert losses[20] < losses[0] - 0.01
    data = first.output.parent / "tiny.txt"
    alone = run_alone(tmp_path / "alone", adapting(first, lora={**QLORA, "export": "adapter"}), data=data)
    merged = logits_with_peft(first.output / "model", alone.output / "model")
    torch.testing.assert_close(logits_of(adapted), merged, rtol=1e-4, atol=1e-5)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(adapted.output / "model", dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(logits_of(adapted), theirs.eval()(TOKENS).logits, rtol=1e-4, atol=1e-5)


def test_matrices_without_adapters_are_exported_as_they_were(first: FinishedRun, tmp_path: Path) -> None:
    training = adapting(first, lora={**QLORA, "targets": ["query", "down"]}, steps=4)
    run = run_alone(tmp_path / "run", training, data=first.output.parent / "tiny.txt")
    before, after = (load_exported(run.output / "model")[0].state_dict() for run in (first, run))
    changed = {name.split(".", 2)[2] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"attention.query.weight", "mlp.down.weight"}


def test_a_resumed_run_is_the_same_to_the_bit(adapted: FinishedRun, first: FinishedRun, tmp_path: Path) -> None:
    data = first.output.parent / "tiny.txt"
    stopped = run_alone(tmp_path / "run", adapting(first), data=data, every_steps=4, at_first_checkpoint=stop)
    assert stopped.end_class is EndClass.STOPPED
    resumed = run_alone(tmp_path / "run", adapting(first), data=data, every_steps=4)
    assert resumed.series("train/loss") == adapted.series("train/loss")
    before, after = (load_exported(run.output / "model")[0].state_dict() for run in (adapted, resumed))
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize(
    "changes",
    [
        {"parallelism": {"zero": 0}, "activation_checkpointing": "selective"},
        {"parallelism": {"zero": 1}},
        {"parallelism": {"zero": 2, "micro_batch_sequences": 2}},
        {"parallelism": {"zero": 3}, "activation_checkpointing": "full"},
        {"parallelism": {"tensor": 2}},
        {"parallelism": {"context": 2}},
        {"parallelism": {"pipeline": 2}},
        {"parallelism": {"pipeline": 2, "pipeline_schedule": "zbv_zero_bubble", "micro_batch_sequences": 1},
         "model": "four"},
    ],
    ids=str,
)  # fmt: skip
def test_any_mesh_trains_the_same_adapters(
    changes: dict[str, Any], first: FinishedRun, adapted: FinishedRun, tmp_path: Path
) -> None:
    data, base, expected = first.output.parent / "tiny.txt", first, adapted
    if changes.pop("model", None) == "four":
        model = {"shape": {**SHAPE, "num_layers": 4}}
        base = run_alone(tmp_path / "four", tiny_training(model=model, steps=4), data=data)
        expected = run_alone(tmp_path / "alone", adapting(base), data=data)
    run = run_alone(tmp_path / "run", adapting(base, **changes), processes=2, data=data)
    assert run.end_class is EndClass.COMPLETED, run.end
    assert run.series("train/loss")[20] == pytest.approx(expected.series("train/loss")[20], rel=1e-4)
    whole, parts = (load_exported(each.output / "model")[0].state_dict() for each in (expected, run))
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-3, atol=2e-4)


def test_bf16_and_a_mixture_of_experts_learn(first: FinishedRun, tmp_path: Path) -> None:
    data = first.output.parent / "tiny.txt"
    base = run_alone(tmp_path / "base", tiny_training(model={"shape": MIXTURE}), data=data)
    for name, run in (("dense", first), ("mixture", base)):
        training = adapting(run, precision="bf16", parallelism={"micro_batch_sequences": 2})
        losses = run_alone(tmp_path / name, training, processes=2, data=data).series("evaluation/loss")
        assert losses[20] < losses[0] - 0.01


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp8"}, "lora.quantization nf4 has no fp8 products.*set precision to bf16"),
        ({"model": {"base": "model:x", "shape": LATENT}}, "nf4 is not supported for a model with mla; set it to none"),
        ({"lora": {"quantization": "int3"}}, "Input should be 'none' or 'nf4'"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str) -> None:
    fields = {"model": {"base": "model:x"}, "tokenizer": {}, "lora": QLORA, **changes}
    with pytest.raises(ValidationError, match=message):
        tiny_training(**fields)


def test_tensor_ranks_that_would_cut_blocks_are_refused(first: FinishedRun) -> None:
    problems = plan_mesh(adapting(first, parallelism={"tensor": 4, "zero": 0}), VOCABULARY, 4)
    assert isinstance(problems, list)
    found = [each.message for each in problems if each.field == "lora/quantization"]
    assert found == [
        "lora.quantization nf4 has a scale for each 64 numbers of a row, and with tensor 4 a row of num_heads 4 x head "
        "size 32 is 32 numbers on a rank; take a tensor with which it is a multiple of 64, 1 if there is none, or "
        "lora.quantization none"
    ]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("world", "parallelism"),
    [(1, {}), (2, {"zero": 2}), (2, {"zero": 3}), (2, {"tensor": 2}), (2, {"pipeline": 2})],
    ids=str,
)
def test_the_estimate_is_what_a_rank_holds(
    first: FinishedRun, world: int, parallelism: dict[str, Any], precision: str
) -> None:
    training = adapting(first, parallelism=parallelism, precision=precision)
    sizes = plan_mesh(training, VOCABULARY, world)
    assert isinstance(sizes, MeshSizes)
    for place in range(sizes.pipeline):
        held = state_bytes(training, VOCABULARY, sizes, place * (world // sizes.pipeline))
        memory = RankCost(training, VOCABULARY, sizes, place).memory()
        assert memory.weights == pytest.approx(held.weights, rel=0.01)
        assert memory.optimizer == pytest.approx(held.optimizer, rel=0.01)


def test_a_model_of_8_billion_parameters_fits_one_small_gpu() -> None:
    fields = {"model": {"base": "model:x", "preset": None}, "tokenizer": {}, "sequence_length": 2048}
    fields |= {"tokens_per_step": 8 * 2048, "precision": "bf16", "activation_checkpointing": "full"}
    shape = tiny_training(model={"preset": "llama-8b"}).model.resolve()
    found = {}
    for quantization in ("none", "nf4"):
        spec = tiny_training(**fields, lora={"rank": 16, "quantization": quantization})
        training = spec.with_base("model:x", shape, 128_256, "0" * 64)
        found[quantization] = RankCost(training, 128_256, MeshSizes(), 0, 1).memory()
        (line,) = [each for each in dry_run(training, ProcessLayout()) if each.startswith("  state: ")]
        assert line.startswith("  state: 8,072,204,288 parameters"), line
    matrices = 32 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14_336)
    assert found["none"].weights - found["nf4"].weights == matrices * 2 - matrices * 36 // 64
    assert found["nf4"].weights < 5.8 * 2**30
    assert found["nf4"].total < 9 * 2**30 < 17 * 2**30 < found["none"].total


class PeakBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations have made and that are alive, at most."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor) and each.device.type != "meta":
                storage = each.untyped_storage()
                self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._alive = {key: each for key, each in self._alive.items() if not each[0].expired()}
        self.peak = max(self.peak, sum(num_bytes for _, num_bytes in self._alive.values()))
        return result


def loaded(mesh: Mesh, training: TrainingSpec, folder: Path) -> tuple[int, int, int]:
    """Of a load: the most bytes alive, the bytes of the weights, and what is not in 4 bits."""
    sizes = plan_mesh(training, VOCABULARY, mesh.world_size)
    assert isinstance(sizes, MeshSizes), sizes
    stored = StoredWeights(folder, training.model.resolve())

    def read(place: ParamLayout) -> torch.Tensor | None:
        return None if is_adapter(place.name) else stored.part_of(place)

    with PeakBytes() as counter:
        model = parallelize_model(training, VOCABULARY, mesh.with_sizes(sizes), 1, load_shard=read)
    held = bytes_of(model, training).weights
    frozen = sum(each.nbytes for each in model.weights.all_params.values() if not each.requires_grad)
    assert any(isinstance(each, QuantizedLinear | LoRALinear) for each in model.stages[0].modules())
    del model
    return counter.peak, held, frozen


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_base_is_quantized_tensor_by_tensor_as_it_is_loaded(
    precision: str, pool: RankPool, first: FinishedRun, tmp_path: Path
) -> None:
    shape = {**SHAPE, "num_layers": 16}
    fields: dict[str, Any] = {"steps": 1, "schedule": {"warmup_steps": 0}}
    small = tiny_training(model={"shape": shape}, **fields)
    base = run_alone(tmp_path / "base", small, data=first.output.parent / "tiny.txt")
    training = adapting(base, precision=precision)
    ((peak, held, frozen),) = pool.run(1, loaded, training, base.output / "model")
    matrix = 4 * 128 * 256
    whole = 16 * training.model.resolve().linear_parameters(0)
    copies = held - frozen if precision == "bf16" else 0  # of the adapters, to compute with
    assert held < peak < held + copies + 6 * matrix
    assert peak < 2 * whole
