"""The lengths of a billion documents are on disk, and a process has only those of the shards that it reads."""

import os
import subprocess
import sys
from pathlib import Path

SHARDS, DOCUMENTS = 50_000, 20_000  # a trillion tokens in documents of 1,000

READ = """
import resource, sys
from pathlib import Path
from trainer.data.shards import DatasetIndex, DocumentLengths, Shard

shards, documents = int(sys.argv[2]), int(sys.argv[3])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
found = [Shard(f"train-{n}.tokens", n, 1, documents, "") for n in range(shards)]
index = DatasetIndex("f", 300, shards * documents, "uint16", {"train": found}, {}, 0)
before = peak()
lengths = DocumentLengths(Path(sys.argv[1]), index, "train")
assert len(lengths) == shards
assert lengths[shards - 1].tolist()[-1] == 7
assert all(len(lengths[number]) == documents for number in range(0, shards, shards // 32))
print(peak() - before)
"""


def test_a_process_reads_only_the_lengths_that_it_needs(tmp_path: Path) -> None:
    with (tmp_path / "train.documents").open("wb") as file:
        file.truncate(4 * SHARDS * DOCUMENTS - 4)  # 4 GB of holes
        file.seek(0, os.SEEK_END)
        file.write((7).to_bytes(4, "little"))
    command = [sys.executable, "-c", READ, str(tmp_path), str(SHARDS), str(DOCUMENTS)]
    grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown < 32 * 2**20, f"{grown / 2**20:.0f} MiB"
