"""Build this rank's part of the model from a spec: on the meta device, sharded, then allocated and filled."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from trainer.contract.optimisation import CompressionSpec
from trainer.contract.parallelism import stage_layers, stage_numbers
from trainer.contract.preference import PreferenceSpec
from trainer.contract.training import TrainingSpec
from trainer.data.batch import MicroBatch
from trainer.data.packing import IGNORED
from trainer.models.decoder import Decoder
from trainer.models.kto import kto_loss, log_ratio_sums, mismatched, reference_point
from trainer.models.lora import add_adapters, quantize_linears, without_adapters
from trainer.models.preference import PREFERENCE_FIGURES, batch_reference, count_answers, pair_loss, sum_sides
from trainer.parallel.context import ContextParallel
from trainer.parallel.data import apply_fsdp, local_tensor
from trainer.parallel.expert import apply_expert_parallelism
from trainer.parallel.layout import ParamLayout, initial_shard, param_layout, shard_parameters
from trainer.parallel.mesh import Mesh, all_reduce_sum
from trainer.parallel.pipeline import Pipeline
from trainer.parallel.tensor import apply_tensor_parallelism
from trainer.parallel.weights import ReplicatedWeights, ShardedWeights, Weights, quantized_weights


class PreferenceObjective:
    """Training on answers that were judged. `reference`: the frozen copy of the model that it is compared with; None if
    that is the model without its adapters, if the loss has no reference, or if its log-probabilities were computed
    before."""

    def __init__(self, spec: PreferenceSpec, reference: "ParallelModel | None", device: torch.device) -> None:
        self.spec, self.reference, self._device = spec, reference, device
        self._sums, self._reference_point = self._zeros(), torch.zeros((), device=device)

    def add(self, batch: MicroBatch, log_probs_BS: Tensor, reference_BS: Tensor | None) -> Tensor:
        """Return the summed loss of the answers of a micro-batch, a scalar, and count its figures."""
        if self.spec.loss == "kto":
            assert reference_BS is not None
            found = kto_loss(self.spec, batch, log_probs_BS, reference_BS, self._reference_point)
        else:
            reference_BP2 = batch_reference(batch) if reference_BS is None else sum_sides(reference_BS, batch)
            found = pair_loss(self.spec, batch, log_probs_BS, reference_BP2)
        self._sums[: len(found.figures)] += found.figures
        return found.loss

    def set_reference_point(self, own_2: Tensor, all_2: Tensor) -> None:
        """Set the reference point of the next losses from the sums of `log_ratio_sums` of this rank, and of all."""
        self._sums[-2:] += own_2
        self._reference_point = reference_point(all_2)

    def take_figures(self) -> Tensor:
        """Return the sums of `PREFERENCE_FIGURES` since the last call, in fp32."""
        found, self._sums = self._sums, self._zeros()
        return found

    def _zeros(self) -> Tensor:
        return torch.zeros(len(PREFERENCE_FIGURES), device=self._device)


@dataclass
class ParallelModel:
    """This rank's part of the model: its pipeline stages, in order. `pipeline` is None without pipeline parallelism,
    `preference` without preference training."""

    stages: list[Decoder]
    weights: Weights
    context: ContextParallel
    pipeline: Pipeline | None
    has_graphs: bool = False  # blocks are recorded as CUDA graphs
    preference: PreferenceObjective | None = None

    def forward_backward(
        self, batches: list[MicroBatch], tokens: float | Tensor, end_phase: Callable[[str], None] = lambda name: None
    ) -> tuple[Tensor, Tensor]:
        """Return (this rank's part of the mean loss over all ranks' `tokens` of the step, a scalar; what each
        micro-batch contributes to it, [M]); the parts of all ranks add up. `tokens`: what `num_counted` counts.

        The sum of all ranks' gradients is left on `weights`. `end_phase` is called at the end of each `forward` and
        `backward` pass, and in a pipeline of each `idle` period; only the wait for the sum follows the last call.

        Every loss is a sum over tokens divided by the tokens of all ranks, so that the parts only need adding,
        however the step is cut into ranks and micro-batches.
        """
        batches = [self.context.shard_batch(batch) for batch in batches]
        self.update_reference_point(batches)
        if self.pipeline is not None:
            losses = self.pipeline.forward_backward(batches, tokens, end_phase)
        else:
            losses = []
            for number, batch in enumerate(batches, start=1):
                self.weights.prepare_backward(is_last=number == len(batches))
                loss = self._loss(batch) / tokens
                end_phase("forward")
                loss.backward()
                losses.append(loss.detach())
                end_phase("backward")
        self.weights.finish_gradients()
        self._free_reference()
        total = torch.zeros((), device=self.weights.mesh.device)
        for loss in losses:
            total += loss
        parts_M = torch.stack(losses) if losses else total.expand(len(batches))
        tensor_ranks = self.weights.mesh.sizes.tensor  # they have the same loss
        return total / tensor_ranks, parts_M / tensor_ranks

    def losses(self, batches: list[MicroBatch]) -> Tensor:
        """Return [summed loss, what `num_counted` counts], [2] in fp64, without gradients; summed over ranks they are
        totals. Call `update_reference_point` before."""
        batches = [self.context.shard_batch(batch) for batch in batches]
        sums = torch.zeros(2, dtype=torch.float64, device=self.weights.mesh.device)
        with self.weights.no_grad():
            if self.pipeline is not None:
                sums[0] = self.pipeline.losses(batches)
            else:
                for batch in batches:
                    sums[0] += self._loss(batch)
        self.weights.free_gathered()
        self._free_reference()
        if self.stages[-1].head is not None or self.stages[0].head is not None:
            for batch in batches:
                sums[1] += self.num_counted(batch)
        return sums / self.weights.mesh.sizes.tensor

    def row_losses(self, batches: list[MicroBatch]) -> list[Tensor]:
        """Return [summed loss, number of targets] of each row of each micro-batch, [B, 2] in fp64, without gradients;
        summed over ranks they are totals. Call `score_tokens` before."""
        batches = [self.context.shard_batch(batch) for batch in batches]
        with self.weights.no_grad():
            if self.pipeline is not None:
                found = self.pipeline.head_outputs(batches)
            else:
                found = [self._head_output(batch) for batch in batches]
        self.weights.free_gathered()
        tensor_ranks = self.weights.mesh.sizes.tensor  # they have the same losses
        if not found:
            return [torch.zeros(len(b.tokens_BS), 2, dtype=torch.float64, device=b.tokens_BS.device) for b in batches]
        return [
            torch.stack([-log_probs_BS.double().sum(1), (batch.targets_BS != IGNORED).double().sum(1)], 1)
            / tensor_ranks
            for batch, log_probs_BS in zip(batches, found, strict=True)
        ]

    def reference_sums(self, batch: MicroBatch) -> Tensor:
        """Return the sums of the log-probabilities of each answer by the model without its adapters, [B, P, 2], without
        gradients."""
        assert self.preference is not None
        found = sum_sides(self._reference_log_probs(batch, self.preference), batch)
        self.weights.free_gathered()
        return found

    def score_tokens(self) -> None:
        """Let the head return the log-probability of each target instead of the summed loss."""
        for stage in self.stages:
            if stage.head is not None:
                stage.head.is_per_token = True

    def num_counted(self, batch: MicroBatch) -> Tensor:
        """Return what the loss is a mean over: the number of targets, or of pairs or labelled answers; a scalar on the
        device."""
        if self.preference is None:
            return (batch.targets_BS != IGNORED).sum()
        return count_answers(self.preference.spec, batch)

    def update_reference_point(self, batches: Iterable[MicroBatch]) -> None:
        """Set what the loss `kto` compares rewards with, from these micro-batches of all ranks; a collective. Other
        losses have no such point."""
        if self.preference is None or self.preference.spec.loss != "kto":
            return
        mesh = self.weights.mesh
        own_2 = torch.zeros(2, device=mesh.device)
        with self.weights.no_grad():
            for batch in map(mismatched, batches):
                reference_BS = self._reference_log_probs(batch, self.preference)
                own_2 += log_ratio_sums(batch, self._head_output(batch), reference_BS)
        self.weights.free_gathered()
        self._free_reference()
        self.preference.set_reference_point(own_2, all_reduce_sum(own_2.clone(), mesh.group("replicate", "shard")))

    def take_preference_figures(self) -> Tensor:
        """Return this rank's sums of `PREFERENCE_FIGURES` since the last call; empty without preference training. The
        sums of all ranks add up."""
        if self.preference is None:
            return torch.zeros(0, device=self.weights.mesh.device)
        return self.preference.take_figures() / self.weights.mesh.sizes.tensor

    def _loss(self, batch: MicroBatch) -> Tensor:
        """Return the loss of a micro-batch, summed over what `num_counted` counts."""
        objective = self.preference
        if objective is None:
            return self._head_output(batch)
        reference_BS = self._reference_log_probs(batch, objective) if objective.spec.has_live_reference else None
        return objective.add(batch, self._head_output(batch), reference_BS)

    def _reference_log_probs(self, batch: MicroBatch, objective: PreferenceObjective) -> Tensor:
        """Return the log-probabilities of the targets by the reference, [B, S], without gradients."""
        with self.weights.no_grad():
            if objective.reference is not None:
                return objective.reference._head_output(batch)
            (stage,) = self.stages
            with without_adapters(stage):
                return self._head_output(batch)

    def _free_reference(self) -> None:
        if self.preference is not None and self.preference.reference is not None:
            self.preference.reference.weights.free_gathered()

    def _head_output(self, batch: MicroBatch) -> Tensor:
        (stage,) = self.stages
        if self.has_graphs:  # no tensor of the previous micro-batch in the graphs' memory is needed any more
            torch.compiler.cudagraph_mark_step_begin()
        return stage(batch.tokens_BS, batch.targets_BS, batch.documents_BS, batch.positions_BS)


LoadShard: TypeAlias = Callable[[ParamLayout], Tensor | None]


def parallelize_model(
    training: TrainingSpec,
    vocab_size: int,
    mesh: Mesh,
    micro_batch: int,
    prepare: Callable[[Decoder], None] = lambda stage: None,
    load_shard: LoadShard = lambda place: None,
    *,
    sets_trained: bool = True,
) -> ParallelModel:
    """Build this rank's part of the model; a collective. `micro_batch`: sequences in one forward pass; `prepare` sees
    each stage before it is sharded; `load_shard` gives the values that a shard begins with, or None for random ones by
    the spec's seed. Without `sets_trained`, call `set_trained` unless the trained parameters are restored."""
    mesh.create_process_groups()
    build = partial(_parallelize, vocab_size=vocab_size, mesh=mesh, micro_batch=micro_batch, load_shard=load_shard)
    model = build(training, prepare=prepare, sets_trained=sets_trained)
    if training.preference is not None:
        reference = None
        if training.holds_reference:
            parallelism = training.parallelism.model_copy(update={"compression": CompressionSpec()})
            frozen = training.model_copy(update={"parallelism": parallelism})
            reference = build(frozen, prepare=lambda stage: prepare(freeze(stage)), sets_trained=False)
        model.preference = PreferenceObjective(training.preference, reference, mesh.device)
    return model


def freeze(stage: Decoder) -> Decoder:
    """Freeze all parameters of a stage, and return it."""
    stage.requires_grad_(requires_grad=False)
    return stage


def _parallelize(
    training: TrainingSpec, *, vocab_size: int, mesh: Mesh, micro_batch: int, prepare: Callable[[Decoder], None],
    load_shard: LoadShard, sets_trained: bool,
) -> ParallelModel:  # fmt: skip
    """Build this rank's part of one model, as `parallelize_model`."""
    spec, shape = training.parallelism, training.model.resolve()
    context = ContextParallel(mesh, spec)
    layers = stage_layers(shape, vocab_size, spec.num_stages, spec.stage_layers)
    numbers = stage_numbers(spec, mesh.coordinate("pipeline")) if mesh.sizes.pipeline > 1 else [0]
    stages: list[Decoder] = []
    shapes: dict[str, tuple[int, ...]] = {}
    for number in numbers:
        with torch.device("meta"):
            stage = Decoder(
                shape, vocab_size, training.sequence_length, layers[number],
                has_embedding=number == 0, has_head=number == spec.num_stages - 1,
            )  # fmt: skip
        if training.lora is not None:
            add_adapters(stage, training.lora)
        shapes |= shard_parameters(stage, mesh)
        if training.has_quantized_base:
            quantize_linears(stage)
        apply_tensor_parallelism(stage, mesh, overlap=spec.tensor_overlap)
        apply_expert_parallelism(stage, mesh)
        context.apply(stage)
        stage.context_shards = mesh.sizes.context
        if stage.head is not None:
            stage.head.is_per_token = training.preference is not None
        prepare(stage)
        if mesh.sizes.zero:
            apply_fsdp(stage, mesh, training, sums_over_replicas=spec.compression.kind == "none")
        elif training.computes_in_bf16:
            _round_frozen(stage)
        stage.to_empty(device=mesh.param_device)
        stage.zero_buffers()
        stages.append(stage)
    parameters: dict[str, Tensor] = {name: each for stage in stages for name, each in stage.named_parameters()}
    quantized = quantized_weights(stages)
    layouts = {}
    for name in shapes:
        is_tied = shape.tie_embeddings and mesh.sizes.pipeline > 1 and name in ("embedding.weight", "head.weight")
        stored_name = "embedding.weight" if is_tied else name
        parameter = parameters.get(name)
        layouts[name] = param_layout(stored_name, parameter, shapes[name], mesh, copies=2 if is_tied else 1)
    with torch.no_grad():
        for name, place in layouts.items():
            if name in quantized:
                quantized[name].quantize_(_first_values(place, training, load_shard))
            elif sets_trained or not parameters[name].requires_grad:
                local_tensor(parameters[name]).copy_(_first_values(place, training, load_shard))
    weights = (
        ShardedWeights(stages, layouts, mesh, spec.compression)
        if mesh.sizes.zero
        else ReplicatedWeights(stages, layouts, mesh, training)
    )
    pipeline = None
    if mesh.sizes.pipeline > 1:
        dtype = torch.bfloat16 if training.computes_in_bf16 else torch.float32
        batch = (micro_batch, training.sequence_length // mesh.sizes.context)
        pipeline = Pipeline(stages, spec, mesh, batch, dtype)
    return ParallelModel(stages, weights, context, pipeline, training.cuda_graphs)


def set_trained(weights: Weights, training: TrainingSpec, load_shard: LoadShard) -> None:
    """Set the trained parameters to the values that they begin with, as `parallelize_model` does."""
    with torch.no_grad():
        for name, parameter in weights.trainable.items():
            local_tensor(parameter).copy_(_first_values(weights.layouts[name], training, load_shard))
    weights.sync_compute_copies()


def _first_values(place: ParamLayout, training: TrainingSpec, load_shard: LoadShard) -> Tensor:
    value = load_shard(place)
    return initial_shard(place, training.model.resolve().num_layers, training.seed) if value is None else value


def _round_frozen(stage: Decoder) -> None:
    """Give parameters that are not trained the precision that the model computes in, on the meta device: they have no
    fp32 copy."""
    for parameter in stage.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(torch.bfloat16)
