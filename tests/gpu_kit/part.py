"""`python -m tests.gpu_kit.part NAME RESULTS DEVICE`: run one part in this process and write its result."""

import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.gpu_kit import checks, kernels, machine, recovery, speed
from tests.gpu_kit.jobs import Device
from tests.gpu_kit.schedule import write_result

Figures = dict[str, Any]

SINGLE: dict[str, Callable[[Device], Figures]] = {
    "environment": checks.environment,
    "collectives": checks.collectives,
    "attention": kernels.check_attention,
    "ring": kernels.check_ring,
    "compute time": kernels.check_compute_time,
    "generation": checks.generation,
    "matmul": kernels.measure_products,
    "attention speed": kernels.measure_attention,
    "activations": kernels.check_activations,
    "gradient sums": kernels.measure_gradient_sums,
    "host copies": recovery.host_copies,
    "GPU samples": machine.gpu_samples,
    "checksum": machine.checksum,
    "repeated step": machine.repeated_step,
}
WITH_FOLDER: dict[str, Callable[[Path, Device], Figures]] = {
    "preflight": machine.preflight,
    "resume": checks.resume,
    "hang": recovery.hang,
    "saves": speed.saves,
    "recovery": recovery.recovery,
}
FAMILIES: dict[str, Callable[[str, Path, Device], Figures]] = {
    "reference": checks.reference,
    "case": checks.case,
    "speed": speed.measure,
    "bare": speed.bare,
}


def run_part(name: str, results: Path, device: Device) -> Figures:
    """Return the figures of a part. Raises AssertionError where numbers differ."""
    if name in SINGLE:
        return SINGLE[name](device)
    if name in WITH_FOLDER:
        return WITH_FOLDER[name](results, device)
    family, _, rest = name.partition(" ")
    return FAMILIES[family](rest, results, device)


def main() -> int:
    """Write the result of the part. Return 1 if it failed."""
    name, results = sys.argv[1], Path(sys.argv[2])
    device: Device = "cuda" if sys.argv[3] == "cuda" else "cpu"
    try:
        result = {"state": "passed", "figures": run_part(name, results, device)}
    except checks.NotHereError as error:
        result = {"state": "skipped", "because": str(error)}
    except Exception as error:  # noqa: BLE001 - the result says what failed; the other parts go on
        traceback.print_exc()
        result = {"state": "failed", "because": f"{type(error).__name__}: {error}"}
    write_result(results, name, result)
    return 1 if result["state"] == "failed" else 0


if __name__ == "__main__":
    sys.exit(main())
