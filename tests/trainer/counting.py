"""What a step really holds and sends, counted on each rank while it runs."""

from collections import Counter
from typing import Any

import torch
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode

from tests.trainer.equality import Case, built, my_batches, step_batch
from trainer.contract import cost
from trainer.parallel import data
from trainer.parallel.mesh import Mesh
from trainer.resilience.assignment import Assignment
from trainer.standalone.dry_run import StateBytes, bytes_of
from trainer.training.activation_checkpointing import apply_activation_checkpointing


class SentBytes(TorchDispatchMode):
    """Bytes that this rank sends, by operation, if a ring does it."""

    def __init__(self) -> None:
        super().__init__()
        self.by_operation: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = function(*args, **(kwargs or {}))
        name = function._schema.name
        if name.startswith(("c10d::", "_c10d_functional::")):
            self._count(name.split("::")[1], args, result)
        return result

    def _count(self, name: str, args: tuple, result: Any) -> None:
        if name == "send":
            self.by_operation["send"] += _bytes(args[0][0])
        elif name == "allreduce_":
            ranks = _ranks(args[1])
            self.by_operation["all_reduce"] += sum(2 * _bytes(t) * (ranks - 1) // ranks for t in args[0])
        elif name in ("_allgather_base_", "_reduce_scatter_base_"):
            kind = "all_gather" if "gather" in name else "reduce_scatter"
            self.by_operation[kind] += abs(_bytes(args[0]) - _bytes(args[1]))
        elif name in ("all_gather_into_tensor", "reduce_scatter_tensor"):
            self.by_operation[name.removesuffix("_into_tensor").removesuffix("_tensor")] += abs(
                _bytes(args[0]) - _bytes(result)
            )
        elif name == "alltoall_base_":
            group, rows = torch.distributed.ProcessGroup.unbox(args[2]), args[4]
            stays = rows[group.rank()] / sum(rows) if sum(rows) else 1 / group.size()
            self.by_operation["all_to_all"] += round(_bytes(args[1]) * (1 - stays))
        elif name == "all_to_all_single":
            ranks = _resolve_process_group(args[3]).size()
            self.by_operation["all_to_all"] += _bytes(args[0]) * (ranks - 1) // ranks
        else:
            assert name in ("recv_", "wait_tensor", "_wrap_tensor_autograd"), f"{name} is not counted"


def _ranks(group: Any) -> int:
    return torch.distributed.ProcessGroup.unbox(group).size()


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def counted_step(mesh: Mesh, case: Case, small_bytes: int) -> tuple[StateBytes, dict[str, int], int]:
    """On a rank: (what it holds, what it sent by operation in a step, its place in the pipeline)."""
    data.MAX_SINGLE_GROUP_BYTES = cost.MAX_SINGLE_GROUP_BYTES = cost.MAX_UNREDUCED_GRADIENT_BYTES = small_bytes
    model, part = built(mesh, case.spec(), by_block=small_bytes == 0)
    for stage in model.stages:
        apply_activation_checkpointing(stage, case.spec())
    batches = my_batches(step_batch(case.packed), part)
    with SentBytes() as sent:
        model.forward_backward(batches, 512.0)
    return bytes_of(model, case.spec()), dict(sent.by_operation), model.weights.mesh.coordinate("pipeline")


def work_and_list_micro_batches(assignment: Assignment) -> None:
    """Write the sizes of the micro-batches of each call of the model, a line for each; stands in for `run_worker`."""
    from trainer.agent.worker_process import run_worker
    from trainer.parallel.parallelize import ParallelModel

    forward_backward = ParallelModel.forward_backward

    def list_sizes(self: ParallelModel, batches: list[Any], *arguments: Any) -> Any:
        with (assignment.work / "sizes").open("a") as file:
            file.write(f"{[batch.tokens_BS.shape[0] for batch in batches]}\n")
        return forward_backward(self, batches, *arguments)

    ParallelModel.forward_backward = list_sizes
    run_worker(assignment)
