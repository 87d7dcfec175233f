"""How many examples property tests try: a quarter by default, all of them in `make chaos`."""

import os

FEWEST = 5


def examples(full: int) -> int:
    """Return `full` if ATHANOR_TEST_EXAMPLES is `all`, else a quarter of it, at least FEWEST."""
    return full if os.environ.get("ATHANOR_TEST_EXAMPLES") == "all" else max(FEWEST, full // 4)
