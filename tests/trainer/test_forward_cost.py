"""The estimate of an evaluation's memory, beside what torch allocates while it computes."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from tests.trainer.activations import BATCH, BLOCK, BLOCKS, LENGTH, VOCABULARY
from tests.trainer.agent_api import AgentApi
from tests.trainer.runs import run_alone, tiny_training
from tests.trainer.test_evaluation_job import evaluation_run, json_lines
from tests.trainer.test_platform_runs import supervisor_for
from trainer.agent import worker_group
from trainer.agent.worker_process import run_worker
from trainer.contract.cost import RankCost
from trainer.contract.evaluation import EvaluationJobSpec, EvaluationSettings
from trainer.contract.forward_cost import MAX_LOGITS_CHUNK_BYTES_ON_CPU, MAX_SCORES_BLOCK_BYTES_ON_CPU, ForwardCost
from trainer.contract.launch_plan import micro_batch_size, plan_mesh
from trainer.contract.mesh_choice import resolve_parallelism
from trainer.contract.micro_batch import MEMORY_SHARE, estimate_device_bytes, find_largest_micro_batch
from trainer.contract.parallelism import MeshSizes
from trainer.contract.run import EndClass
from trainer.contract.training import ProcessLayout, TrainingSpec
from trainer.models import attention_kernels, loss
from trainer.models.cache import use_kv_cache
from trainer.models.decoder import Decoder, initialise
from trainer.resilience.assignment import Assignment

TOLERANCE = 0.2
"""That of the estimate of activations in training, of blocks that are not compiled."""
NUM_TOKENS = 32
H100 = 80 * 2**30
TASKS: dict[str, dict[str, Any]] = {
    "loss": {"name": "held-out", "kind": "loss", "source": "dataset:texts", "format": "jsonl"},
    "multiple_choice": {"name": "facts", "kind": "multiple_choice", "source": "dataset:facts"},
    "generation": {"name": "answers", "kind": "generation", "source": "dataset:texts", "scores": ["f1"],
                   "max_tokens": NUM_TOKENS},
}  # fmt: skip


def settings(*kinds: str, length: int = LENGTH) -> EvaluationSettings:
    tasks = [TASKS[kind] for kind in kinds]
    return EvaluationSettings.model_validate({"tasks": tasks, "sequence_length": length})


def training_of(preset: str, length: int = 4096, **parallelism: Any) -> tuple[TrainingSpec, EvaluationSettings]:
    """Return the spec that loads a model to evaluate, and its evaluation."""
    own = {"tasks": [TASKS["loss"]], "sequence_length": length, "precision": "bf16", "parallelism": parallelism}
    spec = EvaluationJobSpec.model_validate({"model": "model:bot@1", **own})
    model = spec.as_training().model.model_copy(update={"base": None, "preset": preset})
    return spec.as_training().model_copy(update={"model": model}), spec


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the most bytes that torch's allocator of the CPU has given out during a call, beyond those before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        call()
    recorded = None if profiler.profiler is None else profiler.profiler.kineto_results
    assert recorded is not None
    events = [each for each in recorded.events() if each.name() == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def score(decoder: Decoder, tokens_BS: torch.Tensor) -> None:
    decoder(tokens_BS, tokens_BS)


def generate(decoder: Decoder, tokens_BS: torch.Tensor) -> None:
    """Compute prompts, and two tokens of each answer."""
    prompts_BN = tokens_BS[:, : LENGTH - NUM_TOKENS]
    with use_kv_cache([decoder], LENGTH) as cache:
        cache.prefill([prompts_BN.shape[1]] * BATCH, tokens_BS.device)
        decoder(prompts_BN, positions_BS=cache.positions_BN)
        for _ in range(2):
            cache.step()
            decoder(tokens_BS[:, :1], positions_BS=cache.positions_BN)


@pytest.mark.parametrize(("kind", "compute"), [("loss", score), ("generation", generate)])
@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "fp32") for name in BLOCKS), ("dense", "bf16"), ("mixture", "bf16")]
)
def test_what_forward_passes_allocate_is_predicted(
    name: str, precision: str, kind: str, compute: Callable[[Decoder, torch.Tensor], None]
) -> None:
    shape = {**BLOCK, **BLOCKS[name], "num_layers": 2}
    training = tiny_training(
        model={"shape": shape}, sequence_length=LENGTH, tokens_per_step=BATCH * LENGTH, precision=precision
    )
    decoder = Decoder(training.model.resolve(), VOCABULARY, LENGTH).requires_grad_(requires_grad=False)
    decoder.zero_buffers()
    initialise(decoder, 1)
    decoder.to(torch.float32 if precision == "fp32" else torch.bfloat16)
    assert decoder.head is not None
    decoder.head.is_per_token = True
    tokens_BS = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    with torch.no_grad():
        found = peak_bytes(lambda: compute(decoder, tokens_BS))
    memory = ForwardCost(training, VOCABULARY, MeshSizes(), 0, BATCH, evaluation=settings(kind)).memory()
    assert memory.weights == sum(each.nbytes for each in decoder.parameters())
    assert max(memory.activations, memory.logits) + memory.cache == pytest.approx(found, rel=TOLERANCE)


@pytest.mark.parametrize("cap", [None, 30.0])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_a_large_vocabulary_allocates_is_predicted(precision: str, cap: float | None) -> None:
    vocabulary, shape = 30_000, {**BLOCK, "intermediate_size": 256, "final_logit_softcapping": cap}
    training = tiny_training(
        model={"shape": shape}, sequence_length=LENGTH, tokens_per_step=BATCH * LENGTH, precision=precision
    )
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    decoder = Decoder(training.model.resolve(), vocabulary, LENGTH).requires_grad_(requires_grad=False).to(dtype)
    decoder.zero_buffers()
    initialise(decoder, 1)
    assert decoder.head is not None
    decoder.head.is_per_token = True
    tokens_BS = torch.randint(0, vocabulary, (BATCH, LENGTH))
    with torch.no_grad():
        found = peak_bytes(lambda: decoder(tokens_BS, tokens_BS))
    memory = ForwardCost(training, vocabulary, MeshSizes(), 0, BATCH, evaluation=settings("loss")).memory()
    assert memory.logits > memory.activations
    assert memory.logits == pytest.approx(found, rel=TOLERANCE)


def test_blocks_and_chunks_have_the_sizes_of_the_modules_that_compute_them() -> None:
    assert loss.CHUNK_BYTES == MAX_LOGITS_CHUNK_BYTES_ON_CPU
    assert attention_kernels.BLOCK_BYTES == MAX_SCORES_BLOCK_BYTES_ON_CPU


def work_and_measure(assignment: Assignment) -> None:
    """Stands in for `run_worker`: notes the peak of what torch has allocated."""
    ends: list[SystemExit] = []

    def work() -> None:
        try:
            run_worker(assignment)
        except SystemExit as end:
            ends.append(end)

    most = peak_bytes(work)
    (assignment.work / f"{assignment.rank}-memory").write_text(str(most))
    raise ends[0]


@pytest.mark.parametrize(
    ("parallelism", "processes", "kind"),
    [({}, 1, "loss"), ({}, 1, "generation"), ({"zero": 3}, 2, "loss"), ({"tensor": 2}, 2, "generation")],
    ids=lambda value: str(value) if value else "plain",
)
def test_the_memory_of_an_evaluation_job_is_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallelism: dict[str, int], processes: int, kind: str
) -> None:
    shape = {**BLOCK, "num_layers": 3, "hidden_size": 512, "intermediate_size": 1536}
    fields: dict[str, Any] = {"steps": 1, "schedule": {"warmup_steps": 1}, "evaluation": {"sequences": 8}}
    trained = run_alone(tmp_path / "trained", tiny_training(model={"shape": shape}, **fields))
    text = "the furnace keeps an even heat for weeks, and no one has to watch it while gold is made of lead. " * 40
    rows = [{"text": text[start : start + 3000]} for start in range(64)]
    if kind == "generation":
        rows = [{"prompt": text[start : start + 480], "answer": "gold"} for start in range(32)]
    wanted = {"tasks": [TASKS[kind]], "sequence_length": LENGTH, "precision": "fp32",
             "parallelism": {**parallelism, "micro_batch_sequences": 8}}  # fmt: skip
    monkeypatch.setattr(worker_group, "run_worker", work_and_measure)
    run, keys, objects = evaluation_run(trained, processes=processes, data={"texts": json_lines(rows)}, **wanted)
    with AgentApi(run, keys, objects) as api:
        assert supervisor_for(api, tmp_path / "work").run() is EndClass.COMPLETED, api.ends
    assert run.training is not None and run.evaluation is not None
    vocabulary = run.training.tokenizer.vocab_size
    sizes = plan_mesh(run.training, vocabulary, processes)
    assert isinstance(sizes, MeshSizes)
    memory = ForwardCost(run.training, vocabulary, sizes, 0, 8, evaluation=run.evaluation).memory()
    found = max(int(file.read_text()) for file in (tmp_path / "work").rglob("*-memory"))
    assert memory.total == pytest.approx(found, rel=TOLERANCE), memory


@pytest.mark.parametrize("sizes", [MeshSizes(), MeshSizes(shard=8, zero=3), MeshSizes(pipeline=4, tensor=2)])
def test_an_evaluation_needs_less_than_training(sizes: MeshSizes) -> None:
    spec, evaluation = training_of("llama-8b", pipeline=sizes.pipeline, tensor=sizes.tensor)
    for place in range(sizes.pipeline):
        trains = RankCost(spec, 128_256, sizes, place, 1, on_gpu=True)
        forward = ForwardCost(spec, 128_256, sizes, place, 1, evaluation=evaluation, on_gpu=True)
        memory = forward.memory()
        assert (memory.gradients, memory.optimizer, memory.average, memory.saves, memory.shadows) == (0, 0, 0, 0, 0)
        assert 4 * memory.total < trains.memory().total
        sent = {each.axis: each.num_bytes for each in forward.traffic()}
        assert all(num_bytes < sum(e.num_bytes for e in trains.traffic() if e.axis == axis)
                   for axis, num_bytes in sent.items())  # fmt: skip


def test_what_is_generated_needs_more_with_longer_prompts_and_more_rows() -> None:
    def needs(length: int, rows: int) -> int:
        spec, _ = training_of("llama-1b", length)
        found = ForwardCost(
            spec, 128_256, MeshSizes(), 0, rows, evaluation=settings("generation", length=length), on_gpu=True
        ).memory()
        return found.cache

    grows = [needs(1024, 1), needs(2048, 1), needs(2048, 2)]
    assert all(before * 1.9 < after for before, after in pairwise(grows))


def test_automatic_micro_batches_of_an_evaluation_are_larger_than_those_of_training() -> None:
    spec, evaluation = training_of("llama-8b")
    sizes = plan_mesh(spec, 128_256, 8)
    assert isinstance(sizes, MeshSizes)
    trains, evaluates = (find_largest_micro_batch(spec, sizes, 128_256, H100, each) for each in (None, evaluation))
    assert trains is not None and evaluates is not None
    assert trains < evaluates
    size = micro_batch_size(spec, sizes, 128_256, bound=evaluates)
    assert estimate_device_bytes(spec, sizes, 128_256, size, evaluation) <= MEMORY_SHARE * H100


def test_an_evaluation_divides_a_model_only_as_far_as_its_forward_pass_needs() -> None:
    spec, evaluation = training_of("llama-8b", auto=True)
    layout = ProcessLayout(nodes=1, processes_per_node=2)
    trains = resolve_parallelism(spec, 128_256, layout, H100)
    evaluates = resolve_parallelism(spec, 128_256, layout, H100, evaluation)
    found = [plan_mesh(each, 128_256, 2) for each in (trains, evaluates)]
    assert [isinstance(each, MeshSizes) for each in found] == [True, True]
    sizes = found[1]
    assert isinstance(sizes, MeshSizes)
    assert estimate_device_bytes(evaluates, sizes, 128_256, 1, evaluation) <= MEMORY_SHARE * H100
    assert (sizes.tensor, sizes.pipeline, sizes.context) == (1, 1, 1), "each process computes sequences of its own"
