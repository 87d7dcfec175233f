"""The files of a checkpoint of thousands of ranks, without the ranks: their entries, from the real layouts.

The model is built on the meta device once for each place of the pipeline; the layouts of its other ranks follow from
their coordinates.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist

from trainer.checkpoint.file import Entry
from trainer.checkpoint.state import Shard
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.parallelism import MeshSizes
from trainer.contract.training import TrainingSpec
from trainer.parallel.layout import ParamLayout, param_layout
from trainer.parallel.mesh import Mesh, leave
from trainer.parallel.parallelize import ParallelModel, parallelize_model

VOCABULARY = 128_256
KINDS = ("model", "adam_mean", "adam_square")
HEADER_BYTES = 40_000


def training_of(ranks: int, parallelism: dict[str, int]) -> tuple[TrainingSpec, MeshSizes]:
    """Return llama-405b on so many ranks."""
    training = TrainingSpec.model_validate(
        {
            "model": {"preset": "llama-405b"}, "data": {"source": "builtin:python-stdlib"}, "steps": 100,
            "tokenizer": {"vocab_size": VOCABULARY}, "tokens_per_step": 8192 * ranks, "sequence_length": 8192,
            "precision": "bf16", "parallelism": parallelism,
        }
    )  # fmt: skip
    sizes = plan_mesh(training, VOCABULARY, ranks)
    assert isinstance(sizes, MeshSizes), sizes
    return training, sizes


def layouts_of_ranks(training: TrainingSpec, sizes: MeshSizes) -> Iterator[tuple[int, dict[str, ParamLayout]]]:
    """Yield the layouts of each rank by the names of its parameters."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers a backend

    cpu, of_stage = torch.device("cpu"), sizes.world // sizes.pipeline
    for place in range(sizes.pipeline):
        dist.init_process_group("fake", store=FakeStore(), rank=place * of_stage, world_size=sizes.world)
        model: ParallelModel | None = None
        try:
            mesh = Mesh(place * of_stage, sizes.world, 0, cpu, sizes)
            mesh.param_device = torch.device("meta")
            model = parallelize_model(
                training, VOCABULARY, mesh, 1, load_shard=lambda part: torch.empty(part.local_shape, device="meta")
            )
            parameters, shapes = model.weights.all_params, model.weights.layouts
            for rank in range(place * of_stage, (place + 1) * of_stage):
                here = Mesh(rank, sizes.world, 0, cpu, sizes)
                yield (
                    rank,
                    {name: param_layout(name, parameters[name], one.shape, here) for name, one in shapes.items()},
                )
        finally:
            model = None
            leave()


def entries_of_rank(rank: int, layouts: dict[str, ParamLayout]) -> list[Entry]:
    """Return what the file of this rank has: parameters and moments in fp32, and step counters."""
    begin, found = HEADER_BYTES, []
    for number, (name, one) in enumerate(layouts.items()):
        if one.replica_ranks[number % len(one.replica_ranks)] != rank:
            continue
        boxes = [(f"{kind}/{name}", one.offsets, one.local_shape, one.shape) for kind in KINDS]
        for stored, offsets, sizes, shape in [*boxes, (f"adam_step/{name}", (), (), ())]:
            found.append(Entry(stored, torch.float32, offsets, sizes, shape, begin))
            begin = found[-1].end
    return found


def shards_of_rank(layouts: dict[str, ParamLayout]) -> list[Shard]:
    """Return the shards, without storage, that this rank reads at a resume."""
    found = []
    for name, one in layouts.items():
        tensor = torch.empty(one.local_shape, device="meta")
        found += [Shard(tensor, one.offsets, one.shape, f"{kind}/{name}") for kind in KINDS]
        found.append(Shard(torch.empty((), device="meta"), (), (), f"adam_step/{name}"))
    return found
