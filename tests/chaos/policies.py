"""`python -m tests.chaos.policies --seeds 1000 [--first 0]`: the properties of admission over so many random histories.

Each seed stands for one history a property. Prints what was checked; exit status 1, with the seed, when one fails.
"""

import argparse
import sys
import time
import traceback

from tests.control_plane.scheduling.properties import PROPERTIES, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.policies", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", help="only properties whose name holds this text")
    options = parser.parse_args()
    failed = 0
    for name in PROPERTIES:
        if options.only and options.only not in name:
            continue
        began = time.perf_counter()
        for seed in range(options.first, options.first + options.seeds):
            try:
                run(name, seed)
            except AssertionError:
                failed += 1
                print(f"  FAILED {name}, seed {seed}", flush=True)
                traceback.print_exc()
                break
        else:
            seconds = time.perf_counter() - began
            print(f"  {name.replace('_', ' ')}: {options.seeds} histories, {seconds:.0f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
