"""The training loop, to be read from top to bottom."""

import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter

import torch
from torch import Tensor

from trainer.checkpoint.state import live_shards, own_states
from trainer.contract.run import EndClass
from trainer.contract.timeouts import TRAINING_TIMEOUT
from trainer.data.batch import MicroBatch
from trainer.models.lora import seed_dropout
from trainer.models.preference import PREFERENCE_FIGURES
from trainer.optim.learning_rate import learning_rate
from trainer.parallel.mesh import all_reduce_sum, all_reduce_world
from trainer.reporting.layers import Layers
from trainer.reporting.profiling import StepProfiler
from trainer.reporting.stats import RANK_FIGURES, StatsPipe
from trainer.training.build import FinalState, TrainState
from trainer.training.cpu import collect_garbage, disable_automatic_collection
from trainer.training.evaluation import evaluate
from trainer.training.monitor import Monitor
from trainer.training.recompute import DataRanks, Decide, StepTaker


def train(state: TrainState) -> EndClass:
    """Train until the last step or a stop request. A checkpoint of the final state may still be being written at the
    end.

    Return COMPLETED or STOPPED.
    """
    training, reporter = state.training, state.reporter
    monitor = Monitor(state)
    profiler = StepProfiler(state.assignment)
    steps = make_step_taker(state, monitor, profiler)
    stopping, done = False, state.first_step
    policy = state.assignment.run.checkpoint
    warm_up_if_needed(state)
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
            state.writer.prepare(live_shards(state.model.weights, state.optimizer))
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


def make_step_taker(state: TrainState, monitor: Monitor, profiler: StepProfiler) -> StepTaker:
    """Return what takes the steps of a run."""
    preference_figures = 0 if state.training.preference is None else len(PREFERENCE_FIGURES)
    pipe = StatsPipe(state.mesh.device, state.mesh.world_size, len(monitor.layers.names), preference_figures)
    return StepTaker(
        monitor, pipe, partial(compute_step, state, monitor, profiler), state.mesh.device,
        data_ranks(state, monitor, profiler),
    )  # fmt: skip


def compute_step(
    state: TrainState,
    monitor: Monitor,
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
        seed_dropout(training.seed, step, state.mesh.peers("replicate", "shard")[state.part.rank])
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
    if state.optimizer.average is not None:
        state.optimizer.average.update(step, is_applied)
    state.balancer.step(is_applied)
    state.model.weights.commit(is_applied)
    state.optimizer.zero_gradients()
    state.model.weights.sync_compute_copies()
    clock.end_phase("optimizer")
    clock.end()
    return stats


def data_ranks(state: TrainState, monitor: Monitor, profiler: StepProfiler) -> DataRanks | None:
    """Return the data ranks, if there are several and each can compute the data of any other: experts that are divided
    over ranks compute the data of all of them anyway."""
    if state.part.world_size == 1 or state.mesh.sizes.expert > 1:
        return None

    def compute(step: int, shift: int, decide: Decide) -> Tensor:
        moved = replace(state, part=state.part.moved(shift))
        return compute_step(moved, monitor, profiler, step, state.loader.batches_of(step, moved.part), decide)

    return DataRanks(state.part.world_size, compute, state.mesh.data_moved_by)


def counted_tokens(
    state: TrainState, batches: list[MicroBatch], step: int
) -> tuple[float | Tensor, Sequence[float | Tensor]]:
    """Return (the number of targets, pairs or labelled answers of this step over all ranks, by which each rank divides
    its loss; that of each of this rank's micro-batches, at least 1)."""
    if not state.loader.counts_vary:
        bounds = state.part.micro_batches(state.training.batch_size_schedule.sequences_at(step))
        length = state.training.sequence_length
        return float(state.training.tokens_at(step)), [float(max(1, end - begin) * length) for begin, end in bounds]
    counted_M = torch.stack([state.model.num_counted(batch) for batch in batches])
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
    sums = torch.cat(
        [torch.stack([loss, squares.sum()]), own, layers.sums(squares), state.model.take_preference_figures(),
         state.part.at_place(means_M)]
    )  # fmt: skip
    loss, square_sum = all_reduce_world(sums, mesh)[:2].unbind()
    gradient_norm = square_sum.sqrt()
    is_applied, is_held = decide(loss, gradient_norm)
    stats = torch.cat([torch.stack([loss, gradient_norm, is_applied.float(), is_held.float()]), sums[2:]])
    return stats, gradient_norm, is_applied


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy without waiting: the copy of a tensor that is not pinned, or of a single number, waits for a GPU until all
    that was launched before is computed."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values


def warm_up_if_needed(state: TrainState) -> None:
    """Call `warm_up` for a model that is compiled, and before a batch size ramp."""
    schedule = state.training.batch_size_schedule
    if state.training.compile:
        with state.reporter.phase("compile"):
            warm_up(state)
    elif schedule.sequences_at(state.first_step) < schedule.full:
        warm_up(state)


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
    state.model.take_preference_figures()
    state.optimizer.zero_gradients()
    nothing = torch.zeros((), dtype=torch.bool, device=state.mesh.device)
    state.balancer.step(nothing)
    state.model.weights.commit(nothing)


def run_evaluation(state: TrainState, monitor: Monitor, step: int) -> None:
    """Evaluate on held-out data after `step` steps, continue the prompts, and report both: of the averaged weights,
    where there is an average, and then also the loss without it."""
    begin = time.monotonic()
    state.reporter.enter_phase("evaluation")
    evaluate_model = partial(evaluate, state.model, state.validation, state.reporter.report_progress)
    latest = None if state.optimizer.average is None else evaluate_model()
    with state.averaged_weights():
        found = evaluate_model()
        generate_samples(state, step)
    if latest is not None:
        found.values["evaluation/unaveraged_loss"] = latest.loss
    state.reporter.enter_phase("training")
    monitor.report_evaluation(step, found, time.monotonic() - begin)


def generate_samples(state: TrainState, step: int) -> None:
    """Report the continuations of the spec's prompts as events."""
    sampler = state.sampler
    if not sampler.prompts:
        return
    for prompt, text in zip(sampler.prompts, sampler.generate(state.reporter.report_progress), strict=True):
        state.reporter.event("evaluation.sample", step=step, prompt=prompt, text=text)


def save(state: TrainState, step: int, monitor: Monitor, *, is_final: bool) -> float:
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


def peak_memory_bytes(device: torch.device) -> int:
    """Return the peak memory in bytes: of the device, or on a CPU of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
