"""What depends on the device: the precision `auto`, TF32, attention in fp32."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from tests.trainer.runs import TINY, run_alone, tiny_training
from trainer.contract.cost import RankCost
from trainer.contract.parallelism import MeshSizes
from trainer.contract.precision import accelerator_has_bf16, fp32_cost
from trainer.contract.training import TrainingSpec
from trainer.models.attention import attend
from trainer.training.device import allow_tf32, prefer_fast_attention
from trainer.training.kernel_report import attention_kernels


@pytest.mark.parametrize(
    ("written", "has_bf16", "resolved"),
    [("auto", True, "bf16"), ("auto", False, "fp32"), ("fp32", True, "fp32"), ("fp8", False, "fp8")],
)
def test_only_auto_depends_on_the_device(written: str, has_bf16: bool, resolved: str) -> None:
    training = tiny_training(precision=written).with_precision(has_bf16=has_bf16)
    assert training.precision == resolved
    assert training.computes_in_bf16 == (resolved != "fp32")


def test_a_spec_without_precision_computes_on_cpus_as_one_in_fp32(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"steps": 3, "schedule": {"warmup_steps": 1}}
    auto, fp32 = tiny_training(**fields), tiny_training(**fields, precision="fp32")
    assert auto.precision == "auto"
    runs = [run_alone(tmp_path / training.precision, training) for training in (auto, fp32)]
    assert [run.events("settings.resolved")[0]["precision"] for run in runs] == ["fp32", "fp32"]
    assert runs[0].series("train/loss") == runs[1].series("train/loss")
    assert runs[0].events("precision.slow") == []
    assert runs[0].events("settings.resolved")[0]["attention"] == "flash"


SINKS = {"attention_sinks": True, "sliding_window": 16, "full_attention_every": 2}
"""As in gpt-oss: windows and no windows in turn."""


@pytest.mark.parametrize(
    ("fields", "sizes", "kernels"),
    [
        ({}, MeshSizes(), "flash"),
        ({"data": TINY["data"] | {"packing": "documents"}}, MeshSizes(), "flash"),
        ({"model": {"preset": "llama-1m"}}, MeshSizes(), "flash"),
        ({"model": {"shape": {**TINY["model"]["shape"], "attn_logit_softcapping": 50.0}}}, MeshSizes(), "math"),
        ({"model": {"shape": {**TINY["model"]["shape"], **SINKS}}}, MeshSizes(), "flash, math"),
        ({}, MeshSizes(context=2), "flash"),
        ({}, MeshSizes(context=2, tensor=2), "flash"),
    ],
)
def test_the_kernels_of_attention_are_found(fields: dict[str, Any], sizes: MeshSizes, kernels: str) -> None:
    assert attention_kernels(tiny_training(**fields), sizes, torch.device("cpu")) == kernels


def test_plain_products_are_called_so() -> None:
    with sdpa_kernel(SDPBackend.MATH):
        assert attention_kernels(tiny_training(), MeshSizes(), torch.device("cpu")) == "math"


def test_cudnn_is_asked_first_on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    for capability, expected in (((8, 0), None), ((9, 0), SDPBackend.CUDNN_ATTENTION)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        before = torch._C._get_sdp_priority_order()
        with prefer_fast_attention(torch.device("cuda")):
            first = torch._C._get_sdp_priority_order()[0]
        assert first == (before[0] if expected is None else int(expected))
        assert torch._C._get_sdp_priority_order() == before


def test_tf32_is_allowed_on_gpus_and_never_on_cpus() -> None:
    before = torch.get_float32_matmul_precision()
    try:
        allow_tf32(torch.device("cpu"))
        assert torch.get_float32_matmul_precision() == before == "highest"
        allow_tf32(torch.device("cuda"))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("on_gpu", "precision", "warns"),
    [(True, "fp32", True), (True, "bf16", False), (True, "fp8", False), (False, "fp32", False)],
)
def test_fp32_is_slow_on_a_gpu_only(on_gpu: bool, precision: str, warns: bool) -> None:
    assert (fp32_cost(precision, on_gpu=on_gpu) is not None) == warns


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("cpu", False), ("h100", True), ("H200-141GB", True), ("nvidia-a100", True), ("l40s", True), ("mi300x", True),
        ("v100", None), ("t4", None), ("a1000", None), ("gpu", None),
    ],
)  # fmt: skip
def test_accelerators_with_bf16_are_known_by_name(name: str, known: bool | None) -> None:
    assert accelerator_has_bf16(name) is known


class AttentionCalls(TorchFunctionMode):
    """The shape of the keys and `enable_gqa` of each call of torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[tuple[int, ...], bool]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is functional.scaled_dot_product_attention:
            self.found.append((tuple(args[1].shape), kwargs["enable_gqa"]))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("device", "dtype", "expected"),
    [
        ("meta", torch.float32, ((1, 4, 16, 8), False)),
        ("meta", torch.bfloat16, ((1, 2, 16, 8), True)),
        ("cpu", torch.float32, ((1, 2, 16, 8), True)),
    ],
)
def test_heads_are_repeated_where_no_kernel_takes_groups(
    device: str, dtype: torch.dtype, expected: tuple[tuple[int, ...], bool]
) -> None:
    query = torch.empty(1, 4, 16, 8, device=device, dtype=dtype)
    key = torch.empty(1, 2, 16, 8, device=device, dtype=dtype)
    with AttentionCalls() as calls:
        assert attend(query, key, key, None).shape == query.shape
    assert calls.found == [expected]


def test_repeated_heads_compute_the_same_as_groups() -> None:
    torch.manual_seed(1)
    query, key, value = (torch.randn(2, heads, 16, 8, requires_grad=True) for heads in (4, 2, 2))
    grouped = attend(query, key, value, None)
    gradients = torch.autograd.grad(grouped.square().sum(), (query, key, value))
    repeated = [each.repeat_interleave(2, dim=1) for each in (key, value)]
    plain = functional.scaled_dot_product_attention(query, *repeated, is_causal=True)
    torch.testing.assert_close(plain, grouped)
    torch.testing.assert_close(torch.autograd.grad(plain.square().sum(), (query, key, value)), gradients)


def test_the_estimate_of_an_accelerator_counts_the_repeated_heads() -> None:
    training = TrainingSpec.model_validate({
        **tiny_training().model_dump(), "model": {"preset": "llama-1b"}, "precision": "fp32", "sequence_length": 8192,
        "tokens_per_step": 8192, "tokenizer": {"vocab_size": 128_256}, "compile": False,
    })  # fmt: skip

    def activations(training: TrainingSpec, *, on_gpu: bool) -> int:
        return RankCost(training, 128_256, MeshSizes(), 0, 1, on_gpu=on_gpu).memory().activations

    width = 32 * 64 - 8 * 64  # of the heads that are added, for keys and for values, in each of 16 layers
    assert activations(training, on_gpu=True) - activations(training, on_gpu=False) == 16 * 2 * width * 8192 * 4
    half = training.model_copy(update={"precision": "bf16"})
    assert activations(half, on_gpu=True) == activations(half, on_gpu=False)
