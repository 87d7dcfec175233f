"""The bare training loop for `torchrun`, with asynchronous checkpoints of torch. Arguments: SPEC FOLDER EVERY.

A restart resumes from the newest complete checkpoint. The first rank appends `time restart step` to FOLDER/steps after
each step, and the step of the checkpoint that it has restored as `time restart -step`.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

from tests.bench.trainer_rivals import batches, loss_of, plain_model
from trainer.contract.training import TrainingSpec


def join() -> tuple[int, int, int]:
    """Return (rank, ranks, restarts). With the store's keys of the group before, ranks would wait for ever."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world))
    torch.manual_seed(1)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=dist.PrefixStore(f"loop{restarts}", store), rank=rank, world_size=world)
    return rank, world, restarts


def main() -> None:
    training = TrainingSpec.model_validate_json(Path(sys.argv[1]).read_text())
    folder, every = Path(sys.argv[2]), int(sys.argv[3])
    rank, world, restarts = join()
    model = DistributedDataParallel(plain_model(training))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    complete = sorted(path.parent for path in folder.glob("step-*/.metadata"))
    first, group = 0, dist.new_group()  # a save's collectives run beside those of training
    if complete:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, checkpoint_id=complete[-1])
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        first = int(complete[-1].name.partition("-")[2])
    with (folder / "steps").open("a") as steps:
        if rank == 0:
            steps.write(f"{time.time()} {restarts} {-first}\n")
        saving = None
        for step, rows in enumerate(batches(training, world)):
            if step < first:
                continue
            for batch in rows[:-1]:
                with model.no_sync():
                    (loss_of(model, batch, training) / len(rows)).backward()
            (loss_of(model, rows[-1], training) / len(rows)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                steps.write(f"{time.time()} {restarts} {step + 1}\n")
                steps.flush()
            if (step + 1) % every == 0:
                if saving is not None:
                    saving.result()
                weights, moments = get_state_dict(model, optimizer)
                state = {"model": weights, "optimizer": moments}
                saving = dcp.async_save(state, checkpoint_id=folder / f"step-{step + 1:08d}", process_group=group)


if __name__ == "__main__":
    main()
