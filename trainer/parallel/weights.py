"""The fp32 parameters, and the reduction of their gradients over ranks and micro-batches.

`ShardedWeights` uses FSDP2 (ZeRO 1 to 3), `ReplicatedWeights` buckets of its own (ZeRO 0). After `finish_gradients`,
`.grad` of each trainable parameter is the sum over all ranks and micro-batches.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from trainer.contract.cost import reduces_each
from trainer.contract.optimisation import CompressionSpec
from trainer.contract.training import TrainingSpec
from trainer.models.decoder import Decoder
from trainer.models.moe import MixtureOfExperts
from trainer.models.nf4 import NF4Weight
from trainer.parallel.compression import Compressor, WireBytes, make_compressor
from trainer.parallel.data import local_tensor, on_reduce_scatter, reshard
from trainer.parallel.layout import ParamLayout, is_expert
from trainer.parallel.mesh import TOKEN_AXES, Mesh

BUCKET_BYTES = 25 * 2**20
"""Size of a bucket of fp32 gradients that one collective sums: large enough to amortise its latency, small enough that
the first collective starts long before the backward pass ends."""


class Weights:
    """The parameters of this rank's pipeline `stages`, by name, and the reduction of their gradients.

    `all_params`: all of them, in fp32 where they are trained; `trainable`: those that the optimizer updates;
    `quantized`: frozen matrices in 4 bits, which are not among them, by the names of the parameters that they replace.
    `compressors`: compressed sums over replicas; `sent`: with them, the bytes that each step has sent, newest last.
    `own_norm`: the norm of the gradient of this rank's own data in the last step, before any sum over ranks with other
    data, a scalar on the device; None if there was no such sum.
    """

    all_params: dict[str, nn.Parameter]
    compressors: list[Compressor]
    sent: deque[WireBytes]
    own_norm: Tensor | None

    def __init__(self, stages: list[Decoder], layouts: dict[str, ParamLayout], mesh: Mesh) -> None:
        self.stages, self.layouts, self.mesh = stages, layouts, mesh
        self.quantized = quantized_weights(stages)
        self.compressors, self.sent = [], deque()
        self._tied_group = _tied_group(stages, mesh)
        self._own_squares, self._is_measured = torch.zeros((), device=mesh.device), False
        self.own_norm = None

    @property
    def trainable(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by name."""
        return {name: parameter for name, parameter in self.all_params.items() if parameter.requires_grad}

    @property
    def expert_biases(self) -> dict[str, Tensor]:
        """Return the bias of each router that balances its experts, by name; it has no gradient."""
        return {f"blocks.{number}.mlp.balance": mlp.balance for number, mlp in moe_layers(self.stages).items()}

    def prepare_backward(self, *, is_last: bool) -> None:
        """Prepare for the passes of a micro-batch. `is_last`: gradients are reduced over the ranks in this one."""

    def finish_gradients(self) -> None:
        """Finish the sums over ranks after the last backward pass, those over tensor ranks and tied stages included."""
        self._sum_over_tensor_ranks()
        self._sum_tied()
        if self._is_measured:
            self.own_norm = self._own_squares.sqrt()
            self._own_squares.zero_()

    def measure_own(self, gradient: Tensor) -> None:
        """Count a part of the gradient of this rank's own data, before it is summed over ranks: one pass over it."""
        self._is_measured = True
        self._own_squares += torch.linalg.vector_norm(gradient.detach(), dtype=torch.float32).square()

    def begin_step(self, step: int) -> None:
        """Set the number of the next step, from 0; later steps count on from it."""
        self.sent.clear()
        for compressor in self.compressors:
            compressor.step = step

    def commit(self, is_finite: Tensor) -> None:
        """End the step: store the compression errors that it left, or discard them if `is_finite` is false."""
        if self.compressors:
            each = [compressor.commit(is_finite) for compressor in self.compressors]
            self.sent.append(WireBytes(sum(one.uncompressed for one in each), sum(one.compressed for one in each)))

    def drop_steps(self, count: int) -> None:
        """Forget the last `count` steps, which were not applied and are taken again."""
        for compressor in self.compressors:
            compressor.step -= count
        for _ in range(count if self.compressors else 0):
            self.sent.pop()

    def rank_state(self) -> dict[str, Tensor]:
        """Return the state that only this rank has. A resume on the same mesh restores it, any other resets it."""
        return {name: each for compressor in self.compressors for name, each in compressor.state_tensors().items()}

    def sync_compute_copies(self) -> None:
        """Copy updated parameters to the copies that the model computes with, if it does not use them directly."""

    def no_grad(self) -> AbstractContextManager[object]:
        """Return a context for forward passes without gradients.

        It is not inference mode: FSDP's hooks need version counters, which inference tensors do not have, and compiled
        blocks refuse tensors that a collective returned in inference mode.
        """
        context: AbstractContextManager[object] = torch.no_grad()
        return context

    def free_gathered(self) -> None:
        """Free the gathered parameters that a forward pass without a backward pass leaves."""

    def _gradients(self, names: Iterable[str]) -> list[Tensor]:
        gradients = []
        for name in names:
            grad = self.trainable[name].grad
            assert grad is not None, f"{name} took no part in the step"
            gradients.append(local_tensor(grad))
        return gradients

    def _sum_over_tensor_ranks(self) -> None:
        """Sum the gradients of parameters that are replicated over tensor ranks (norms, routers)."""
        group = self.mesh.group("tensor")
        if group is not None:
            uncut = [
                name for name in self.trainable if all(cut.axes != ("tensor",) for cut in self.layouts[name].dim_shards)
            ]
            all_reduce_flat(self._gradients(uncut), group)

    def _sum_tied(self) -> None:
        """Sum the two gradients of an embedding that is tied to a head in another stage."""
        names = [name for name in self.trainable if self.layouts[name].name == "embedding.weight"]
        if len(names) == 2:  # both stages are this rank's
            first, second = self._gradients(names)
            first += second
            second.copy_(first)
        elif names and self._tied_group is not None:
            all_reduce_flat(self._gradients(names), self._tied_group)


def quantized_weights(stages: list[Decoder]) -> dict[str, NF4Weight]:
    """Return the matrices of these stages that are in 4 bits, by name."""
    modules = (named for stage in stages for named in stage.named_modules())
    return {name: module for name, module in modules if isinstance(module, NF4Weight)}


def moe_layers(stages: list[Decoder]) -> dict[str, MixtureOfExperts]:
    """Return the mixtures of experts of these stages by the number of their layer."""
    blocks = {number: block for stage in stages for number, block in stage.blocks.items()}
    return {number: block.mlp for number, block in blocks.items() if isinstance(block.mlp, MixtureOfExperts)}


def _tied_group(stages: list[Decoder], mesh: Mesh) -> dist.ProcessGroup | None:
    """Return the group of the two ranks that have a copy of a tied embedding; None if this rank has both or none."""
    if not stages[0].shape.tie_embeddings:
        return None
    has_embedding = any(stage.embedding is not None for stage in stages)
    has_head = any(stage.head is not None for stage in stages)
    return mesh.pipeline_ends_group() if has_embedding != has_head else None


def all_reduce_flat(tensors: list[Tensor], group: dist.ProcessGroup) -> None:
    """Sum each tensor over the group, in place, with one collective."""
    if not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


class ShardedWeights(Weights):
    """Parameters that FSDP2 shards: it gathers them before use and reduce-scatters their gradients.

    ZeRO 1, and ZeRO 3 below MAX_UNREDUCED_GRADIENT_BYTES, accumulate full gradients over the micro-batches and reduce
    them once a step; otherwise each micro-batch reduces them, and only shards are stored. Compressed sums over replicas
    are not FSDP's: `finish_gradients` computes them for the shards.
    """

    def __init__(
        self, stages: list[Decoder], layouts: dict[str, ParamLayout], mesh: Mesh, compression: CompressionSpec
    ) -> None:
        super().__init__(stages, layouts, mesh)
        self.all_params = {name: parameter for stage in stages for name, parameter in stage.named_parameters()}
        # numel() of a sharded parameter is that of the full tensor.
        self._reshards = mesh.sizes.zero == 3  # after use; otherwise parameters stay gathered until the step ends
        self._reduces_each = reduces_each(mesh.sizes.zero, sum(each.numel() for each in self.trainable.values()))
        for stage in stages:
            on_reduce_scatter(stage, self.measure_own)
        group = mesh.group("replicate")
        if compression.kind != "none" and group is not None:
            shapes = {name: local_tensor(each).shape for name, each in self.trainable.items()}
            self.compressors = [make_compressor(compression, shapes, group, mesh.device)]

    def prepare_backward(self, *, is_last: bool) -> None:
        """Prepare for the passes of a micro-batch; gradients are reduced in the last one, or in each."""
        for stage in self.stages:
            assert isinstance(stage, FSDPModule)
            stage.set_requires_gradient_sync(is_last or self._reduces_each)
            stage.set_requires_all_reduce(is_last)
            stage.set_is_last_backward(is_last)
            stage.set_reshard_after_backward(is_last or self._reshards)

    def finish_gradients(self) -> None:
        """Finish the gradients after the last backward pass; with compression, sum over replicas here."""
        for compressor in self.compressors:
            compressor.all_reduce(self._gradients(self.trainable))
        super().finish_gradients()

    def free_gathered(self) -> None:
        """Free gathered parameters."""
        for stage in self.stages:
            reshard(stage)


class Bucket:
    """A flat fp32 buffer of gradients that one collective sums, or a few if they are compressed."""

    def __init__(
        self,
        named: dict[str, nn.Parameter],
        group: dist.ProcessGroup | None,
        compression: CompressionSpec,
        measure: Callable[[Tensor], None],
        *,
        rounded: bool,
    ) -> None:
        """Allocate the bucket; with `rounded`, gradients are sent and summed in bf16. `measure` sees them before."""
        parameters = list(named.values())
        self.parameters, self.group, self._measure = parameters, group, measure
        sizes = [parameter.numel() for parameter in parameters]
        self.flat = torch.zeros(sum(sizes), dtype=torch.float32, device=parameters[0].device)
        self.views = [view.view_as(p) for view, p in zip(self.flat.split(sizes), parameters, strict=True)]
        self.missing = len(parameters)
        self.compressor: Compressor | None = None
        if compression.kind != "none" and group is not None:
            shapes = {name: parameter.shape for name, parameter in named.items()}
            self.compressor = make_compressor(compression, shapes, group, self.flat.device)
        self._sent = torch.empty_like(self.flat, dtype=torch.bfloat16) if rounded else self.flat
        self._work: dist.Work | None = None

    def start_all_reduce(self) -> None:
        """Start the sum over the group, once; compressed sums are computed by `finish`."""
        if self.group is not None and self.compressor is None and self._work is None:
            self._measure(self.flat)
            if self._sent is not self.flat:
                self._sent.copy_(self.flat)
            self._work = dist.all_reduce(self._sent, group=self.group, async_op=True)

    def finish(self) -> None:
        """Wait for the sum over the group."""
        if self.compressor is not None:
            self._measure(self.flat)
            self.compressor.all_reduce(self.views)
        if self._work is not None:
            self._work.wait()
            if self._sent is not self.flat:
                self.flat.copy_(self._sent)
        self._work, self.missing = None, len(self.parameters)


class ReplicatedWeights(Weights):
    """Parameters that every data rank has in full (ZeRO 0).

    Gradients accumulate in fp32 buckets over the micro-batches; in the last one, the sum of a bucket starts during the
    backward pass, as soon as its gradients are complete. Unless the precision is fp32, the model computes with bf16
    copies of the fp32 parameters, updated after each step. A single rank in fp32 needs no buckets, except with CUDA
    graphs, whose memory the next micro-batch overwrites.
    """

    def __init__(
        self,
        stages: list[Decoder],
        layouts: dict[str, ParamLayout],
        mesh: Mesh,
        training: TrainingSpec,
    ) -> None:
        super().__init__(stages, layouts, mesh)
        working = {name: parameter for stage in stages for name, parameter in stage.named_parameters()}
        self.all_params = dict(working)
        self._copies: list[tuple[nn.Parameter, nn.Parameter]] = []  # (weight, what the model computes with)
        if training.computes_in_bf16:
            for name, parameter in working.items():
                if parameter.requires_grad:
                    self.all_params[name] = nn.Parameter(parameter.detach())
                    self._copies.append((self.all_params[name], parameter))
                parameter.data = parameter.data.to(torch.bfloat16)
        self._buckets: list[Bucket] = []
        self._place: dict[nn.Parameter, tuple[Bucket, Tensor]] = {}
        self._filled: set[nn.Parameter] = set()
        self._overlaps = False
        if mesh.sizes.data * mesh.sizes.context > 1 or self._copies or training.cuda_graphs:
            self._make_buckets(working, training)
        self.compressors = [bucket.compressor for bucket in self._buckets if bucket.compressor is not None]

    def prepare_backward(self, *, is_last: bool) -> None:
        """Prepare for the passes of a micro-batch; sums over ranks overlap with the last one."""
        self._overlaps = is_last

    def finish_gradients(self) -> None:
        """Wait for the sums over ranks."""
        if self._buckets:
            self._collect_remaining()
            for bucket in self._buckets:
                bucket.start_all_reduce()
            for bucket in self._buckets:
                bucket.finish()
            for name, parameter in self._working.items():
                self.all_params[name].grad = self._place[parameter][1]
            self._filled.clear()
            self._overlaps = False
        super().finish_gradients()

    def sync_compute_copies(self) -> None:
        """Copy updated parameters to the bf16 copies that the model computes with."""
        if self._copies:
            with torch.no_grad():
                torch._foreach_copy_([copy for _, copy in self._copies], [weight for weight, _ in self._copies])

    def _make_buckets(self, working: dict[str, nn.Parameter], training: TrainingSpec) -> None:
        """Create the buckets, about in the order in which the backward pass computes gradients: the model's,
        reversed."""
        self._working = {name: parameter for name, parameter in working.items() if parameter.requires_grad}
        compression, rounded = training.parallelism.compression, training.gradient_reduction == "bf16"
        for experts in (False, True):
            axes = ("expert_replicate",) if experts else TOKEN_AXES
            group = self.mesh.group(*axes)
            waiting: dict[str, nn.Parameter] = {}
            for name, parameter in reversed(self._working.items()):
                if is_expert(name) == experts:
                    waiting[name] = parameter
                    if sum(each.numel() for each in waiting.values()) * 4 >= BUCKET_BYTES:
                        self._buckets.append(Bucket(waiting, group, compression, self.measure_own, rounded=rounded))
                        waiting = {}
            if waiting:
                self._buckets.append(Bucket(waiting, group, compression, self.measure_own, rounded=rounded))
        for bucket in self._buckets:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                self._place[parameter] = (bucket, view)
                parameter.register_post_accumulate_grad_hook(self._take)

    def _take(self, parameter: Tensor) -> None:
        """Add a new gradient to its bucket, and remove it from the parameter."""
        assert isinstance(parameter, nn.Parameter) and parameter.grad is not None
        bucket, view = self._place[parameter]
        if parameter in self._filled:
            view.add_(parameter.grad)
        else:
            view.copy_(parameter.grad)
            self._filled.add(parameter)
        parameter.grad = None
        if self._overlaps:
            bucket.missing -= 1
            if bucket.missing == 0:
                bucket.start_all_reduce()

    def _collect_remaining(self) -> None:
        """Add gradients that a split backward pass has left on the parameters; a missing gradient is 0."""
        self._overlaps = False
        for parameter, (_, view) in self._place.items():
            if parameter.grad is not None:
                self._take(parameter)
            elif parameter not in self._filled:
                view.zero_()
