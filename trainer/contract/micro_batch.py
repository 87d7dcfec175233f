"""Choose the size of micro-batches by the memory of the accelerator, if `micro_batch_sequences` is `auto`."""

from collections.abc import Iterator

from trainer.contract.cost import RankCost
from trainer.contract.evaluation import EvaluationSettings
from trainer.contract.forward_cost import ForwardCost
from trainer.contract.launch_plan import micro_batch_size, schedule_problem
from trainer.contract.parallelism import MeshSizes
from trainer.contract.training import TrainingSpec

MEMORY_SHARE = 0.8
"""Share of the device's memory that the estimate may take; the rest is for temporary buffers of operations and for the
fragments of the allocator."""
MAX_MICRO_BATCH_TOKENS = 2**16
"""Maximum tokens of a micro-batch on a rank, unless one sequence has more. Matrix products of so many rows use any
device fully, and indices of their elements stay within 32 bits."""
PROCESS_BYTES = 350 * 2**20
"""Memory of a process without a model: interpreter, torch and communicators in the node's memory. The same is reserved
on an accelerator for its context; NCCL's buffers are in `Memory.communicators`."""


def rank_cost(
    training: TrainingSpec,
    vocab_size: int,
    sizes: MeshSizes,
    pipeline_rank: int,
    micro_batch: int | None = None,
    *,
    evaluation: EvaluationSettings | None,
    on_gpu: bool,
) -> RankCost:
    """Return the memory and traffic of a rank that trains, or of an `evaluation` of the model of `training`."""
    if evaluation is None:
        return RankCost(training, vocab_size, sizes, pipeline_rank, micro_batch, on_gpu=on_gpu)
    return ForwardCost(
        training, vocab_size, sizes, pipeline_rank, micro_batch, evaluation=evaluation, on_gpu=on_gpu
    )  # fmt: skip


def find_largest_micro_batch(
    training: TrainingSpec,
    sizes: MeshSizes,
    vocab_size: int,
    device_bytes: int | None,
    evaluation: EvaluationSettings | None = None,
) -> int | None:
    """Return the most sequences whose estimate is within MEMORY_SHARE of the accelerator's `device_bytes`.

    `evaluation`: of an evaluation job, which only needs the memory of forward passes.

    The smallest possible size if none is. None if the spec sets the size, or for a device of unknown memory (`None`),
    such as the CPU, whose memory other processes use too: then `micro_batch_size` goes by the logits.
    """
    if device_bytes is None or training.parallelism.micro_batch_sequences != "auto":
        return None
    size = None
    for size in _sizes(training, sizes, vocab_size):
        if estimate_device_bytes(training, sizes, vocab_size, size, evaluation) <= MEMORY_SHARE * device_bytes:
            return size
    return size


def estimate_device_bytes(
    training: TrainingSpec,
    sizes: MeshSizes,
    vocab_size: int,
    micro_batch: int,
    evaluation: EvaluationSettings | None = None,
) -> int:
    """Return the bytes on the accelerator of the rank that needs most, with micro-batches of this size.

    `evaluation`: as in `find_largest_micro_batch`.
    """
    places = range(sizes.pipeline)
    ranks = (
        rank_cost(training, vocab_size, sizes, place, micro_batch, evaluation=evaluation, on_gpu=True).memory()
        for place in places
    )
    return PROCESS_BYTES + max(each.total for each in ranks)


def _sizes(training: TrainingSpec, sizes: MeshSizes, vocab_size: int) -> Iterator[int]:
    """Yield the sizes that divide a step evenly and that the pipeline schedule accepts, the largest first."""
    bound = max(1, MAX_MICRO_BATCH_TOKENS * sizes.context // training.sequence_length)
    while bound > 0:
        size = micro_batch_size(training, sizes, vocab_size, bound=bound)
        if schedule_problem(training, sizes, size) is None:
            yield size
        bound = min(bound, size) - 1
