"""Pipeline parallelism by torch's schedules: which stages this rank has, and one step or evaluation over them.

Every pipeline rank loads the step's sequences: the first stage reads the tokens, the last one the targets, and all of
them the document numbers and positions, so only hidden states travel, [b, S / context / tensor, D].
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleDualPipeV,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleLoopedBFS,
    ScheduleZBVZeroBubble,
)

from trainer.contract.parallelism import ParallelismSpec, stage_numbers
from trainer.data.batch import MicroBatch
from trainer.models.decoder import Decoder
from trainer.parallel.mesh import Mesh

_ONE_STAGE = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
_MANY_STAGES = {
    "looped_bfs": ScheduleLoopedBFS,
    "interleaved_1f1b": ScheduleInterleaved1F1B,
    "interleaved_zero_bubble": ScheduleInterleavedZeroBubble,
    "zbv_zero_bubble": ScheduleZBVZeroBubble,
    "dualpipe_v": ScheduleDualPipeV,
}


class Pipeline:
    """Runs micro-batches of equal shape through the stages. Made for a fixed shape of micro-batch; the number of
    micro-batches may differ from call to call."""

    def __init__(
        self, stages: list[Decoder], spec: ParallelismSpec, mesh: Mesh, batch: tuple[int, int], dtype: torch.dtype
    ) -> None:
        """`batch`: sequences and tokens a sequence (this rank's) of a micro-batch."""
        self._stages, self._spec, self._mesh = stages, spec, mesh
        self._batch, self._dtype = batch, dtype
        self._divisor = 1.0
        self._schedules: dict[int, Any] = {}
        self._numbers = stage_numbers(spec, mesh.coordinate("pipeline"))
        self._has_head = any(stage.head is not None for stage in stages)

    def forward_backward(self, batches: list[MicroBatch], divisor: float | Tensor) -> Tensor:
        """The sum of the losses / divisor where the head is, 0 elsewhere; gradients are left on the parameters."""
        self._divisor = divisor
        return self._run(self._schedule(len(batches)), batches)

    def losses(self, batches: list[MicroBatch]) -> Tensor:
        """Summed losses without gradients where the head is, 0 elsewhere: every stage in turn takes all batches.

        Torch's schedules keep their backward actions when they evaluate, which the V-shaped ones do not survive.
        """
        total = torch.zeros((), device=self._mesh.device)
        handed: list[Tensor] = []
        sent: list[tuple[dist.Work, Tensor]] = []
        for number, stage in zip(self._numbers, self._stages, strict=True):
            results: list[Tensor] = []
            for place, batch in enumerate(batches):
                if stage.embedding is not None:
                    x = batch.tokens_BS
                else:
                    x = handed[place] if number - 1 in self._numbers else self._receive(number - 1, stage)
                targets = batch.targets_BS if stage.head is not None else None
                result = stage(x, targets, batch.documents_BS, batch.positions_BS)
                if stage.head is not None:
                    total += result
                elif number + 1 in self._numbers:
                    results.append(result)
                else:
                    sent.append((self._send(result.contiguous(), number + 1), result))
            handed = results
        for work, _ in sent:
            work.wait()
        return total

    def _receive(self, number: int, stage: Decoder) -> Tensor:
        x = torch.empty(self._hidden_shape(stage), dtype=self._dtype, device=self._mesh.device)
        dist.recv(x, self._rank_of(number), self._mesh.group("pipeline"))
        return x

    def _send(self, x: Tensor, number: int) -> dist.Work:
        work = dist.isend(x, self._rank_of(number), self._mesh.group("pipeline"))
        assert work is not None
        return work

    def _rank_of(self, number: int) -> int:
        """The rank that has a stage."""
        ranks = self._mesh.peers("pipeline")
        return next(rank for place, rank in enumerate(ranks) if number in stage_numbers(self._spec, place))

    def _hidden_shape(self, stage: Decoder) -> tuple[int, int, int]:
        sequences, tokens = self._batch
        return sequences, tokens // stage.spread, stage.shape.hidden_size

    def _run(self, schedule: Any, batches: list[MicroBatch]) -> Tensor:
        joined = {
            "tokens": torch.cat([batch.tokens_BS for batch in batches]),
            "targets_BS": torch.cat([batch.targets_BS for batch in batches]),
        }
        for name in ("documents_BS", "positions_BS"):
            if getattr(batches[0], name) is not None:
                joined[name] = torch.cat([getattr(batch, name) for batch in batches])
        tokens = joined.pop("tokens")
        if not self._has_head:
            del joined["targets_BS"]
        losses: list[Tensor] = []
        arguments = [tokens] if any(stage.embedding is not None for stage in self._stages) else []
        # The loss is computed by the last stage itself; the schedule wants a target to hand to its loss function.
        target = tokens if self._has_head else None
        schedule.step(*arguments, target=target, losses=losses, return_outputs=False, **joined)
        total = torch.zeros((), device=self._mesh.device)
        for loss in losses:
            total += loss.detach()
        return total

    def _schedule(self, num_micro_batches: int) -> Any:
        if num_micro_batches not in self._schedules:
            self._schedules[num_micro_batches] = self._make_schedule(num_micro_batches)
        return self._schedules[num_micro_batches]

    def _make_schedule(self, num_micro_batches: int) -> Any:
        group = self._mesh.group("pipeline")
        assert group is not None
        made = [
            self._make_stage(number, stage, group) for number, stage in zip(self._numbers, self._stages, strict=True)
        ]
        fixed = {"n_microbatches": num_micro_batches, "loss_fn": self._divided, "scale_grads": False}
        if self._spec.pipeline_schedule in _ONE_STAGE:
            return _ONE_STAGE[self._spec.pipeline_schedule](made[0], **fixed)
        return _MANY_STAGES[self._spec.pipeline_schedule](made, **fixed)

    def _make_stage(self, number: int, stage: Decoder, group: dist.ProcessGroup) -> PipelineStage:
        """With the shapes of what comes in and goes out given, so that nothing is run to find them out."""
        sequences, tokens = self._batch
        hidden = torch.empty(self._hidden_shape(stage), dtype=self._dtype, device="meta", requires_grad=True)
        words = torch.empty(sequences, tokens, dtype=torch.int64, device="meta")
        loss = torch.empty((), device="meta", requires_grad=True)
        return PipelineStage(
            stage, number, self._spec.num_stages, self._mesh.device, group=group,
            input_args=(words,) if stage.embedding is not None else (hidden,),
            output_args=(loss,) if stage.head is not None else (hidden,),
        )  # fmt: skip

    def _divided(self, loss: Tensor, _: Tensor) -> Tensor:
        return loss / self._divisor
