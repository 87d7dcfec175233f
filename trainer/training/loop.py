"""The training loop, to be read from top to bottom."""

import resource
import sys
import time
from collections.abc import Sequence
from functools import partial
from math import isfinite, nan, sqrt
from operator import itemgetter
from statistics import mean

import torch
from torch import Tensor

from trainer.checkpoint.copy_layout import Progress
from trainer.checkpoint.state import live_shards, own_states
from trainer.contract.rollback import DIVERGED_STEPS
from trainer.contract.run import EndClass
from trainer.contract.timeouts import TRAINING_TIMEOUT
from trainer.data.batch import MicroBatch
from trainer.data.packing import IGNORED
from trainer.errors import CorruptionError, PlaceError, TrainerError
from trainer.models.lora import seed_dropout
from trainer.optim.learning_rate import learning_rate
from trainer.parallel.attention_logits import largest_attention_logits
from trainer.parallel.mesh import all_reduce_sum, all_reduce_world
from trainer.reporting.compute_time import ComputeSampler
from trainer.reporting.gradient_watch import GradientWatch, OutlierLimit
from trainer.reporting.layers import Layers, UpdateMeter
from trainer.reporting.profiling import StepProfiler
from trainer.reporting.replica_check import ReplicaCheck
from trainer.reporting.replica_evidence import ReplicaEvidence, Resolution
from trainer.reporting.spikes import describe_step
from trainer.reporting.stats import RANK_FIGURES, StatsPipe, StepStats
from trainer.reporting.step_clock import SLOW_SAMPLES, SLOW_STEPS, SkewDetector, StepClock
from trainer.reporting.suspicion import Recomputation, StepLimits, is_exact
from trainer.reporting.throughput import model_flops_utilisation, peak_of
from trainer.training.build import FinalState, TrainState
from trainer.training.cpu import collect_garbage, disable_automatic_collection
from trainer.training.evaluation import BestEvaluation, EvaluationResult, evaluate
from trainer.training.recompute import Decide, StepTaker

REPLACEMENT_SECONDS = 120.0
"""What a slow node must cost the rest of the run at its present speed, for a spare node to take its place: a restart
loads the state and compiles the model."""


def train(state: TrainState) -> EndClass:
    """Train until the last step or a stop request. A checkpoint of the final state may still be being written at the
    end.

    Return COMPLETED or STOPPED.
    """
    training, reporter = state.training, state.reporter
    monitor = Monitor(state)
    pipe = StatsPipe(state.mesh.device, state.mesh.world_size, len(monitor.layers.names))
    profiler = StepProfiler(state.assignment)
    steps = StepTaker(monitor, pipe, partial(compute_step, state, monitor, profiler), state.mesh.device)
    stopping, done = False, state.first_step
    policy = state.assignment.run.checkpoint
    if training.compile:
        with state.reporter.phase("compile"):
            warm_up(state)
    elif training.batch_size_schedule.sequences_at(state.first_step) < training.batch_size_schedule.full:
        warm_up(state)
    if state.first_step == 0:
        run_evaluation(state, monitor, 0)
    reporter.enter_phase("training")
    reporter.event("training.started", step=state.first_step)
    state.model.weights.begin_step(state.first_step)
    disable_automatic_collection()
    if state.resumed.is_save_lost:
        monitor.report_save(done, save(state, done, monitor, is_final=False))
    monitor.clock.resume()
    is_over = monitor.best.has_waited(done)  # it ended early, and was interrupted before its model was stored
    for step in range(state.first_step, state.first_step if is_over else training.steps):
        profiler.begin(step + 1)
        batches = state.loader.next_step(step)
        known = steps.take(step, batches)
        profiler.end(step + 1)
        monitor.report_steps(known)
        stopping = stopping or monitor.slow_node is not None or any(each.ranks_stopping > 0 for each in known)
        done = step + 1
        profiler.handle_requests(known, done)
        reporter.report_step(done)
        state.writer.check()
        if step == state.first_step:
            state.mesh.set_timeout(TRAINING_TIMEOUT)
        collect_garbage(done)
        if monitor.updates.is_due(step) or monitor.are_logits_due(done):
            monitor.report_steps(steps.drain())
            monitor.report_layers(done, batches[0])
        if done % training.evaluation.every_steps == 0 or done == training.steps:
            monitor.report_steps(steps.drain())
            run_evaluation(state, monitor, done)
        is_over = done == training.steps or monitor.best.has_waited(done)
        is_final = stopping or is_over
        is_due = any(each.save_due > 0 and each.step >= state.writer.last_step for each in known)
        is_best = policy.keep_best and monitor.best.step == done
        if is_final or is_due or done % policy.every_steps == 0 or policy.is_milestone(done) or is_best:
            monitor.report_steps(steps.drain())
            monitor.report_save(done, save(state, done, monitor, is_final=is_final))
        if is_over:
            break
        if stopping:
            profiler.close()
            return monitor.stop()
        if state.shadows.is_scheduled(done) or any(each.shadow_due > 0 for each in known):
            monitor.report_steps(steps.drain())
            state.shadows.take(
                done,
                live_shards(state.model.weights, state.optimizer),
                monitor.unsaved_progress(state.writer.last_step),
            )
    profiler.close()
    if done < training.steps:
        reporter.event(
            "training.ended_early", step=done, best_step=monitor.best.step, best_loss=monitor.best.loss,
            patience=training.evaluation.patience,
        )  # fmt: skip
    state.final = FinalState(done, monitor.latest)
    return EndClass.COMPLETED


def compute_step(
    state: TrainState,
    monitor: "Monitor",
    profiler: StepProfiler,
    step: int,
    batches: list[MicroBatch],
    decide: Decide,
) -> Tensor:
    """Compute a step from its micro-batches, and apply it if `decide` says so; a collective. Return its statistics in
    the order of `StepStats` after `step`.

    A step that is not applied can be computed again: nothing has changed, and what is random depends on its number.
    """
    training, clock, replicas = state.training, monitor.clock, monitor.replicas
    tokens, counts = counted_tokens(state, batches, step)
    if training.lora is not None and training.lora.dropout:
        seed_dropout(training.seed, step, state.mesh.rank)
    with monitor.sampler.measure(step, is_profiled=profiler.is_active):
        clock.begin()
        loss, parts_M = state.model.forward_backward(batches, tokens, clock.end_phase)
    clock.end_phase("other")  # what the measurement took
    checksum = replicas.checksum() if replicas.is_due(step, state.shadows.last_step) else None
    memory, stall = peak_memory_bytes(state.mesh.device), state.loader.stalls[-1]
    figures = (clock.pass_seconds, monitor.sampler.seconds, memory, stall)
    state.shadows.protect_state(step + 1)
    means_M = torch.stack([part * (tokens / count) for part, count in zip(parts_M, counts, strict=True)])
    stats, gradient_norm, is_applied = reduce_statistics(
        state, loss, means_M, figures, checksum, monitor.layers, decide
    )
    clock.end_phase("communication")
    monitor.updates.begin(step)
    state.optimizer.step(learning_rate(training, step), gradient_norm, is_applied)
    state.balancer.step(is_applied)
    state.model.weights.commit(is_applied)
    state.optimizer.zero_gradients()
    state.model.weights.sync_compute_copies()
    clock.end_phase("optimizer")
    clock.end()
    return stats


def counted_tokens(
    state: TrainState, batches: list[MicroBatch], step: int
) -> tuple[float | Tensor, Sequence[float | Tensor]]:
    """Return (the number of targets of this step over all ranks, by which each rank divides its loss; that of each of
    this rank's micro-batches, at least 1)."""
    if not state.loader.counts_vary:
        bounds = state.part.micro_batches(state.training.batch_size_schedule.sequences_at(step))
        length = state.training.sequence_length
        return float(state.training.tokens_at(step)), [float(max(1, end - begin) * length) for begin, end in bounds]
    counted_M = torch.stack([(batch.targets_BS != IGNORED).sum() for batch in batches])
    counted = all_reduce_sum(counted_M.sum().float(), state.mesh.group("replicate", "shard"))
    return counted.clamp(min=1.0), counted_M.clamp(min=1).unbind()


def reduce_statistics(
    state: TrainState,
    loss: Tensor,
    means_M: Tensor,
    figures: tuple[float, ...],
    checksum: Tensor | None,
    layers: Layers,
    decide: Decide,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (statistics in the order of `StepStats` after `step`, gradient norm, whether the step is applied), over
    all ranks; a collective. `means_M`: this rank's part of the mean loss of each of its micro-batches. `figures`,
    `checksum`: this rank's, those of `StepStats` that each rank has.

    One small all-reduce sums all statistics, stop requests and due checkpoints included, so that all ranks stop or save
    after the same step.
    """
    mesh = state.mesh
    reporter = state.reporter
    flags = [
        float(reporter.stop_requested()), state.loader.skipped_sequences, *reporter.profile_requested(),
        float(state.writer.is_due), float(state.shadows.is_due) - float(state.shadows.is_copying),
        float(state.shadows.is_replicated),
    ]  # fmt: skip
    mine = torch.zeros(RANK_FIGURES, mesh.world_size)  # the others' places are 0, so that the sum has each rank's
    mine[: len(figures), mesh.rank] = torch.tensor(figures)
    own = to_device(torch.cat([torch.tensor(flags), mine.flatten()]), loss.device)
    squares = state.optimizer.gradient_squares()
    own_norm = state.model.weights.own_norm
    if own_norm is None and mesh.sizes.data * mesh.sizes.context == 1:  # no rank has other data
        own_norm = squares.sum().sqrt()
    for place, figure in ((-3, checksum), (-2, own_norm), (-1, squares.sum())):
        if figure is not None:
            own[place * mesh.world_size + mesh.rank] = figure
    sums = torch.cat([torch.stack([loss, squares.sum()]), own, layers.sums(squares), state.part.at_place(means_M)])
    loss, square_sum = all_reduce_world(sums, mesh)[:2].unbind()
    gradient_norm = square_sum.sqrt()
    is_applied, is_held = decide(loss, gradient_norm)
    stats = torch.cat([torch.stack([loss, gradient_norm, is_applied.float(), is_held.float()]), sums[2:]])
    return stats, gradient_norm, is_applied


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy without waiting: the copy of a tensor that is not pinned, or of a single number, waits for a GPU until all
    that was launched before is computed."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def warm_up(state: TrainState) -> None:
    """Run micro-batches of the sizes of a full step without an update.

    So compilation is a start-up phase of its own, and a batch size ramp runs out of memory before its first step, if
    its full batch size will.
    """
    rows = state.validation[0].batches[0].to(state.mesh.device)
    batches = []
    for begin, end in state.part.micro_batches(state.training.batch_size_schedule.full):
        chosen = torch.arange(end - begin, device=state.mesh.device) % rows.tokens_BS.shape[0]
        batches.append(state.part.filled(rows.each(itemgetter(chosen))))
    state.model.forward_backward(batches, 1.0)
    state.optimizer.zero_gradients()
    nothing = torch.zeros((), dtype=torch.bool, device=state.mesh.device)
    state.balancer.step(nothing)
    state.model.weights.commit(nothing)


def run_evaluation(state: TrainState, monitor: "Monitor", step: int) -> None:
    """Evaluate on held-out data after `step` steps, continue the prompts, and report both."""
    begin = time.monotonic()
    state.reporter.enter_phase("evaluation")
    found = evaluate(state.model, state.validation, state.reporter.report_progress)
    generate_samples(state, step)
    state.reporter.enter_phase("training")
    monitor.report_evaluation(step, found, time.monotonic() - begin)


def generate_samples(state: TrainState, step: int) -> None:
    """Report the continuations of the spec's prompts as events."""
    sampler = state.sampler
    if not sampler.prompts:
        return
    for prompt, text in zip(sampler.prompts, sampler.generate(state.reporter.report_progress), strict=True):
        state.reporter.event("evaluation.sample", step=step, prompt=prompt, text=text)


def save(state: TrainState, step: int, monitor: "Monitor", *, is_final: bool) -> float:
    """Start a checkpoint of the state after `step` steps, once per step. Return the seconds that training waited.

    Raises CorruptionError if replicas differ.
    """
    if state.writer.last_step == step:
        return 0.0
    monitor.check_replicas(step)
    weights = state.model.weights
    state.reporter.enter_phase("checkpoint")
    seconds = state.writer.save(
        step, live_shards(weights, state.optimizer), own_states(weights), monitor.latest,
        monitor.progress.model_dump_json(exclude_defaults=True), is_final=is_final,
    )  # fmt: skip
    state.reporter.enter_phase("training")
    return seconds


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
        them are there."""
        step = found.again.step + 1
        if found.is_same:
            self._reporter.event("step.recomputed", step=step, because=str(found))
        elif self._mesh.rank == next(iter(found.ranks), 0):
            is_one_node = len({rank // self._ranks_per_node for rank in found.ranks}) == 1
            self._reporter.event_once(
                f"step-{step}", "gradient.corrupted", step=str(step), ranks=", ".join(map(str, found.ranks)),
                node=self._node if is_one_node else "", because=str(found),
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
        return self.progress.model_copy(update={"last_saved": last_saved, "metrics": self.latest, "points": points})

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
        self.latest.update(found.values | self.best.metrics)
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


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory in bytes: of the device, or on a CPU of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
