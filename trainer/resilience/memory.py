"""When memory runs out: the same step in smaller micro-batches, on every rank.

What ran out on one rank leaves the others in a collective that never ends, so nothing is agreed among them: they are
ended together, and the next generation of processes is told the size. Until the first step is done that costs nothing
but their start; the numbers do not change, since gradients of more micro-batches add up to the same sums.
"""

from trainer.contract.parallelism import MeshSizes
from trainer.contract.plan import micro_batch_size, plan_mesh, smaller_micro_batch
from trainer.contract.run import RunConfig

REMEDIES = (
    "take training.activation_checkpointing full, training.optimizer.offload, a larger training.parallelism.zero or "
    "tensor, more processes, or a shorter training.sequence_length"
)


def out_of_memory(message: str, micro_batch: int) -> str:
    """What a run ended with, whose micro-batches are not to become smaller."""
    smaller = "" if micro_batch == 1 else "; leave training.parallelism.micro_batch_sequences out, or make it smaller"
    return f"{message}; a micro-batch was {micro_batch} sequences{smaller}; {REMEDIES}"


def remembered_micro_batch(run: RunConfig, vocab_size: int) -> int | None:
    """What the checkpoint that a run goes on from was trained with; None where that says nothing of this run."""
    training, sizes = run.training, _sizes(run, vocab_size)
    if training is None or sizes is None or run.resume is None or run.resume.mesh != sizes.axes:
        return None
    return run.resume.micro_batch if training.parallelism.micro_batch_sequences == "auto" else None


def halved_micro_batch(run: RunConfig, vocab_size: int, largest: int | None) -> tuple[int, int | None]:
    """(sequences of the micro-batches that memory ran out with, of those to try next); None: there are no smaller."""
    training, sizes = run.training, _sizes(run, vocab_size)
    assert training is not None and sizes is not None, "a run without a mesh takes no memory"
    tried = micro_batch_size(training, sizes, vocab_size, largest)
    return tried, smaller_micro_batch(training, sizes, vocab_size, tried)


def _sizes(run: RunConfig, vocab_size: int) -> MeshSizes | None:
    if run.training is None:
        return None
    sizes = plan_mesh(run.training, vocab_size, run.layout.world_size)
    return None if isinstance(sizes, list) else sizes
