"""Estimate the memory of a rank and its network traffic per step from shapes, for job plans and dry runs.

Bytes sent are those of one rank in a ring collective (Thakur et al. 2005): of N bytes over P ranks, N (P - 1) / P for
an all-gather, a reduce-scatter or an all-to-all, and twice that for an all-reduce.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import assert_never

from trainer.contract.launch_plan import is_recomputed, micro_batch_size, num_micro_batches
from trainer.contract.manifest import PART_PLAINTEXT_BYTES, PARTS_IN_FLIGHT
from trainer.contract.optimisation import nf4_bytes
from trainer.contract.parallelism import MeshSizes, stage_layers, stage_numbers
from trainer.contract.ring import window_sends
from trainer.contract.training import TrainingSpec

MAX_LOGITS_CHUNK_BYTES = 512 * 2**20
"""Maximum size of fp32 logits in memory: the loss is computed chunk by chunk over the tokens of a micro-batch."""
MAX_SCORES_BLOCK_BYTES = 256 * 2**20
"""Maximum size of fp32 scores of attention in memory, where they are computed by plain matrix products."""
MAX_SINGLE_GROUP_BYTES = 64 * 2**20
"""A sharded stage of at most this size in fp32 is gathered with one collective."""
MAX_UNREDUCED_GRADIENT_BYTES = 4 * 2**30
"""Up to this size ZeRO 3 accumulates complete gradients over the micro-batches and reduces them once a step. Larger
gradients are reduced after each micro-batch, as ZeRO 2 does: that sends more and stores only shards."""
SHADOW_COPIES = 2
"""Copies of a rank's state that shadow checkpoints hold: one is whole while the other is being made."""
REPLICATED_SHADOW_COPIES = 4
"""Of a run that sends copies to another node: also the newest that all ranks have sent, and that being sent."""
ENCRYPTING_PROCESS_BYTES = 55 * 2**20
"""Memory of a process that encrypts parts of checkpoints beside a GPU, without the parts (measured)."""
REPLICAS = 2
"""Copies of another rank's state that a node holds: one is whole while the other arrives."""
MAX_OFFLOAD_BUCKET_ELEMENTS = 2**24
"""Maximum number of parameters in a bucket of offloaded optimizer state; two buckets are on the device at a time."""
COMMUNICATOR_BYTES = 2 * 32 * 4 * 2**20
"""Buffers of a NCCL communicator on a GPU: those of a ring's two connections in each of 32 channels. NCCL_BUFFSIZE is
4 MiB by default (NCCL's documentation of environment variables); each channel has its own buffers, and a ring two
connections at any scale (NVIDIA/nccl, issues 1450 and 986). Few fabrics use all channels: an upper limit."""
GROUP_AXES = (
    ("pipeline",), ("replicate",), ("context",), ("tensor",), ("shard", "context"), ("replicate", "shard"),
    ("replicate", "shard", "context"), ("shard", "context", "tensor"), ("replicate", "context", "tensor"),
)  # fmt: skip
"""The axes of the mesh along which there are process groups, besides those of experts."""


def num_communicators(sizes: MeshSizes) -> int:
    """Return the number of process groups of several ranks that a rank is in, at most; groups of the same ranks are
    one. That of all ranks is counted too."""
    axes = {name for name, size in sizes.named.items() if size > 1}
    groups = {frozenset(axes & set(each)) for each in GROUP_AXES} | {frozenset(axes)}
    return len(groups - {frozenset()}) + (3 if sizes.expert > 1 else 0) + (1 if sizes.pipeline > 2 else 0)


@dataclass(frozen=True)
class ParameterCounts:
    """Number of parameters that a rank computes with, before sharding over data ranks.

    `tensor_split`: split over the tensor ranks. `replicated`: complete on each tensor rank. `experts`: split over the
    tensor and the expert ranks. Each counts the part of this rank.
    """

    tensor_split: int = 0
    replicated: int = 0
    experts: int = 0

    def __add__(self, other: "ParameterCounts") -> "ParameterCounts":
        return ParameterCounts(
            self.tensor_split + other.tensor_split, self.replicated + other.replicated, self.experts + other.experts
        )

    def __sub__(self, other: "ParameterCounts") -> "ParameterCounts":
        return ParameterCounts(
            self.tensor_split - other.tensor_split, self.replicated - other.replicated, self.experts - other.experts
        )

    @property
    def dense(self) -> int:
        """Return the parameters outside of experts."""
        return self.tensor_split + self.replicated

    @property
    def total(self) -> int:
        """Return all parameters."""
        return self.dense + self.experts


@dataclass(frozen=True)
class Memory:
    """Peak memory of a rank during a step, in bytes.

    `optimizer`: its state on the device. `average`: of the weights (`ema`). `gathered`: unsharded copies of the
    weights that the model computes with, and a dequantized matrix. `logits`: includes the buffers of the loss. `host`:
    optimizer state in host memory. `saves`: the copy of the state for checkpoints, and parts that are being stored, in
    host memory. `shadows`: shadow checkpoints in host memory, where there are any. On a CPU all three are the same
    memory as the rest. `communicators`: buffers of NCCL on a GPU. `reference`: weights of the reference model of
    preference training, with what is gathered of them.
    """

    weights: int
    gradients: int
    optimizer: int
    gathered: int
    activations: int
    logits: int
    host: int = 0
    saves: int = 0
    shadows: int = 0
    communicators: int = 0
    reference: int = 0
    average: int = 0

    @property
    def state(self) -> int:
        """Return the bytes of weights, their average, gradients and optimizer state."""
        return self.weights + self.average + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """Return the bytes on the device."""
        return self.state + self.gathered + self.activations + self.logits + self.communicators + self.reference


@dataclass(frozen=True)
class Traffic:
    """Bytes that a rank sends in one step along an axis of the mesh."""

    axis: str
    operation: str
    num_bytes: int


class RankCost:
    """Memory and traffic of the ranks of one pipeline position, in a step of full batch size.

    Not counted: the reduction of statistics, Muon's exchange of full matrices, the savings of compression, and the
    traffic of the reference model of preference training, at most a forward pass, with `kto` three.
    """

    def __init__(
        self,
        training: TrainingSpec,
        vocab_size: int,
        sizes: MeshSizes,
        pipeline_rank: int,
        micro_batch: int | None = None,
        *,
        on_gpu: bool = False,
    ) -> None:
        """`micro_batch`: sequences of a micro-batch, by default those of a device of unknown memory. `on_gpu`: count
        what only GPUs store."""
        self._on_gpu = on_gpu
        self._training, self._vocab, self._sizes, self._place = training, vocab_size, sizes, pipeline_rank
        self._shape = training.model.resolve()
        spec = training.parallelism
        layers = stage_layers(self._shape, vocab_size, spec.num_stages, spec.stage_layers)
        numbers = stage_numbers(spec, pipeline_rank) if sizes.pipeline > 1 else [0]
        self.stages = {number: layers[number] for number in numbers}
        self.layers = [layer for stage in self.stages.values() for layer in stage]
        self.has_embedding, self.has_head = 0 in numbers, spec.num_stages - 1 in numbers
        full = training.batch_size_schedule.full
        self.micro_batch = micro_batch or micro_batch_size(training, sizes, vocab_size)
        self.micro_batches = num_micro_batches(full, sizes.data, self.micro_batch)
        self._width = 2 if training.computes_in_bf16 else 4
        self._sum_width = 2 if training.gradient_reduction == "bf16" else 4

    @cached_property
    def parameters(self) -> ParameterCounts:
        """Return the parameters that this rank holds before sharding."""
        return self._blocks + self._ends

    @cached_property
    def _blocks(self) -> ParameterCounts:
        """Return the parameters of this rank's layers."""
        found = ParameterCounts()
        for (layer, _), count in self._alike.items():
            of_layer = self._of_layer(layer)
            found = found + ParameterCounts(
                count * of_layer.tensor_split, count * of_layer.replicated, count * of_layer.experts
            )
        return found

    @cached_property
    def _alike(self) -> dict[tuple[int, bool], int]:
        """Return how many of this rank's layers there are of each kind: (one of them, whether it is recomputed).

        Layers differ in whether they have experts, and in whether they are recomputed.
        """
        first: dict[tuple[bool, bool], tuple[int, bool]] = {}
        counts: dict[tuple[int, bool], int] = {}
        for layer in self.layers:
            kind = (self._shape.is_moe_layer(layer), self._is_recomputed(layer))
            one = first.setdefault(kind, (layer, kind[1]))
            counts[one] = counts.get(one, 0) + 1
        return counts

    @cached_property
    def _trained(self) -> ParameterCounts:
        if self._training.lora is None:
            return self.parameters
        lora, shape = self._training.lora, self._shape
        adapters = shape.adapter_parameters(lora.rank, lora.targets) * len(self.layers) // shape.num_layers
        undivided = shape.undivided_adapter_parameters(lora.rank, lora.targets)
        replicated = undivided * len(self.layers) // shape.num_layers if self._sizes.tensor > 1 else 0
        return ParameterCounts(tensor_split=-(-(adapters - replicated) // self._sizes.tensor), replicated=replicated)

    @cached_property
    def _quantized(self) -> ParameterCounts:
        """Return the numbers of this rank's matrices in 4 bits."""
        if not self._training.has_quantized_base:
            return ParameterCounts()
        numbers = sum(count * self._shape.linear_parameters(layer) for (layer, _), count in self._alike.items())
        return ParameterCounts(tensor_split=numbers // self._sizes.tensor)

    @cached_property
    def _held(self) -> ParameterCounts:
        """Return the parameters that this rank holds before sharding: adapters too, but no matrices in 4 bits."""
        adapters = self._trained if self._training.lora is not None else ParameterCounts()
        return self.parameters + adapters - self._quantized

    @property
    def _dequantized_bytes(self) -> int:
        """Return the bytes that the largest matrix takes while it is dequantized, 6 for each number: 4 in fp32, and 2
        of the index of its pair or in bf16."""
        if not self._quantized.total:
            return 0
        shape = self._shape
        width = max(shape.num_heads * shape.head_size, *(shape.linear_mlp_size(layer) for layer, _ in self._alike))
        return 6 * shape.hidden_size * width // self._sizes.tensor

    @property
    def _ends(self) -> ParameterCounts:
        """Return the parameters of embedding, head and last norm, as far as this rank has them."""
        words = -(-self._vocab // self._sizes.tensor) * self._shape.hidden_size
        matrices = self.has_embedding + self.has_head
        if self.has_embedding and self.has_head and self._shape.tie_embeddings and self._sizes.pipeline == 1:
            matrices = 1
        return ParameterCounts(
            tensor_split=words * matrices, replicated=self._shape.hidden_size if self.has_head else 0
        )

    def _of_layer(self, layer: int) -> ParameterCounts:
        shape, tensor = self._shape, self._sizes.tensor
        norms, attention = shape.norm_parameters(), shape.attention_parameters() + shape.bias_parameters()
        norms, attention = norms + shape.compression_parameters(), attention - shape.compression_parameters()
        if shape.moe is None or not shape.is_moe_layer(layer):
            return ParameterCounts(tensor_split=(attention + shape.mlp_parameters(layer)) // tensor, replicated=norms)
        moe, hidden = shape.moe, shape.hidden_size
        expert = 3 * hidden * moe.expert_size
        return ParameterCounts(
            tensor_split=(attention + expert * moe.shared_experts) // tensor,
            replicated=norms + moe.num_experts * hidden + shape.router_bias_parameters(layer),
            experts=(expert * moe.num_experts + shape.expert_bias_parameters(layer)) // tensor // self._sizes.expert,
        )

    @property
    def _reduces_each(self) -> bool:
        """Whether gradients are reduced after each micro-batch; a pipeline reduces once per step."""
        if self._sizes.pipeline > 1:
            return False
        return reduces_each(self._sizes.zero, self._trained.total)

    @property
    def _dense_ranks(self) -> int:
        """Return the number of ranks that parameters outside experts are sharded over."""
        return self._sizes.shard * self._sizes.context if self._sizes.zero else 1

    @property
    def _expert_ranks(self) -> int:
        return max(1, self._dense_ranks // self._sizes.expert) if self._sizes.zero else 1

    def _sharded(self, counts: ParameterCounts) -> int:
        return -(-counts.dense // self._dense_ranks) + -(-counts.experts // self._expert_ranks)

    def memory(self) -> Memory:
        """Return the bytes that this rank needs."""
        sizes, trained = self._sizes, self._trained
        held, updated = self._sharded(self._held), self._sharded(trained)
        gradients = 4 * updated
        if sizes.zero and not self._reduces_each and self.micro_batches > 1 and self._dense_ranks > 1:
            gradients += self._sum_width * trained.total  # they are not reduced before the last micro-batch
        resting = self._width if sizes.zero == 0 else 4  # what is not trained has no fp32 master copy
        moments, room = 4 * self._moments(trained), 0
        average = 4 * updated if self._training.ema is not None else 0
        if self._training.optimizer.offload:
            room = min(moments, 2 * 2 * 4 * MAX_OFFLOAD_BUCKET_ELEMENTS)
        return Memory(
            weights=4 * updated
            + resting * (held - updated if self._training.lora is not None else 0)
            + nf4_bytes(self._quantized.total),
            gradients=gradients,
            optimizer=room if self._training.optimizer.offload else moments,
            average=average,
            gathered=self._gathered(trained) + self._dequantized_bytes,
            activations=self._activation_bytes(),
            logits=self._logits_bytes(),
            host=moments if self._training.optimizer.offload else 0,
            saves=(4 * updated + moments + average) // self._copies + self._parts_in_memory,
            shadows=SHADOW_COPIES * (4 * updated + moments + average),
            communicators=COMMUNICATOR_BYTES * num_communicators(sizes) if self._on_gpu else 0,
            reference=resting * self._sharded(self.parameters) + (self._gathered(trained) if sizes.zero else 0)
            if self._training.holds_reference
            else 0,
        )

    @property
    def _parts_in_memory(self) -> int:
        """Return the bytes of the parts of a checkpoint that are being stored, each once plain and once encrypted, and
        on a GPU of the processes that encrypt them."""
        if not self._on_gpu:
            return 2 * PART_PLAINTEXT_BYTES
        return PARTS_IN_FLIGHT * (2 * PART_PLAINTEXT_BYTES + ENCRYPTING_PROCESS_BYTES)

    @property
    def _copies(self) -> int:
        """Return how many ranks have the same shards: they share the work of a save."""
        sizes = self._sizes
        return sizes.replicate * (1 if sizes.zero else sizes.shard * sizes.context)

    def _moments(self, trained: ParameterCounts) -> int:
        """Return the numbers of optimizer state: two per parameter for AdamW, one per element of a block's matrix for
        Muon."""
        match self._training.optimizer.name:
            case "adamw":
                return 2 * self._sharded(trained)
            case "muon" if self._training.lora is not None:  # adapters are matrices of blocks
                return self._sharded(trained)
            case "muon":
                matrices = len(self.layers) * self._shape.compression_parameters()
                not_muons = self._ends + ParameterCounts(replicated=self._blocks.replicated - matrices)
                return self._sharded(trained) + self._sharded(not_muons)
            case unknown:
                assert_never(unknown)

    def _gathered(self, trained: ParameterCounts) -> int:
        """Return the bytes of the gathered weights to compute with. At stage 3 the ends of the model and two blocks:
        one in use, one on its way."""
        if self._sizes.zero == 0:
            return self._width * trained.total if self._width != 4 else 0
        if self._dense_ranks * self._width == 4:
            return 0
        if self._sizes.zero < 3 or self._is_one_group:
            return self._width * self._held.total
        largest = max((self._gathered_of_layer(layer) for layer, _ in self._alike), default=0)
        return self._width * (self._ends.total + 2 * largest)

    def _gathered_of_layer(self, layer: int) -> int:
        """Return the parameters of a layer that are gathered, adapters left out."""
        in_bits = self._shape.linear_parameters(layer) // self._sizes.tensor if self._quantized.total else 0
        return self._of_layer(layer).total - in_bits

    @property
    def _is_one_group(self) -> bool:
        return 4 * self._held.total // len(self.stages) <= MAX_SINGLE_GROUP_BYTES

    @property
    def _tokens(self) -> int:
        """Return the tokens of one micro-batch on this rank, before tensor parallelism divides them."""
        return self.micro_batch * self._training.sequence_length // self._sizes.context

    def _compiles(self, layer: int) -> bool:
        """Return whether torch compiles a layer as one graph: no other ranks take part, and no experts in fp32."""
        sizes = self._sizes
        if self._width == 4 and self._shape.is_moe_layer(layer):
            return False
        compiles = self._training.with_compile(on_gpu=self._on_gpu).compile is True
        return compiles and max(sizes.tensor, sizes.context, sizes.expert) == 1

    def _values_of_layer(self, layer: int) -> float:
        """Return how many values a layer stores per token for its backward pass.

        Hidden states before and after each of two norms, and of norms of outputs; so compressed queries, keys and
        values, and those that `qk_norm` normalises; queries, keys and values as attention takes them, in fp32 those
        that `l2_qk_norm` has as inputs, its output and that output in the layout of the output matrix; gate and up, the
        activated gate and the product; of experts also their rows, their outputs in two orders, and the router's input
        in fp32. In fp32 on a GPU, keys and values are repeated for all heads (`trainer.models.attention.attend`).

        A layer that torch compiles as one graph computes again what costs little: the activated gate, an order of the
        experts' outputs, the sum behind the first norm of outputs. It stores the output of attention's kernels once.
        """
        shape, tensor = self._shape, self._sizes.tensor
        is_one_graph = self._compiles(layer)
        hidden, kv_heads = shape.hidden_size, shape.num_kv_heads
        if self._on_gpu and not self._training.computes_in_bf16:
            kv_heads = shape.num_heads
        outputs = 1 if is_one_graph and not self._computes_scores and shape.mla is None else 2
        heads = shape.num_heads * (shape.head_size + outputs * shape.value_size)
        if shape.mla is not None:
            heads += shape.num_heads * shape.mla.qk_nope_head_dim  # keys before positions, of which values are a part
        heads += kv_heads * (shape.head_size + shape.value_size)
        normalised = (shape.num_heads + shape.num_kv_heads) * shape.head_size
        if shape.qk_norm:
            heads += normalised
        if shape.l2_qk_norm:
            heads += normalised * 4 // self._width
        values = 2 * hidden / tensor + 2 * hidden + 2 * shape.compressed_width() + heads / tensor
        if shape.norm_position == "both":
            values += (1 if is_one_graph else 2) * hidden / tensor
        of_unit = 3 if is_one_graph else 4
        if shape.moe is None or not shape.is_moe_layer(layer):
            return values + of_unit * shape.intermediate_size / tensor
        moe = shape.moe
        rows = 2 if is_one_graph else 3
        routed = moe.experts_per_token * (of_unit * moe.expert_size / tensor + rows * hidden)
        if self._width != 4:
            routed += 4 // self._width * hidden
        return values + routed + of_unit * moe.shared_experts * moe.expert_size / tensor

    def _activation_bytes(self) -> int:
        """Return the bytes of stored activations. A recomputed layer stores its input, and the outputs of saved
        operations (`selective`); one such layer at a time has everything."""
        shape, kept, most = self._shape, 0.0, 0.0
        for (layer, recomputed), count in self._alike.items():
            values = self._values_of_layer(layer)
            if recomputed:
                most = max(most, values)
                values = shape.hidden_size / self._sizes.tensor
                if self._training.activation_checkpointing == "selective":
                    matrices = shape.attention_matrices()  # all products but that of the output are stored
                    whole = sum(rows for name, (rows, _) in matrices.items() if name.endswith("_a"))
                    width = sum(rows for rows, _ in matrices.values()) - whole - shape.hidden_size
                    width += shape.num_heads * shape.value_size
                    moe = shape.moe if shape.is_moe_layer(layer) else None
                    middle = shape.intermediate_size
                    if moe is not None:
                        middle = moe.expert_size * (moe.experts_per_token + moe.shared_experts)
                    values += 2 * shape.hidden_size + whole + (width + 2 * middle) / self._sizes.tensor
            kept += count * values
        return int((kept * self._in_flight + most) * self._tokens) * self._width + self.scores_bytes

    @property
    def _computes_scores(self) -> bool:
        """Whether attention's scores are computed by plain products, because no kernel of torch has this attention."""
        return self._shape.attn_logit_softcapping is not None or self._shape.attention_sinks

    @property
    def scores_bytes(self) -> int:
        """Return the bytes of a block of scores, their weights and the gradients of both, where scores are computed."""
        shape, sizes, length = self._shape, self._sizes, self._training.sequence_length
        if not self._computes_scores:
            return 0
        heads = shape.num_heads // sizes.tensor
        return 4 * min(4 * self._tokens * length * heads, MAX_SCORES_BLOCK_BYTES)

    def _is_recomputed(self, layer: int) -> bool:
        training = self._training
        if training.activation_checkpointing == "none":
            return False
        return is_recomputed(layer, self._shape.num_layers, training.recompute_layers)

    @property
    def _in_flight(self) -> float:
        """Return how many micro-batches' activations a stage stores at a time (Narayanan et al. 2021, section 2.2)."""
        ranks, count = self._sizes.pipeline, self.micro_batches
        schedule, per_rank = self._training.parallelism.pipeline_schedule, len(self.stages)
        if ranks == 1:
            return 1
        if schedule in ("gpipe", "looped_bfs"):
            return count
        if schedule == "1f1b":
            return min(count, ranks - self._place)
        if schedule in ("zbv_zero_bubble", "dualpipe_v"):
            return min(count, ranks + 0.5)
        warm_up = 2 * (ranks - self._place - 1) + (per_rank - 1) * ranks + 1
        return min(count, warm_up / per_rank)

    def _logits_bytes(self) -> int:
        """Return the bytes of a chunk of logits, its gradient, and the slopes of their cap; the gradients of the hidden
        states and, if it is trained, of the head's matrix."""
        if not self.has_head:
            return 0
        words, hidden = -(-self._vocab // self._sizes.tensor), self._shape.hidden_size
        chunk = min(4 * self._tokens * words, MAX_LOGITS_CHUNK_BYTES)
        chunks = 2 if self._shape.final_logit_softcapping is None else 3
        of_matrix = 4 * words * hidden if self._training.lora is None else 0
        return chunks * chunk + self._width * self._tokens * hidden + of_matrix

    def traffic(self) -> list[Traffic]:
        """Return what this rank sends in a step; entries of zero bytes are omitted."""
        found = [*self._sharding(), *self._replicas(), *self._tensor(), *self._context(), *self._pipeline()]
        found += self._expert()
        return [each for each in found if each.num_bytes]

    def _sharding(self) -> list[Traffic]:
        if not self._sizes.zero:
            return []
        trained, ends = self._trained, self._ends
        blocks = self._held - ends
        # Stages 1 and 2 gather once a step, stage 3 for each pass, or for each micro-batch what is one group.
        frees = self._sizes.zero == 3
        times = (2 if not self._is_one_group else 1) * self.micro_batches if frees else 1
        gathers = _part(self._width * times * blocks.dense, self._dense_ranks)
        gathers += _part(self._width * times * blocks.experts, self._expert_ranks)
        gathers += _part(self._width * (self.micro_batches if frees else 1) * ends.dense, self._dense_ranks)
        reduces = self.micro_batches if self._reduces_each else 1
        sums = _part(self._sum_width * reduces * trained.dense, self._dense_ranks)
        sums += _part(self._sum_width * reduces * trained.experts, self._expert_ranks)
        return [Traffic("shard", "all_gather", gathers), Traffic("shard", "reduce_scatter", sums)]

    def _replicas(self) -> list[Traffic]:
        sizes, trained = self._sizes, self._trained
        if sizes.zero:
            return [
                Traffic("replicate", "all_reduce", 2 * _part(self._sum_width * self._sharded(trained), sizes.replicate))
            ]
        dense = 2 * _part(self._sum_width * trained.dense, sizes.replicate * sizes.context)
        experts = 2 * _part(self._sum_width * trained.experts, sizes.replicate * sizes.context // sizes.expert)
        return [Traffic("replicate", "all_reduce", dense + experts)]

    @property
    def _tokens_of_step(self) -> int:
        """That go through this rank's layers, shared by its tensor ranks."""
        return self.micro_batches * self._tokens if self._sizes.pipeline > 1 else self._share_of_step

    @property
    def _share_of_step(self) -> int:
        sequences = -(-self._training.batch_size_schedule.full // self._sizes.data)
        return sequences * self._training.sequence_length // self._sizes.context

    @property
    def _repeated(self) -> list[int]:
        """The layers whose exchanges are repeated in the backward pass."""
        if self._training.activation_checkpointing != "full":
            return []
        return [layer for layer in self.layers if self._is_recomputed(layer)]

    def _tensor(self) -> list[Traffic]:
        """Each layer gathers its input twice and scatters its result twice; going back the two change roles.
        Recomputing repeats the way there but for its last exchange. The loss reduces three numbers of each token."""
        tensor, layers = self._sizes.tensor, len(self.layers)
        if tensor == 1:
            return []
        hidden = self._width * self._tokens_of_step * self._shape.hidden_size
        gathers = 4 * layers + 2 * len(self._repeated) + self.has_embedding + self.has_head
        scatters = 4 * layers + len(self._repeated) + self.has_embedding + self.has_head
        sums = 3 * 4 * self._tokens_of_step if self.has_head else 0
        sums += 4 * self._sharded(ParameterCounts(replicated=self._trained.replicated))
        return [
            Traffic("tensor", "all_gather", _part(hidden * gathers, tensor)),
            Traffic("tensor", "reduce_scatter", _part(hidden * scatters, tensor)),
            Traffic("tensor", "all_reduce", 2 * _part(sums, tensor)),
        ]

    def _context(self) -> list[Traffic]:
        sizes, shape = self._sizes, self._shape
        if sizes.context == 1:
            return []
        tokens, kv_heads = self._tokens_of_step, shape.num_kv_heads
        queries, keys = (tokens * heads * shape.head_size // sizes.tensor for heads in (shape.num_heads, kv_heads))
        if self._training.parallelism.context_attention == "ring":
            length, turns = self._training.sequence_length, sizes.context - 1
            # Values are padded to the size of keys.
            sent = {"send": 0, "all_to_all": 0}
            for layer in self.layers:
                passes, window = 3 if layer in self._repeated else 2, shape.window_of(layer)
                if window is None or window >= length:
                    sent["send"] += passes * turns * self._width * 2 * keys + sizes.context * 4 * 2 * keys
                else:
                    # Gradients return by the same way in fp32.
                    reached = 2 * keys * window_sends(sizes.context, length, window) * sizes.context // length
                    sent["all_to_all"] += passes * self._width * reached + 4 * reached
            return [Traffic("context", name, num_bytes) for name, num_bytes in sent.items() if num_bytes]
        passes = 2 * len(self.layers) + len(self._repeated)
        values = (queries + keys) * (shape.head_size + shape.value_size) // shape.head_size
        return [Traffic("context", "all_to_all", _part(passes * self._width * values, sizes.context))]

    def _expert(self) -> list[Traffic]:
        """Return the traffic of token dispatch and combine and of their gradients, for evenly loaded experts."""
        shape, sizes = self._shape, self._sizes
        if shape.moe is None or sizes.expert == 1:
            return []
        trips = 4 * sum(map(shape.is_moe_layer, self.layers)) + 2 * sum(map(shape.is_moe_layer, self._repeated))
        rows = self._tokens_of_step * shape.moe.experts_per_token
        num_bytes = _part(trips * self._width * rows * shape.hidden_size, sizes.expert)
        return [Traffic("expert", "all_to_all", num_bytes)]

    def _pipeline(self) -> list[Traffic]:
        """Return the traffic of hidden states to the next stage and of their gradients to the previous one."""
        sizes, spec = self._sizes, self._training.parallelism
        if sizes.pipeline == 1:
            return []
        neighbours = [other for number in self.stages for other in (number - 1, number + 1)]
        away = sum(0 <= other < spec.num_stages and other not in self.stages for other in neighbours)
        hidden = self._width * self._tokens_of_step * self._shape.hidden_size // sizes.tensor
        found = [Traffic("pipeline", "send", away * hidden)]
        if self._shape.tie_embeddings and self.has_embedding != self.has_head and self._training.lora is None:
            words = ParameterCounts(tensor_split=-(-self._vocab // sizes.tensor) * self._shape.hidden_size)
            found.append(Traffic("pipeline", "all_reduce", 2 * _part(4 * self._sharded(words), 2)))
        return found


def reduces_each(zero: int, trained_numbers: int) -> bool:
    """Whether a ZeRO stage reduces gradients after each micro-batch. `trained_numbers`: of a rank, before sharding."""
    return zero == 2 or (zero == 3 and 4 * trained_numbers > MAX_UNREDUCED_GRADIENT_BYTES)


def _part(num_bytes: int, ranks: int) -> int:
    """Return how many of `num_bytes` one rank sends in a ring collective over `ranks`."""
    return num_bytes * (ranks - 1) // ranks
