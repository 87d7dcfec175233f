"""What a run reports of its steps, and what ends it: a diverged loss, replicas that differ, a slow node."""

from collections.abc import Sequence
from math import isfinite, nan, sqrt
from statistics import mean

import torch

from trainer.checkpoint.copy_layout import Progress
from trainer.contract.manifest import EVALUATION_STEP
from trainer.contract.rollback import DIVERGED_STEPS
from trainer.contract.run import EndClass
from trainer.data.batch import MicroBatch
from trainer.errors import CorruptionError, PlaceError, TrainerError
from trainer.models.preference import preference_series
from trainer.optim.learning_rate import learning_rate
from trainer.parallel.attention_logits import largest_attention_logits
from trainer.parallel.mesh import all_reduce_world
from trainer.reporting.compute_time import ComputeSampler
from trainer.reporting.gradient_watch import GradientWatch, OutlierLimit
from trainer.reporting.layers import Layers, UpdateMeter
from trainer.reporting.replica_check import ReplicaCheck
from trainer.reporting.replica_evidence import ReplicaEvidence, Resolution
from trainer.reporting.spikes import describe_step
from trainer.reporting.stats import StepStats
from trainer.reporting.step_clock import SLOW_SAMPLES, SLOW_STEPS, SkewDetector, StepClock
from trainer.reporting.suspicion import Recomputation, StepLimits, is_exact
from trainer.reporting.throughput import model_flops_utilisation, peak_of
from trainer.training.build import TrainState
from trainer.training.evaluation import BestEvaluation, EvaluationResult

REPLACEMENT_SECONDS = 120.0
"""What a slow node must cost the rest of the run at its present speed, for a spare node to take its place: a restart
loads the state and compiles the model."""


class Monitor:
    """Reports step statistics, and ends a run when its loss diverges."""

    def __init__(self, state: TrainState) -> None:
        self._reporter, self._training, self._mesh = state.reporter, state.training, state.mesh
        self._vocab_size = state.index.vocab_size
        self._peak = peak_of(state.mesh.device, state.training.precision)
        self._stalls, self._sent = state.loader.stalls, state.model.weights.sent
        self.clock, self.sampler = (
            StepClock(state.mesh.device),
            ComputeSampler(state.mesh.device, state.mesh.sizes, state.first_step),
        )
        self._skew = SkewDetector(SLOW_SAMPLES if self.sampler.is_needed else SLOW_STEPS)
        self.replicas = ReplicaCheck(state.model.weights, state.assignment.corrupted)
        self._rank_then, rows = state.assignment.evidence or (-1, ())
        self._evidence = ReplicaEvidence(self.replicas.replicas, rows if is_exact(self._mesh.device) else ())
        self._model, self._num_layers = state.model, state.training.model.resolve().num_layers
        self.layers = Layers(state.model.weights, self._num_layers)
        self._loader = state.loader
        watch = state.training.optimizer.gradient_watch
        self.updates = UpdateMeter(state.optimizer, self.layers, state.mesh, watch.layers_every_steps)
        self._logits_every = watch.logits_every_steps
        self._resumed, self._shadows, self._writer = state.resumed, state.shadows, state.writer
        before = state.resumed.progress
        self._gradients = GradientWatch(watch, before.watch)
        self._losses = OutlierLimit(state.training.rollback.loss_sigma, before.losses)
        self._diverging, self._all_skipped = before.skipped
        self._seen_first = False
        self._has_spare_node = _knows_spare_node(state)
        self._node, self._ranks_per_node = state.assignment.node, state.assignment.run.layout.processes_per_node
        self.slow_node: PlaceError | None = None
        """Set if a spare node is to take the place of a slow one, on all ranks after the same step."""
        self.best = BestEvaluation(state.training.evaluation, before.metrics)
        self.latest = dict(before.metrics)
        for point in before.points:
            values = {name: nan if value is None else value for name, value in point.values.items()}
            self._reporter.metrics(point.step, values)

    @property
    def limits(self) -> StepLimits:
        """Return the limits of the next step, the same on all ranks."""
        return StepLimits(self._gradients.skip_limit, self._losses.limit, self._gradients.usual_limit)

    def drop_steps(self, count: int) -> None:
        """Forget the newest `count` steps, which were not reported and are taken again; their time counts."""
        self.clock.drop(count)
        self._model.weights.drop_steps(count)

    def report_recomputation(self, found: Recomputation) -> None:
        """Report a step that was taken again: the first of the ranks that were wrong does, and names its node if all of
        them are there. Raise PlaceError on the ranks of a device with a lasting fault, and on those beside them."""
        fault = found.lasting
        if fault is not None:
            self._report_corrupted(found, fault.ranks, fault.because)
            if fault.ranks:
                raise PlaceError(EndClass.NODE_UNFIT, fault.because, is_here=self._mesh.rank in fault.ranks)
        elif found.is_same:
            self._reporter.event("step.recomputed", step=found.again.step + 1, because=str(found))
        else:
            self._report_corrupted(found, found.ranks, str(found))

    def _report_corrupted(self, found: Recomputation, ranks: list[int], because: str) -> None:
        if self._mesh.rank == next(iter(ranks), 0):
            step, is_one_node = found.again.step + 1, len({rank // self._ranks_per_node for rank in ranks}) == 1
            self._reporter.event_once(
                f"step-{step}", "gradient.corrupted", step=str(step), ranks=", ".join(map(str, ranks)),
                node=self._node if is_one_node else "", because=because,
            )  # fmt: skip

    @property
    def progress(self) -> Progress:
        """Return what a stored checkpoint records beside the metrics."""
        return Progress(
            skipped=(self._diverging, self._all_skipped), watch=self._gradients.state, losses=self._losses.state
        )

    def unsaved_progress(self, last_saved: int) -> Progress:
        """Return what a shadow checkpoint records. `last_saved`: step of the newest checkpoint that was begun."""
        points = self._reporter.unsaved_metrics(with_spooled=self._shadows.is_sent_to_nodes)
        return self.progress.model_copy(
            update={"last_saved": last_saved, "metrics": dict(self.latest), "points": points}
        )

    def report_steps(self, finished: list[StepStats]) -> None:
        """Report finished steps. Raises TrainerError (LOSS_DIVERGED) after DIVERGED_STEPS such steps in a row."""
        self.sampler.plan(finished)
        for stats in finished:
            self._step(stats)

    def _step(self, stats: StepStats) -> None:
        seconds, parts = self.clock.take()
        self._writer.add_step(seconds)
        if not self._seen_first:
            self._seen_first = True
            self._reporter.phase_finished("first_step", seconds)
            self._check_first_loss(stats.loss)
        tokens_per_second = self._training.tokens_at(stats.step) / seconds
        values = {
            "train/loss": stats.loss,
            "train/learning_rate": learning_rate(self._training, stats.step),
            "train/gradient_norm": stats.gradient_norm,
            "time/step_seconds": seconds,
            "throughput/tokens_per_second": tokens_per_second,
            "throughput/tokens_per_second_per_device": tokens_per_second / self._mesh.world_size,
            "memory/peak_bytes": max(stats.memory_bytes),
            "time/longest_data_stall_seconds": max(stats.stall_seconds),
        }
        if self._mesh.world_size > 1:
            values["memory/mean_peak_bytes"] = mean(stats.memory_bytes)
            values["memory/peak_rank"] = float(stats.memory_bytes.index(max(stats.memory_bytes)))
            values["time/longest_data_stall_rank"] = float(stats.stall_seconds.index(max(stats.stall_seconds)))
        values |= model_flops_utilisation(
            self._training, self._vocab_size, tokens_per_second, self._mesh.world_size, self._peak
        )
        values |= self._split(seconds, parts) | self._compare_ranks(stats)
        if self._shadows.is_used:
            values["time/shadow_seconds"] = self._shadows.pop_stall()
            self._shadows.report_loss(stats.step, stats.loss)
            self._shadows.report_replicated(stats.step, stats.ranks_replicated)
            age = self._shadows.replica_age(stats.step + 1)
            if age is not None:
                values["checkpoint/replica_age_steps"] = float(age)
        values |= preference_series(self._training.preference, "train", stats.preference_figures)
        if self._training.data.on_corrupt == "skip":
            values["data/skipped_sequences"] = stats.skipped_sequences
        if self._sent:
            sent = self._sent.popleft()
            values["network/gradient_bytes"] = float(sent.compressed)
            values["network/uncompressed_gradient_bytes"] = float(sent.uncompressed)
        if self.updates.is_due(stats.step):
            norms = zip(self.layers.names, stats.layer_squares, strict=True)
            values |= {f"{_series(name)}/gradient_norm": sqrt(square) for name, square in norms if square}
        self._all_skipped += not stats.is_applied
        values["train/skipped_steps"] = float(self._all_skipped)
        self._reporter.metrics(stats.step + 1, values)
        self.latest["train/loss"] = stats.loss
        because = self._gradients.check(stats.gradient_norm)
        if because is not None:
            found = describe_step(stats, self.layers, self._loader)
            self._reporter.event(
                "gradient.large", step=stats.step + 1, norm=stats.gradient_norm, because=because, layers=found.layers,
                first_sequence=found.first_sequence, last_sequence=found.last_sequence, worst_batch=found.worst_batch,
            )  # fmt: skip
        self._compare_replicas(stats.step, stats.checksums)
        for figure, of_ranks in (("own", stats.own_norms), ("sum", stats.squares)):
            self._report_resolution(self._evidence.add(stats.step, figure, of_ranks))
        self._report_skip(stats)
        self._check_divergence(stats)

    def stop(self) -> EndClass:
        """Return STOPPED, or raise TrainerError, once the checkpoint is stored, if a spare node is to take the place of
        a slow one; then a collective."""
        if self.slow_node is not None:
            self._writer.wait()
            # The first rank registers the checkpoint, and its processes end as soon as another node leaves the round.
            all_reduce_world(torch.zeros(1, device=self._mesh.device), self._mesh).item()
            raise self.slow_node
        return EndClass.STOPPED

    def check_replicas(self, step: int) -> None:
        """Compare the parameters of all ranks after `step` steps; a collective. Raises CorruptionError."""
        if self._mesh.world_size == 1:
            return
        checksums = torch.zeros(self._mesh.world_size, device=self._mesh.device)
        checksums[self._mesh.rank] = self.replicas.checksum()
        self._compare_replicas(step, all_reduce_world(checksums, self._mesh).tolist())

    def _compare_replicas(self, step: int, checksums: Sequence[float]) -> None:
        """Report replicas that differ, and raise CorruptionError, so that the run continues from the newest state in
        which they agreed; unless that has not helped before."""
        difference = self.replicas.find_difference(step, checksums)
        if checksums[self._mesh.rank]:
            self._report_resolution(self._evidence.add(step, "parameters", checksums))
        if difference is None:
            if checksums[self._mesh.rank]:
                self._evidence.clear()
            return
        if self._mesh.rank == difference.replicas[0]:
            ranks, all_ranks = (", ".join(map(str, each)) for each in (difference.ranks, difference.replicas))
            self._reporter.event_once(
                f"step-{step}", "replicas.differ", step=str(step), ranks=ranks, replicas=all_ranks
            )
        if self.replicas.is_recurrence(difference):
            return
        is_here = self._mesh.rank in difference.ranks
        is_unclear = len(difference.ranks) == len(difference.replicas)
        raise CorruptionError(str(difference), step, self._evidence.rows if is_unclear else (), is_here=is_here)

    def _report_resolution(self, found: Resolution | None) -> None:
        """Report which replicas were wrong: each of them reports itself, with its node if that was its node then."""
        if found is not None and self._mesh.rank in (found.wrong or found.replicas[:1]):
            is_same_place = bool(found.wrong) and self._rank_then == self._mesh.rank
            self._reporter.event_once(
                f"step-{found.step}-rank-{self._mesh.rank}", "replicas.compared", step=str(found.completed),
                ranks=", ".join(map(str, found.wrong)), node=self._node if is_same_place else "", because=str(found),
            )  # fmt: skip

    def _check_first_loss(self, loss: float) -> None:
        """Drop the shadow checkpoints if the loss shows that the restored one was damaged, and raise TrainerError."""
        try:
            self._resumed.check_first_loss(loss)
        except TrainerError:
            self._shadows.discard()
            raise

    def _split(self, seconds: float, phases: dict[str, float]) -> dict[str, float]:
        """Return the step's time on this rank by phase."""
        parts = {"data_stall": self._stalls.popleft(), **phases}
        parts.pop("other")  # a part of what is left
        other = max(0.0, seconds - sum(parts.values()))
        return {f"time/{name}_seconds": part for name, part in {**parts, "other": other}.items()}

    def _compare_ranks(self, stats: StepStats) -> dict[str, float]:
        """Return what the slowest rank takes relative to the median, if that was measured. Report one that stays
        slow."""
        seconds = stats.compute_seconds if self.sampler.is_needed else stats.pass_seconds
        if not all(seconds):
            return {}
        skew, slow_rank = self._skew.update(seconds)
        if slow_rank is not None:
            times_the_mean = seconds[slow_rank] / mean(seconds)
            self._reporter.event(
                "rank.slow", step=stats.step + 1, rank=slow_rank, times_the_median=skew, times_the_mean=times_the_mean
            )
            lost = seconds[slow_rank] * (1.0 - 1.0 / skew) * (self._training.steps - stats.step - 1)
            if self._has_spare_node and self._mesh.sizes.pipeline == 1 and lost > REPLACEMENT_SECONDS:
                is_here = slow_rank // self._ranks_per_node == self._mesh.rank // self._ranks_per_node
                text = f"rank {slow_rank} takes {skew:.1f} times as long as the median of the ranks"
                self.slow_node = PlaceError(EndClass.SLOW_NODE, text, is_here=is_here)
        return {"time/rank_skew": skew}

    def report_evaluation(self, step: int, found: EvaluationResult, seconds: float) -> None:
        """Report an evaluation and how long training waited for it."""
        self._reporter.metrics(step, found.values)
        self._reporter.event("evaluation", step=step, loss=found.loss, seconds=seconds)
        self.best.update(step, found.loss)
        self.latest.update(found.values | self.best.metrics | {EVALUATION_STEP: float(step)})
        self.clock.resume()

    def are_logits_due(self, step: int) -> bool:
        """Return whether the largest attention logits are measured after `step` steps."""
        return self._logits_every is not None and step % self._logits_every == 0

    def report_layers(self, step: int, batch: MicroBatch) -> None:
        """Report what is due after `step` steps, a collective: by layer the update, which was that of the last step,
        and the largest attention logits. `batch`: a micro-batch of this rank."""
        values: dict[str, float] = {}
        if self.updates.is_due(step - 1):
            values = {f"{_series(name)}/update_ratio": ratio for name, ratio in self.updates.ratios().items()}
        if self.are_logits_due(step):
            for layer, largest in enumerate(largest_attention_logits(self._model, batch, self._num_layers)):
                values[f"{_series(f'blocks.{layer}.attention')}/largest_logit"] = largest
        self._reporter.metrics(step, values)
        self.clock.resume()

    def report_save(self, step: int, stall_seconds: float) -> None:
        """Report how long training waited for a save."""
        self._reporter.metrics(step, {"time/checkpoint_seconds": stall_seconds})
        self.clock.resume()

    def _report_skip(self, stats: StepStats) -> None:
        if stats.is_applied:
            return
        sigma = self._training.optimizer.gradient_watch.skip_sigma
        outlier = f"the gradient's norm {stats.gradient_norm:.3g} is above optimizer.gradient_watch.skip_sigma {sigma}"
        because = outlier if _is_finite(stats) else "the loss or its gradient is not finite"
        found = describe_step(stats, self.layers, self._loader)
        self._reporter.event(
            "step.skipped", step=stats.step + 1, because=because, layers=found.layers,
            first_sequence=found.first_sequence, last_sequence=found.last_sequence, worst_batch=found.worst_batch,
        )  # fmt: skip

    def _check_divergence(self, stats: StepStats) -> None:
        limit = self._losses.limit
        is_good = _is_finite(stats) and stats.loss <= limit
        self._diverging = 0 if is_good else self._diverging + 1
        if is_good:  # those above would raise the limit within the steps that it takes
            self._losses.add(stats.loss)
        elif self._diverging == 1 and isfinite(stats.loss) and stats.loss > limit:
            found = describe_step(stats, self.layers, self._loader)
            self._reporter.event(
                "loss.large", step=stats.step + 1, loss=stats.loss, limit=limit, layers=found.layers,
                first_sequence=found.first_sequence, last_sequence=found.last_sequence, worst_batch=found.worst_batch,
            )  # fmt: skip
        if self._diverging < DIVERGED_STEPS:
            return
        raise TrainerError(
            EndClass.LOSS_DIVERGED,
            f"in {DIVERGED_STEPS} consecutive steps up to step {stats.step + 1}, "
            + (f"the loss was above {limit:.3g} (rollback.loss_sigma), or " if isfinite(limit) else "")
            + "the loss or its gradient was not finite; lower training.optimizer.learning_rate or raise "
            "training.schedule.warmup_steps",
        )


def _knows_spare_node(state: TrainState) -> bool:
    """Return whether a spare node waits, equal on all ranks: one may have joined after some nodes had their ranks. A
    collective if the attempt has spare nodes."""
    if not state.assignment.run.spare_nodes:
        return False
    knows = torch.tensor(float(state.assignment.spare_nodes > 0), device=state.mesh.device)
    return int(all_reduce_world(knows, state.mesh).item()) == state.mesh.world_size


def _series(layer: str) -> str:
    """Return the beginning of the names of a layer's metrics."""
    return f"layers/{layer.replace('.', '/')}"


def _is_finite(stats: StepStats) -> bool:
    return isfinite(stats.loss) and isfinite(stats.gradient_norm)
