"""Plan the mesh and the micro-batches of a spec on a given number of processes, or explain why it does not fit.

The platform uses it to validate a spec and the trainer when it starts, so both give the same answers.
"""

from collections.abc import Iterator

from trainer.contract.hugging_face import layout_of
from trainer.contract.optimisation import NF4_BLOCK
from trainer.contract.parallelism import MeshProblem, MeshSizes, mesh_problems, mesh_sizes, pipeline_problem
from trainer.contract.training import TrainingSpec

MAX_LOGITS_BYTES = 256 * 2**20
"""Maximum size of a micro-batch's logits in fp32 if `micro_batch_sequences` is `auto`, without an accelerator whose
memory is known."""


def plan_mesh(training: TrainingSpec, vocab_size: int, world: int) -> MeshSizes | list[MeshProblem]:
    """Return the mesh of `world` ranks, or all its problems."""
    spec, shape = training.parallelism, training.model.resolve()
    sizes = mesh_sizes(spec, shape, vocab_size, world, has_small_state=training.has_quantized_base)
    if isinstance(sizes, MeshProblem):
        return [sizes, *_too_few(training, world)] if spec.data == "auto" else [sizes, *_too_few(training, spec.data)]
    try:
        layout_of(shape)  # a model that could not be exported is refused now, not at its end
    except ValueError as error:
        return [MeshProblem("model/shape", "no_layout", str(error))]
    length, compiles = training.sequence_length, training.compile is True
    problems = [
        *mesh_problems(spec, sizes, shape, vocab_size, length, compile=compiles),
        *_too_few(training, sizes.data),
        *_graph_problems(training, sizes),
        *_overlap_problems(training, sizes),
        *_quantization_problems(training, sizes),
        *_preference_problems(training, sizes),
    ]
    if problems:
        return problems
    problem = schedule_problem(training, sizes, micro_batch_size(training, sizes, vocab_size))
    return sizes if problem is None else [problem]


LEAST_EQUAL_SHARE = 0.6
"""Of the size that memory allows, what micro-batches of equal sizes must have."""


def micro_batch_size(
    training: TrainingSpec, sizes: MeshSizes, vocab_size: int, largest: int | None = None, bound: int | None = None
) -> int:
    """Return the maximum number of sequences in a micro-batch. A step is divided evenly, without a small remainder; for
    `auto` into micro-batches of the same size, for which a model is compiled once, if that is not much smaller.

    `largest`: an upper limit, found when a larger size ran out of memory. `bound`: the size for `auto` that memory
    allows (`trainer.contract.micro_batch`); None: MAX_LOGITS_BYTES decides.
    """
    asked, full = training.parallelism.micro_batch_sequences, training.batch_size_schedule.full
    share = -(-full // sizes.data)
    if asked == "auto":
        most = bound or max(1, MAX_LOGITS_BYTES // (4 * vocab_size * training.sequence_length))
        if sizes.pipeline > 1:  # as many micro-batches as keep a pipeline busy
            most = min(most, max(1, share // (2 * training.parallelism.num_stages)))
    else:
        most = asked
    most = most if largest is None else min(most, largest)
    size = -(-share // num_micro_batches(full, sizes.data, most))
    equal = (each for each in range(size, 0, -1) if full % (sizes.data * each) == 0)
    divisor = next(equal, 0)
    return divisor if asked == "auto" and divisor >= LEAST_EQUAL_SHARE * size else size


def smaller_micro_batch(training: TrainingSpec, sizes: MeshSizes, vocab_size: int, size: int) -> int | None:
    """Return about half of `size`, adjusted so that the step divides evenly and the pipeline schedule accepts it.

    None if the spec sets the size or if there is no smaller one.
    """
    if training.parallelism.micro_batch_sequences != "auto":
        return None
    for largest in range(size // 2, 0, -1):
        smaller = micro_batch_size(training, sizes, vocab_size, largest, bound=size)
        if smaller < size and schedule_problem(training, sizes, smaller) is None:
            return smaller
    return None


def num_micro_batches(sequences: int, data_ranks: int, size: int) -> int:
    """Return the number of micro-batches in a step of `sequences`, equal on all data ranks; none of them is empty."""
    fewest, most = sequences // data_ranks, -(-sequences // data_ranks)
    return max(1, min(fewest, -(-most // size)))


def is_recomputed(layer: int, num_layers: int, wanted: int | None) -> bool:
    """Whether a layer is recomputed, if `wanted` of `num_layers` are, evenly distributed over the model. None: all."""
    if wanted is None:
        return True
    return layer * wanted // num_layers != (layer + 1) * wanted // num_layers


def schedule_problem(training: TrainingSpec, sizes: MeshSizes, micro_batch: int) -> MeshProblem | None:
    """Return why the pipeline schedule refuses micro-batches of this size, None if it does not."""
    for sequences in sorted({training.batch_size_schedule.smallest, training.batch_size_schedule.full}):
        problem = pipeline_problem(training.parallelism, num_micro_batches(sequences, sizes.data, micro_batch))
        if problem is not None:
            return problem
    return None


def _graph_problems(training: TrainingSpec, sizes: MeshSizes) -> list[MeshProblem]:
    """Return why CUDA graphs cannot be used: a graph replays the same kernels on the same addresses."""
    if not training.cuda_graphs:
        return []
    moves = {
        "compile false: only compiled blocks are recorded; set compile to true": not training.compile,
        "a mixture of experts, whose numbers of rows change from step to step": training.model.resolve().moe
        is not None,
        "a pipeline, which runs several micro-batches at the same time": sizes.pipeline > 1,
        f"zero {sizes.zero}, which gathers weights at new addresses; take zero 0": sizes.zero > 0,
        "tensor or context parallelism, whose exchanges are inside the blocks": sizes.tensor * sizes.context > 1,
        "batch_ramp, which changes the size of micro-batches": training.batch_ramp is not None,
        "lora.dropout, because a recorded graph would repeat its random numbers": training.lora is not None
        and training.lora.dropout > 0,
        "evaluation.prompts, which are generated token by token": bool(training.evaluation.prompts),
    }
    return [
        MeshProblem("cuda_graphs", "no_graph", f"cuda_graphs cannot be combined with {reason}")
        for reason, is_there in moves.items()
        if is_there
    ]


def _overlap_problems(training: TrainingSpec, sizes: MeshSizes) -> list[MeshProblem]:
    if not training.parallelism.tensor_overlap:
        return []
    against = {
        "tensor 1, where nothing is exchanged; take tensor 2 or more": sizes.tensor == 1,
        "lora, whose adapters are separate matrix products": training.lora is not None,
        "precision fp8, which has other matrix products; use bf16": training.precision == "fp8",
    }
    return [
        MeshProblem("parallelism/tensor_overlap", "no_overlap", f"tensor_overlap cannot be combined with {reason}")
        for reason, is_there in against.items()
        if is_there
    ]


def _quantization_problems(training: TrainingSpec, sizes: MeshSizes) -> Iterator[MeshProblem]:
    """Yield why matrices in 4 bits cannot be divided over tensor ranks: a block of numbers on two of them would have
    two scales, and the model would not be the same on any mesh."""
    if training.lora is None or not training.has_quantized_base or sizes.tensor == 1:
        return
    shape = training.model.resolve()
    rows = {
        f"hidden_size {shape.hidden_size}": shape.hidden_size,
        f"num_heads {shape.num_heads} x head size {shape.head_size}": shape.num_heads * shape.head_size / sizes.tensor,
    }
    for size in sorted({shape.linear_mlp_size(layer) for layer in range(shape.num_layers)}):
        rows[f"the feed-forward size {size}"] = size / sizes.tensor
    for name, row in rows.items():
        if row % NF4_BLOCK:
            yield MeshProblem(
                "lora/quantization", "uneven_cut",
                f"lora.quantization {training.lora.quantization} has a scale for each {NF4_BLOCK} numbers of a row, "
                f"and with tensor {sizes.tensor} a row of {name} is {row:g} numbers on a rank; take a tensor with "
                f"which it is a multiple of {NF4_BLOCK}, 1 if there is none, or lora.quantization none",
            )  # fmt: skip


def _preference_problems(training: TrainingSpec, sizes: MeshSizes) -> list[MeshProblem]:
    """Return where preference training cannot run: the loss of a pair needs both of its answers on one rank, and the
    log-probabilities of two models at the end of the forward pass."""
    if training.preference is None:
        return []
    against = []
    if sizes.pipeline > 1:
        against.append(("parallelism/pipeline", f"pipeline {sizes.pipeline}; take 1, and tensor or zero 3 instead"))
    if sizes.context > 1:
        against.append(("parallelism/context", f"context {sizes.context}; take 1, and tensor or zero 3 instead"))
    if training.cuda_graphs:
        against.append(("cuda_graphs", "cuda_graphs true; set it to false"))
    return [
        MeshProblem(field, "no_preference", f"preference cannot be combined with {reason}") for field, reason in against
    ]


def _too_few(training: TrainingSpec, data_ranks: int) -> list[MeshProblem]:
    sequences, length = training.batch_size_schedule.smallest, training.sequence_length
    if sequences >= data_ranks:
        return []
    field = "tokens_per_step" if training.batch_ramp is None else "batch_ramp/start_tokens_per_step"
    return [
        MeshProblem(
            field, "too_few_sequences",
            f"{sequences * length} tokens are {sequences} sequences of {length}, fewer than the {data_ranks} data "
            f"ranks; take at least {data_ranks * length}, or fewer processes",
        )
    ]  # fmt: skip
