"""What is optimised, in fp32, and how the gradients of all ranks and micro-batches come together in it.

Two ways: `ShardedWeights` (FSDP2, ZeRO 1 to 3) and `ReplicatedWeights` (stage 0). Both leave, after
`finish_gradients`, the sum over all ranks in `.grad` of each of `named`.
"""

from collections import deque
from collections.abc import Iterable
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
from trainer.parallel.compression import Compressor, WireBytes, make_compressor
from trainer.parallel.data import local_tensor, reshard
from trainer.parallel.layout import ParamLayout, is_expert
from trainer.parallel.mesh import SEQUENCES, Mesh

BUCKET_BYTES = 25 * 2**20
"""Of gradients that are summed in one collective: large enough to be worth the wait for the other ranks, small enough
that the first is under way long before the backward pass ends."""


class Weights:
    """`every`: the model's parameters; `named`: those that are trained, as the optimiser sees them. `stages`: this
    rank's part of the model, in pipeline order.

    `compressors` sum over replicas, where that is compressed; `sent` then has what each step sent, newest last.
    """

    every: dict[str, nn.Parameter]
    compressors: list[Compressor]
    sent: deque[WireBytes]

    def __init__(self, stages: list[Decoder], layouts: dict[str, ParamLayout], mesh: Mesh) -> None:
        self.stages, self.layouts, self.mesh = stages, layouts, mesh
        self.compressors, self.sent = [], deque()
        self._tied_group = _tied_group(stages, mesh)

    @property
    def named(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, by name."""
        return {name: parameter for name, parameter in self.every.items() if parameter.requires_grad}

    @property
    def balances(self) -> dict[str, Tensor]:
        """What sways the choice of experts, by layer: state that no gradient moves."""
        return {f"blocks.{number}.mlp.balance": mlp.balance for number, mlp in mixtures(self.stages).items()}

    def before_backward(self, *, is_last: bool) -> None:
        """Prepare for a micro-batch's passes; sums over ranks begin with the last."""

    def finish_gradients(self) -> None:
        """After the last backward: wait for the sums over ranks, and add what the data axes do not cover."""
        self._sum_over_tensor_ranks()
        self._sum_tied()

    def begin(self, step: int) -> None:
        """Gradients from here on are those of 0-based `step` and of the steps after it."""
        self.sent.clear()
        for compressor in self.compressors:
            compressor.step = step

    def commit(self, is_finite: Tensor) -> None:
        """Finish the step: its gradients were applied, or discarded if `is_finite` is false."""
        if self.compressors:
            each = [compressor.commit(is_finite) for compressor in self.compressors]
            self.sent.append(WireBytes(sum(one.uncompressed for one in each), sum(one.compressed for one in each)))

    def own_state(self) -> dict[str, Tensor]:
        """Return the state of this rank alone, which a resume on the same mesh continues and any other restarts."""
        return {name: each for compressor in self.compressors for name, each in compressor.state_tensors().items()}

    def publish(self) -> None:
        """After an update of `named`: make the model compute with it."""

    def inference(self) -> AbstractContextManager[object]:
        """Return a context for a forward pass without gradients. Not inference mode: FSDP's hooks need version
        counters, which it does not keep, and compiled blocks cannot take the tensors of an exchange made in it."""
        context: AbstractContextManager[object] = torch.no_grad()
        return context

    def after_inference(self) -> None:
        """Whole copies that a forward without backward leaves go."""

    def _gradients(self, names: Iterable[str]) -> list[Tensor]:
        gradients = []
        for name in names:
            grad = self.named[name].grad
            assert grad is not None, f"{name} took no part in the step"
            gradients.append(local_tensor(grad))
        return gradients

    def _sum_over_tensor_ranks(self) -> None:
        """Sum the gradients of parameters that tensor ranks replicate (norms, the router)."""
        group = self.mesh.group("tensor")
        if group is not None:
            uncut = [name for name in self.named if all(cut.axes != ("tensor",) for cut in self.layouts[name].cuts)]
            sum_as_one(self._gradients(uncut), group)

    def _sum_tied(self) -> None:
        """Embedding and head of a tied model on two stages: one matrix, whose gradient is the sum of both uses."""
        names = [name for name in self.named if self.layouts[name].name == "embedding.weight"]
        if len(names) == 2:  # both stages are this rank's
            first, second = self._gradients(names)
            first += second
            second.copy_(first)
        elif names and self._tied_group is not None:
            sum_as_one(self._gradients(names), self._tied_group)


def mixtures(stages: list[Decoder]) -> dict[str, MixtureOfExperts]:
    """Return the mixtures of experts of these stages by the number of their layer."""
    blocks = {number: block for stage in stages for number, block in stage.blocks.items()}
    return {number: block.mlp for number, block in blocks.items() if isinstance(block.mlp, MixtureOfExperts)}


def _tied_group(stages: list[Decoder], mesh: Mesh) -> dist.ProcessGroup | None:
    """Of this rank and the one with the other copy of a tied embedding; None where there is no other."""
    if not stages[0].shape.tie_embeddings:
        return None
    has_embedding = any(stage.embedding is not None for stage in stages)
    has_head = any(stage.head is not None for stage in stages)
    return mesh.group_of_ends() if has_embedding != has_head else None


def sum_as_one(tensors: list[Tensor], group: dist.ProcessGroup) -> None:
    """Sum each over the group, in place, by one collective."""
    if not tensors:
        return
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat, group=group)
    for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
        tensor.copy_(part.view_as(tensor))


class ShardedWeights(Weights):
    """FSDP2 gathers before use and reduces after; between micro-batches the gradients of stage 1 stay whole on the rank
    and are reduced once, those of stage 2 and of a large model are reduced each time and only their shards stay.

    Sums over replicas that are to be compressed are none of FSDP's: they follow at the end, shard by shard."""

    def __init__(
        self, stages: list[Decoder], layouts: dict[str, ParamLayout], mesh: Mesh, compression: CompressionSpec
    ) -> None:
        super().__init__(stages, layouts, mesh)
        self.every = {name: parameter for stage in stages for name, parameter in stage.named_parameters()}
        # A sharded parameter counts as whole here.
        self._frees = mesh.sizes.zero == 3  # parameters after use; otherwise they stay gathered for the step
        self._reduces_each = reduces_each(mesh.sizes.zero, sum(each.numel() for each in self.named.values()))
        group = mesh.group("replicate")
        if compression.kind != "none" and group is not None:
            shapes = {name: local_tensor(each).shape for name, each in self.named.items()}
            self.compressors = [make_compressor(compression, shapes, group, mesh.device)]

    def before_backward(self, *, is_last: bool) -> None:
        """Prepare for a micro-batch's passes; gradients are reduced from the last one, or from each."""
        for stage in self.stages:
            assert isinstance(stage, FSDPModule)
            stage.set_requires_gradient_sync(is_last or self._reduces_each)
            stage.set_requires_all_reduce(is_last)
            stage.set_is_last_backward(is_last)
            stage.set_reshard_after_backward(is_last or self._frees)

    def finish_gradients(self) -> None:
        """Finish the gradients after the last backward pass; with compression, sum over replicas here."""
        for compressor in self.compressors:
            compressor.all_reduce(self._gradients(self.named))
        super().finish_gradients()

    def after_inference(self) -> None:
        """Free gathered parameters."""
        for stage in self.stages:
            reshard(stage)


class Bucket:
    """Gradients of one flat fp32 buffer, summed by one collective, or compressed by a few."""

    def __init__(
        self,
        named: dict[str, nn.Parameter],
        group: dist.ProcessGroup | None,
        compression: CompressionSpec,
        *,
        rounded: bool,
    ) -> None:
        """Allocate the bucket; with `rounded`, gradients are sent and summed in bf16."""
        parameters = list(named.values())
        self.parameters, self.group = parameters, group
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

    def begin(self) -> None:
        """All gradients are here: begin their sum. Compressed ones wait for `finish`."""
        if self.group is not None and self.compressor is None and self._work is None:
            if self._sent is not self.flat:
                self._sent.copy_(self.flat)
            self._work = dist.all_reduce(self._sent, group=self.group, async_op=True)

    def finish(self) -> None:
        """Until the sum is here."""
        if self.compressor is not None:
            self.compressor.all_reduce(self.views)
        if self._work is not None:
            self._work.wait()
            if self._sent is not self.flat:
                self.flat.copy_(self._sent)
        self._work, self.missing = None, len(self.parameters)


class ReplicatedWeights(Weights):
    """Every data rank has everything. Gradients gather in fp32 buckets over the micro-batches; with the last one, each
    bucket's sum begins as soon as it is full, during the backward pass.

    In bf16 the model computes with rounded copies of the fp32 weights, renewed after each step. A single rank in fp32
    needs none of this: the gradients stay where autograd leaves them, unless that is a CUDA graph's memory, which the
    next micro-batch uses again.
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
        self.every = dict(working)
        self._copies: list[tuple[nn.Parameter, nn.Parameter]] = []  # (weight, what the model computes with)
        if training.precision != "fp32":
            for name, parameter in working.items():
                if parameter.requires_grad:
                    self.every[name] = nn.Parameter(parameter.detach())
                    self._copies.append((self.every[name], parameter))
                parameter.data = parameter.data.to(torch.bfloat16)
        self._buckets: list[Bucket] = []
        self._place: dict[nn.Parameter, tuple[Bucket, Tensor]] = {}
        self._filled: set[nn.Parameter] = set()
        self._overlaps = False
        if mesh.sizes.data * mesh.sizes.context > 1 or self._copies or training.cuda_graphs:
            self._make_buckets(working, training)
        self.compressors = [bucket.compressor for bucket in self._buckets if bucket.compressor is not None]

    def before_backward(self, *, is_last: bool) -> None:
        """Prepare for a micro-batch's passes; sums over ranks overlap with the last."""
        self._overlaps = is_last

    def finish_gradients(self) -> None:
        """Wait for the sums over ranks."""
        if self._buckets:
            self._take_leftovers()
            for bucket in self._buckets:
                bucket.begin()
            for bucket in self._buckets:
                bucket.finish()
            for name, parameter in self._working.items():
                self.every[name].grad = self._place[parameter][1]
            self._filled.clear()
            self._overlaps = False
        super().finish_gradients()

    def publish(self) -> None:
        """Copy updated weights into the rounded copies that the model computes with."""
        if self._copies:
            with torch.no_grad():
                torch._foreach_copy_([copy for _, copy in self._copies], [weight for weight, _ in self._copies])

    def _make_buckets(self, working: dict[str, nn.Parameter], training: TrainingSpec) -> None:
        """In the order in which the backward pass fills them: about that of the model, reversed."""
        self._working = {name: parameter for name, parameter in working.items() if parameter.requires_grad}
        compression, rounded = training.parallelism.compression, training.gradient_reduction == "bf16"
        for experts in (False, True):
            axes = ("expert_replicate",) if experts else SEQUENCES
            group = self.mesh.group(*axes)
            waiting: dict[str, nn.Parameter] = {}
            for name, parameter in reversed(self._working.items()):
                if is_expert(name) == experts:
                    waiting[name] = parameter
                    if sum(each.numel() for each in waiting.values()) * 4 >= BUCKET_BYTES:
                        self._buckets.append(Bucket(waiting, group, compression, rounded=rounded))
                        waiting = {}
            if waiting:
                self._buckets.append(Bucket(waiting, group, compression, rounded=rounded))
        for bucket in self._buckets:
            for parameter, view in zip(bucket.parameters, bucket.views, strict=True):
                self._place[parameter] = (bucket, view)
                parameter.register_post_accumulate_grad_hook(self._take)

    def _take(self, parameter: Tensor) -> None:
        """Move a fresh gradient into its bucket."""
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
                bucket.begin()

    def _take_leftovers(self) -> None:
        """Collect gradients that a split backward pass left on the parameters; a missing gradient counts as 0."""
        self._overlaps = False
        for parameter, (_, view) in self._place.items():
            if parameter.grad is not None:
                self._take(parameter)
            elif parameter not in self._filled:
                view.zero_()
