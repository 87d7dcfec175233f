"""Estimate the memory of a rank of an evaluation job, and its network traffic, from shapes.

A frozen model computes forward passes alone. There are no gradients, no optimizer state and no checkpoints, and of the
activations only those of the layer that computes are in memory. Of the answers of the kind `generation`, keys and
values of all layers are cached (Pope et al. 2022, section 3.1). `trainer.contract.cost` has the counts of parameters
and of what FSDP gathers; `tests/trainer/test_forward_cost.py` compares the estimate with what torch allocates.
"""

from dataclasses import dataclass
from functools import cached_property

from trainer.contract.cost import (
    COMMUNICATOR_BYTES,
    MAX_LOGITS_CHUNK_BYTES,
    MAX_SCORES_BLOCK_BYTES,
    Memory,
    RankCost,
    Traffic,
    num_communicators,
)
from trainer.contract.evaluation import EvaluationSettings
from trainer.contract.parallelism import MeshSizes
from trainer.contract.training import TrainingSpec

MAX_LOGITS_CHUNK_BYTES_ON_CPU = 8 * 2**20
"""Maximum size of fp32 logits in memory on a CPU (`trainer.models.loss.CHUNK_BYTES`)."""
MAX_SCORES_BLOCK_BYTES_ON_CPU = 8 * 2**20
"""Maximum size of fp32 scores of attention in memory on a CPU (`trainer.models.attention_kernels.BLOCK_BYTES`)."""
VALIDATION_ROUND = 8
"""Micro-batches that are under way through a pipeline together."""


@dataclass(frozen=True, kw_only=True)
class ForwardMemory(Memory):
    """Peak memory of a rank of an evaluation job, in bytes.

    `activations`: of the layer that needs most, and hidden states on their way through a pipeline. `logits`: of the
    head, which computes after the layers, so that the two use the same memory. `cache`: keys and values of generated
    answers, and the masks of attention over them. `loading`: of the largest parameter while it is read, in host memory;
    where the device is the CPU, the forward passes use the same memory later.
    """

    cache: int = 0
    loading: int = 0

    @property
    def total(self) -> int:
        """Return the bytes on the device."""
        forward = self.gathered + max(self.activations, self.logits) + self.cache
        return self.weights + max(forward, self.loading) + self.communicators


class ForwardCost(RankCost):
    """Memory and traffic of the ranks of one pipeline position of an evaluation job.

    The tasks are those of `evaluation`. Prompts of the kind `generation` are taken to be as long as `sequence_length`
    allows: how long they are is only known when they are read.
    """

    def __init__(
        self,
        training: TrainingSpec,
        vocab_size: int,
        sizes: MeshSizes,
        pipeline_rank: int,
        micro_batch: int | None = None,
        *,
        evaluation: EvaluationSettings,
        on_gpu: bool = False,
    ) -> None:
        """`training`: of `EvaluationJobSpec.as_training`; the rest as in `RankCost`."""
        super().__init__(training, vocab_size, sizes, pipeline_rank, micro_batch, on_gpu=on_gpu)
        self._evaluation = evaluation

    def memory(self) -> ForwardMemory:
        """Return the bytes that this rank needs, of the kind of task that needs most."""
        sizes = self._sizes
        # Replicated weights are rounded to the precision of the computation; FSDP shards those in fp32.
        resting = self._width if sizes.zero == 0 else 4
        loading = (4 + self._width) * self._largest_parameter
        scores = any(task.kind != "generation" for task in self._evaluation.tasks)
        phases = [(self._scoring_bytes, self._scored_logits_bytes, 0)] if scores else []
        generates = [task.max_tokens or 1 for task in self._evaluation.tasks if task.kind == "generation"]
        if generates:
            prompt = max(1, self._training.sequence_length - min(generates))
            phases.append((self._prefill_bytes(prompt), self._next_logits_bytes, self._cache_bytes(prompt)))
        activations, logits, cache = max(phases, key=lambda phase: max(phase[:2]) + phase[2])
        return ForwardMemory(
            weights=resting * self._sharded(self.parameters),
            gradients=0,
            optimizer=0,
            gathered=0 if sizes.zero == 0 else self._gathered(self.parameters) + self._newest_gathered_bytes,
            activations=activations,
            logits=logits,
            cache=cache,
            loading=0 if self._on_gpu else loading,
            host=loading if self._on_gpu else 0,
            communicators=COMMUNICATOR_BYTES * num_communicators(sizes) if self._on_gpu else 0,
        )

    def traffic(self) -> list[Traffic]:
        """Return what this rank sends in one forward pass over the tokens of `tokens_per_step`, of what training sends:
        the weights that are gathered, nothing that is reduced over data ranks, and half of what layers exchange, since
        the other half is that of gradients."""
        found = []
        for each in super().traffic():
            if each.axis == "replicate" or each.operation == "reduce_scatter" and each.axis == "shard":
                continue
            found.append(each if each.axis == "shard" else Traffic(each.axis, each.operation, each.num_bytes // 2))
        return found

    @property
    def _newest_gathered_bytes(self) -> int:
        """Return the bytes of the newest gathered weights as they came from other ranks, beside the parameters that
        they are copied to: FSDP keeps them until it gathers others (`FSDPCommContext.all_gather_state` of torch)."""
        if self._dense_ranks == 1:
            return 0
        if self._is_one_group:
            return self._width * self._held.total
        return self._width * max((self._gathered_of_layer(layer) for layer, _ in self._alike), default=0)

    @property
    def _largest_parameter(self) -> int:
        """Return the number of elements of the largest parameter of this rank: rows of the vocabulary, or a layer's
        matrix."""
        shape, tensor = self._shape, self._sizes.tensor
        widths = [shape.num_heads * shape.head_size, *(shape.linear_mlp_size(layer) for layer, _ in self._alike)]
        largest = shape.hidden_size * max(widths) // tensor
        moe = shape.moe
        if moe is not None and any(shape.is_moe_layer(layer) for layer, _ in self._alike):
            stacked = moe.num_experts * moe.expert_size * shape.hidden_size // tensor // self._sizes.expert
            largest = max(largest, stacked // self._expert_ranks)
        if self.has_embedding or self.has_head:
            largest = max(largest, -(-self._vocab // tensor) * shape.hidden_size // self._dense_ranks)
        return largest

    @property
    def _scoring_bytes(self) -> int:
        """Return the bytes of activations while windows are scored."""
        scores = self._block_of_scores_bytes(self._tokens, self._training.sequence_length)
        if self._shape.attn_logit_softcapping is None and not self._on_gpu:
            scores = 0  # kernels of CPUs return what sinks need
        layer = self._peak_bytes(self._tokens, self._sizes.tensor, scores)
        return layer + self._handed_bytes + self._positions_bytes

    def _prefill_bytes(self, prompt: int) -> int:
        """Return the bytes of activations while prompts are computed: their tokens are divided neither over tensor nor
        over context ranks."""
        tokens = self.micro_batch * prompt
        scores = self._block_of_scores_bytes(tokens, prompt)
        return self._peak_bytes(tokens, 1, scores) + self._positions_bytes

    @property
    def _positions_bytes(self) -> int:
        """Return the bytes of cosines and sines of positions, of full and of windowed attention."""
        length = self._training.sequence_length // self._sizes.context
        return 2 * 2 * self._width * length * self._shape.rotary_size

    def _block_of_scores_bytes(self, tokens: int, length: int) -> int:
        """Return the bytes of a block of attention's scores in fp32, where there is no kernel: the scores, less the
        highest of each row, and their exponentials."""
        if not self._computes_scores:
            return 0
        largest = MAX_SCORES_BLOCK_BYTES if self._on_gpu else MAX_SCORES_BLOCK_BYTES_ON_CPU
        return 3 * min(4 * tokens * length * self._shape.num_heads // self._sizes.tensor, largest)

    @property
    def _handed_bytes(self) -> int:
        """Return the bytes of hidden states of all micro-batches of a round that wait for another stage of a pipeline:
        those that were sent, and those between two stages of this rank."""
        if self._sizes.pipeline == 1:
            return 0
        is_followed = any(number + 1 in self.stages for number in self.stages)
        hidden = self._width * self._tokens * self._shape.hidden_size // self._sizes.tensor
        return VALIDATION_ROUND * (2 if is_followed else 1) * hidden

    def _peak_bytes(self, tokens: int, shards: int, scores: int) -> int:
        """Return the bytes that are in memory at a time, in the layer that needs most. `shards`: ranks that the hidden
        states of `tokens` are divided over; `scores`: bytes of attention's scores.

        Beside attention there are the layer's input and its norm. Beside the feed-forward layer there are also the
        output of attention and the sum of both.
        """
        shape, hidden = self._shape, self._shape.hidden_size
        before = hidden / shards + (hidden if shape.norm_position != "after" or shards > 1 else 0)
        queries, mixed = self._values_of_attention
        of_value = tokens * self._width
        attention = int(of_value * (before + queries)) + max(int(of_value * mixed), scores)
        most = max((self._values_of_units(layer) for layer, _ in self._alike), default=0.0)
        return max(attention, int(of_value * (before + 2 * hidden / shards + most)))

    def _values_of_units(self, layer: int) -> float:
        """Return the values per token of a feed-forward layer: gate and up, the activated gate and the product; the
        last matrix product needs all but the activated gate."""
        shape = self._shape
        if shape.is_moe_layer(layer):
            return self._values_of_experts
        middle = shape.intermediate_size / self._sizes.tensor
        return max(4 * middle, 3 * middle + shape.hidden_size)

    @cached_property
    def _values_of_attention(self) -> tuple[float, float]:
        """Return the values per token of attention: (queries, keys and values as their matrices return them, and
        queries and keys normalized and rotated; then the output of attention's kernel, in the layout of the output
        matrix too, and its product)."""
        shape, tensor = self._shape, self._sizes.tensor
        queries, outputs = shape.num_heads * shape.head_size, shape.num_heads * shape.value_size
        keys, values = shape.num_kv_heads * shape.head_size, shape.num_kv_heads * shape.value_size
        compressed = 0
        if shape.mla is not None:
            compressed = 2 * shape.compressed_width() + shape.mla.qk_rope_head_dim
            keys, values = queries, shape.num_heads * (shape.mla.qk_nope_head_dim + shape.value_size)
            projected = queries + values
        else:
            projected = queries + keys + values
        rotated = (queries + keys) * (2 if shape.qk_norm or shape.wide_qk_norm else 1)
        if self._on_gpu and not self._training.computes_in_bf16:
            rotated += shape.num_heads * (shape.head_size + shape.value_size)  # for all heads, as in `RankCost`
        rooted = 0.0
        if shape.l2_qk_norm:  # of queries, in fp32: input, its square and the result
            rooted = 3 * queries * 4 / self._width
        mixed = 2 * outputs / tensor + shape.hidden_size
        return compressed + (projected + rotated) / tensor, max(mixed, rooted / tensor)

    @cached_property
    def _values_of_experts(self) -> float:
        """Return the values per token of a mixture of experts: the rows of its experts, what they compute of them, and
        the same results by token; then those of shared experts beside rows and results."""
        shape, moe, tensor = self._shape, self._shape.moe, self._sizes.tensor
        assert moe is not None
        rows = moe.experts_per_token * shape.hidden_size
        inner = moe.experts_per_token * moe.expert_size / tensor
        of_units = 4 if moe.swiglu_limit is None else 7
        found = max(rows + of_units * inner, 2 * rows + 3 * inner, 3 * rows)
        if moe.weigh_inputs:
            found = max(found, 2 * rows)
        if moe.shared_experts:
            shared = 4 * moe.shared_experts * moe.expert_size / tensor
            found = max(found, 2 * rows + 2 * shape.hidden_size + shared)
        return found + (4 / self._width) * moe.num_experts  # the router's scores

    @property
    def _scored_logits_bytes(self) -> int:
        """Return the bytes of two chunks of fp32 logits, as one is freed when the next one has been computed; in bf16
        also of the product before it is rounded up, and with a cap of what it is computed by."""
        if not self.has_head:
            return 0
        words = -(-self._vocab // self._sizes.tensor)
        largest = MAX_LOGITS_CHUNK_BYTES if self._on_gpu else MAX_LOGITS_CHUNK_BYTES_ON_CPU
        of_all = 4 * self._tokens * words
        chunk = min(of_all, largest)
        copies = 1.0 if of_all <= largest else 2.0
        if self._width != 4:
            copies += self._width / 4
        if self._shape.final_logit_softcapping is not None:
            copies += 2
        head_input = 2 * self._width * self._tokens * self._shape.hidden_size
        return int(copies * chunk) + head_input + self._handed_bytes

    @property
    def _next_logits_bytes(self) -> int:
        """Return the bytes of the logits after the last token of each row: of this rank's vocabulary, and with tensor
        parallelism of all of it."""
        if not self.has_head:
            return 0
        words = self._vocab if self._sizes.tensor == 1 else self._vocab + -(-self._vocab // self._sizes.tensor)
        return self.micro_batch * words * (self._width + 1)

    def _cache_bytes(self, prompt: int) -> int:
        """Return the bytes of keys and values of rows of `sequence_length` tokens, and of the masks of the prompts: as
        booleans, the condition that they are computed by, and in the precision of attention's kernel.

        Latent attention caches compressed keys and values, complete on each tensor rank.
        """
        shape = self._shape
        if shape.mla is not None:
            of_token: float = shape.mla.kv_lora_rank + shape.mla.qk_rope_head_dim
        else:
            of_token = shape.num_kv_heads * (shape.head_size + shape.value_size) / self._sizes.tensor
        cached = len(self.layers) * of_token * self._training.sequence_length * self._width
        limits = {(shape.window_of(layer), shape.chunk_of(layer)) for layer in self.layers}
        masks = (len(limits) + 1 + self._width) * prompt * prompt
        return int(self.micro_batch * (cached + masks))
