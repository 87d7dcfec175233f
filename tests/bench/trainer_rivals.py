"""Others' training loops, each in processes of its own: the same shape, batch, optimiser and clipping as ours.

Every loop sends the process's CPU seconds at the start of each step.
"""

import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

from trainer.contract.training import TrainingSpec
from trainer.resilience.store_server import StoreAddress


def set_up(training: TrainingSpec, rank: int, world: int, address: StoreAddress) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
    torch.manual_seed(1)
    if world > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        store = dist.PrefixStore("rival", dist.TCPStore(address.host, address.port, is_master=False))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world)


def batches(training: TrainingSpec, world: int) -> Iterator[list[Any]]:
    """Each step's micro-batches, [b, S + 1] of random tokens that lie in memory."""
    import torch

    size, share = training.parallelism.micro_batch_sequences, training.batch_size_schedule.full // world
    assert isinstance(size, int)
    size = min(size, share)
    count = share // size
    tokens = torch.randint(0, training.tokenizer.vocab_size, (4, size, training.sequence_length + 1))
    for step in range(training.steps):
        yield [tokens[(step + number) % 4] for number in range(count)]


def empty_model(training: TrainingSpec) -> Any:
    from trainer.models.decoder import Decoder

    return Decoder(training.model.resolve(), training.tokenizer.vocab_size, training.sequence_length)


def plain_model(training: TrainingSpec) -> Any:
    from trainer.models.decoder import initialise

    model = empty_model(training)
    initialise(model, 1)
    return model


def autocast(training: TrainingSpec, device: str) -> Any:
    import torch

    return torch.autocast(device, torch.bfloat16) if training.precision == "bf16" else nullcontext()


def loss_of(model: Any, batch: Any, training: TrainingSpec) -> Any:
    from torch.nn import functional

    with autocast(training, batch.device.type):
        logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def run(model: Any, training: TrainingSpec, rank: int, world: int, report: Any) -> None:
    import torch
    import torch.distributed as dist

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    seconds = []
    for step in batches(training, world):
        seconds.append(time.process_time())
        for number, batch in enumerate(step, start=1):
            waits = getattr(model, "no_sync", None) if number < len(step) else None
            with waits() if waits is not None else nullcontext():
                (loss_of(model, batch, training) / len(step)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    seconds.append(time.process_time())
    if rank == 0:
        report.send(seconds)
    del model, optimizer
    if world > 1:
        import gc

        gc.collect()
        dist.destroy_process_group()


def bare(training: TrainingSpec, rank: int, world: int, address: StoreAddress, report: Any) -> None:
    from torch.nn.parallel import DistributedDataParallel

    set_up(training, rank, world, address)
    model = plain_model(training)
    if training.compile:
        model.compile()
    run(DistributedDataParallel(model) if world > 1 else model, training, rank, world, report)


def bare_reusing(training: TrainingSpec, rank: int, world: int, address: StoreAddress, report: Any) -> None:
    """The bare loop with the allocator settings of our CPU runs: how much of the difference they explain alone."""
    from trainer.training.cpu import reuse_freed_memory

    reuse_freed_memory()
    bare(training, rank, world, address, report)


def bare_sharded(training: TrainingSpec, rank: int, world: int, address: StoreAddress, report: Any) -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    set_up(training, rank, world, address)
    model = plain_model(training)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if training.precision == "bf16" else None, reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )  # fmt: skip
    mesh = init_device_mesh("cpu", (world,))
    for block in model.blocks.values():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    plain = training.model_copy(update={"precision": "fp32"})  # the policy casts; autocast would do so again
    run(model, plain, rank, world, report)


def llama_config(training: TrainingSpec) -> dict[str, Any]:
    shape = training.model.resolve()
    return {
        "vocab_size": training.tokenizer.vocab_size, "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size, "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_heads, "num_key_value_heads": shape.num_kv_heads,
        "max_position_embeddings": training.sequence_length, "tie_word_embeddings": shape.tie_embeddings,
    }  # fmt: skip


def hugging_face(training: TrainingSpec, rank: int, world: int, address: StoreAddress, report: Any) -> None:
    import tempfile

    import torch
    import transformers

    set_up(training, rank, world, address)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama_config(training)))
    size = training.parallelism.micro_batch_sequences
    assert isinstance(size, int)
    sequences = training.batch_size_schedule.full
    tokens = torch.randint(0, training.tokenizer.vocab_size, (sequences * 4, training.sequence_length))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    seconds: list[float] = []

    class Notes(transformers.TrainerCallback):  # type: ignore[misc] - an untyped base class
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            seconds.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, max_steps=training.steps, per_device_train_batch_size=size, use_cpu=True,
            gradient_accumulation_steps=sequences // size, learning_rate=1e-3, max_grad_norm=1.0,
            bf16=training.precision == "bf16", optim="adamw_torch_fused", save_strategy="no", report_to=[],
            logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        )  # fmt: skip
        transformers.Trainer(model, arguments, train_dataset=rows, callbacks=[Notes()]).train()
    report.send([*seconds, time.process_time()])


def fabric_loop(model: Any, loss: Any, training: TrainingSpec, world: int, report: Any) -> None:
    import torch
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", precision="bf16-mixed" if training.precision == "bf16" else "32-true")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    model, optimizer = fabric.setup(model, optimizer)
    seconds = []
    for step in batches(training, world):
        seconds.append(time.process_time())
        for number, batch in enumerate(step, start=1):
            with fabric.no_backward_sync(model, enabled=number < len(step)):
                fabric.backward(loss(model, batch) / len(step))
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
    report.send([*seconds, time.process_time()])


def fabric(training: TrainingSpec, rank: int, world: int, address: StoreAddress, report: Any) -> None:
    from torch.nn import functional

    set_up(training, rank, world, address)

    def loss(model: Any, batch: Any) -> Any:
        return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1).float(), batch[:, 1:].flatten())

    fabric_loop(plain_model(training), loss, training, world, report)


def litgpt(training: TrainingSpec, rank: int, world: int, address: StoreAddress, report: Any) -> None:
    from litgpt import GPT, Config
    from litgpt.utils import chunked_cross_entropy

    set_up(training, rank, world, address)
    shape = training.model.resolve()
    model = GPT(
        Config(
            block_size=training.sequence_length, padded_vocab_size=training.tokenizer.vocab_size,
            vocab_size=training.tokenizer.vocab_size, n_layer=shape.num_layers, n_head=shape.num_heads,
            n_query_groups=shape.num_kv_heads, n_embd=shape.hidden_size, rotary_percentage=1.0, parallel_residual=False,
            bias=False, norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", intermediate_size=shape.intermediate_size,
        )
    )  # fmt: skip

    def loss(model: Any, batch: Any) -> Any:
        return chunked_cross_entropy(model(batch[:, :-1]), batch[:, 1:], chunk_size=0)

    fabric_loop(model, loss, training, world, report)
