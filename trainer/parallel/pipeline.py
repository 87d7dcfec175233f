"""Pipeline parallelism by torch's schedules: training steps and evaluation over this rank's stages.

Every pipeline rank loads the sequences of the step. The first stage reads the tokens, the last one the targets, and all
stages the document numbers and positions, so ranks send only hidden states, [b, S / context / tensor, D].
"""

from collections.abc import Callable
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


EndPhase = Callable[[str], None]


class TimedStage(PipelineStage):
    """A pipeline stage that reports its phases to `end_phase`: `idle` at the start of a pass, its name at the end."""

    def __init__(self, *args: Any, end_phase: EndPhase, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._end_phase = end_phase

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Run a forward pass, timed."""
        return self._timed("forward", super().forward_one_chunk, *args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Run a backward pass, timed."""
        return self._timed("backward", super().backward_one_chunk, *args, **kwargs)

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Run the weight part of a backward pass, timed."""
        return self._timed("backward", super().backward_weight_one_chunk, *args, **kwargs)

    def _timed(self, name: str, compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._end_phase("idle")
        result = compute(*args, **kwargs)
        self._end_phase(name)
        return result


class Pipeline:
    """Runs micro-batches through the stages. All have the same shape; their number may differ from call to call."""

    def __init__(
        self, stages: list[Decoder], spec: ParallelismSpec, mesh: Mesh, batch: tuple[int, int], dtype: torch.dtype
    ) -> None:
        """Create the pipeline of this rank. `batch`: (sequences of a micro-batch, this rank's tokens of a sequence)."""
        self._stages, self._spec, self._mesh = stages, spec, mesh
        self._batch, self._dtype = batch, dtype
        self._divisor = 1.0
        self._end_phase: EndPhase = lambda name: None
        self._schedules: dict[int, Any] = {}
        self._numbers = stage_numbers(spec, mesh.coordinate("pipeline"))
        self._has_head = any(stage.head is not None for stage in stages)

    def forward_backward(self, batches: list[MicroBatch], divisor: float | Tensor, end_phase: EndPhase) -> list[Tensor]:
        """Return the loss / divisor of each micro-batch where the head is, none elsewhere; gradients are left on the
        parameters.

        `end_phase` receives `forward`, `backward` and, for the time between them in which this rank waited, `idle`.
        """
        self._divisor, self._end_phase = divisor, end_phase
        losses = self._run(self._schedule(len(batches)), batches)
        end_phase("idle")
        return losses

    def losses(self, batches: list[MicroBatch]) -> Tensor:
        """Return the summed losses without gradients where the head is, 0 elsewhere."""
        total = torch.zeros((), device=self._mesh.device)
        for loss in self.head_outputs(batches):
            total += loss
        return total

    def head_outputs(self, batches: list[MicroBatch]) -> list[Tensor]:
        """Return what the head makes of each micro-batch, without gradients; nothing on ranks without the head."""
        return self._forward_only([(b.tokens_BS, b.targets_BS, b.documents_BS, b.positions_BS) for b in batches])

    def logits(self, tokens_BS: Tensor, positions_BS: Tensor) -> Tensor | None:
        """Return the logits, [B, S, V], on the rank with the head, None on the others."""
        results = self._forward_only([(tokens_BS, None, None, positions_BS)])
        return results[0] if results else None

    def _forward_only(self, batches: list[tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]]) -> list[Tensor]:
        """Return the head's results for each (tokens, targets, documents, positions); none where there is no head.
        Every stage in turn takes all batches.

        Torch's schedules keep their backward actions when they evaluate, which the V-shaped ones do not survive.
        """
        handed: list[Tensor] = []
        sent: list[tuple[dist.Work, Tensor]] = []
        found: list[Tensor] = []
        for number, stage in zip(self._numbers, self._stages, strict=True):
            results: list[Tensor] = []
            for place, (tokens_BS, targets_BS, *rest) in enumerate(batches):
                if stage.embedding is not None:
                    x = tokens_BS
                else:
                    x = handed[place] if number - 1 in self._numbers else self._receive(number - 1, stage, tokens_BS)
                result = stage(x, targets_BS if stage.head is not None else None, *rest)
                if stage.head is not None:
                    found.append(result)
                elif number + 1 in self._numbers:
                    results.append(result)
                else:
                    sent.append((self._send(result.contiguous(), number + 1), result))
            handed = results
        for work, _ in sent:
            work.wait()
        return found

    def _receive(self, number: int, stage: Decoder, tokens_BS: Tensor) -> Tensor:
        x = torch.empty(_hidden_shape(stage, *tokens_BS.shape), dtype=self._dtype, device=self._mesh.device)
        dist.recv(x, self._rank_of(number), self._mesh.group("pipeline"))
        return x

    def _send(self, x: Tensor, number: int) -> dist.Work:
        work = dist.isend(x, self._rank_of(number), self._mesh.group("pipeline"))
        assert work is not None
        return work

    def _rank_of(self, number: int) -> int:
        """Return the rank that has a stage."""
        ranks = self._mesh.peers("pipeline")
        return next(rank for place, rank in enumerate(ranks) if number in stage_numbers(self._spec, place))

    def _run(self, schedule: Any, batches: list[MicroBatch]) -> list[Tensor]:
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
        return [loss.detach() for loss in losses]

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
        fixed = {"n_microbatches": num_micro_batches, "loss_fn": self._scale_loss, "scale_grads": False}
        if self._spec.pipeline_schedule in _ONE_STAGE:
            return _ONE_STAGE[self._spec.pipeline_schedule](made[0], **fixed)
        return _MANY_STAGES[self._spec.pipeline_schedule](made, **fixed)

    def _make_stage(self, number: int, stage: Decoder, group: dist.ProcessGroup) -> PipelineStage:
        """Create a stage with the shapes of its inputs and outputs, so that torch does not run it to infer them."""
        sequences, tokens = self._batch
        hidden = torch.empty(
            _hidden_shape(stage, sequences, tokens), dtype=self._dtype, device="meta", requires_grad=True
        )
        token_ids = torch.empty(sequences, tokens, dtype=torch.int64, device="meta")
        loss = torch.empty((), device="meta", requires_grad=True)
        return TimedStage(
            stage, number, self._spec.num_stages, self._mesh.device, group=group,
            input_args=(token_ids,) if stage.embedding is not None else (hidden,),
            output_args=(loss,) if stage.head is not None else (hidden,),
            end_phase=lambda name: self._end_phase(name),
        )  # fmt: skip

    def _scale_loss(self, loss: Tensor, _: Tensor) -> Tensor:
        return loss / self._divisor


def _hidden_shape(stage: Decoder, sequences: int, tokens: int) -> tuple[int, int, int]:
    return sequences, tokens // stage.sequence_shards, stage.shape.hidden_size
