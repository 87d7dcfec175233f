"""`make matrix`: every legal mesh of up to 8 ranks against one rank. `python -m tests.trainer.matrix [--ranks N]`."""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from tests.trainer.equality import VOCABULARY, Case, compare
from tests.trainer.ranks import RankPool
from trainer.contract.launch_plan import plan_mesh


def meshes(world: int) -> Iterator[dict[str, int]]:
    """Every way to spread `world` ranks over the axes."""

    def divisors(count: int) -> list[int]:
        return [size for size in range(1, count + 1) if count % size == 0]

    for pipeline in divisors(world):
        for context in divisors(world // pipeline):
            for tensor in divisors(world // pipeline // context):
                data = world // pipeline // context // tensor
                for replicate in divisors(data):
                    for expert in divisors(data * context):
                        yield {"pipeline": pipeline, "context": context, "tensor": tensor, "data": data,
                               "replicate": replicate, "expert": expert}  # fmt: skip


def all_cases() -> Iterator[Case]:
    """Every legal mesh of up to 8 ranks; schedules, ZeRO stages and kinds of attention take turns over them, and each
    is met alone as well."""
    schedules = ["1f1b", "gpipe", "interleaved_1f1b", "interleaved_zero_bubble", "zbv_zero_bubble", "dualpipe_v",
                 "looped_bfs"]  # fmt: skip
    number = 0
    for world in range(2, 9):
        for axes in meshes(world):
            for model in ("dense", "tied", "moe") if axes["expert"] == 1 else ("moe",):
                stages = [1, 3] if axes["pipeline"] > 1 else [1, 2, 3]
                zeros = [0] if axes["replicate"] == axes["data"] else []
                if axes["data"] * axes["context"] > axes["replicate"]:
                    zeros.append(stages[number % len(stages)])
                for zero in zeros:
                    number += 1
                    chosen: dict[str, Any] = {**axes, "zero": zero}
                    if axes["pipeline"] > 1:
                        chosen["pipeline_schedule"] = schedules[number % len(schedules)]
                        chosen["micro_batch_sequences"] = 1
                    elif number % 2:
                        chosen["micro_batch_sequences"] = 1
                    if axes["context"] > 1 and number % 3 == 0:
                        chosen["context_attention"] = "ulysses"
                    case = Case(model, world, chosen, packed=number % 2 == 0)
                    if not isinstance(plan_mesh(case.spec(), VOCABULARY, world), list):
                        yield case


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8, help="meshes of up to so many ranks")
    parser.add_argument("--only", default="", help="cases whose name has this text")
    parser.add_argument("--verbose", action="store_true", help="name each case before it runs")
    arguments = parser.parse_args()
    begin, failed, passed, references = time.monotonic(), [], 0, {}
    pool = RankPool(arguments.ranks)
    for case in all_cases():
        if case.world > arguments.ranks or arguments.only not in str(case):
            continue
        if arguments.verbose:
            print(case, flush=True)
        try:
            wrong = compare(pool, case, references)
        except RuntimeError as error:
            wrong = [str(error)]
        passed += not wrong
        if wrong:
            failed.append({"case": asdict(case), "wrong": wrong[:5]})
            print(f"DIFFERS {case}\n  " + "\n  ".join(wrong[:5]), flush=True)
        elif passed % 50 == 0:
            print(f"{passed} equal, {len(failed)} not, {time.monotonic() - begin:.0f} s", flush=True)
    pool.close()
    print(f"{passed} meshes equal to one rank, {len(failed)} not, {time.monotonic() - begin:.0f} s")
    print(json.dumps({"matrix": {"equal": passed, "different": failed}}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
