"""Import torch in the fork server, so that every worker forked from it starts with torch loaded.

Nothing here may compute with torch: threads do not survive a fork, and an OpenMP pool that a worker believes to have
would hang its first kernel.
"""

import gc
import importlib
import os
import time
from datetime import UTC, datetime

from trainer.resilience.compile_workers import unstarted_compile_workers
from trainer.resilience.parent_death import die_with_parent
from trainer.resilience.stop_signals import ignore_stop_signals

SERVER_PID = os.getpid()
die_with_parent()
ignore_stop_signals()

_begin = time.monotonic()
for _name in ("torch", "torch._dynamo", "trainer.training.worker"):  # the optimizer imports dynamo on its first use
    importlib.import_module(_name)
if importlib.import_module("torch").cuda.is_available():  # by NVML, which survives a fork
    # Models are compiled there: the compiler would take each restart seconds to import.
    with unstarted_compile_workers():
        importlib.import_module("torch._inductor.compile_fx")
# A worker's collections skip what it shares with the fork server, whose pages then stay shared.
gc.collect()
gc.freeze()
IMPORT_SECONDS = time.monotonic() - _begin
IMPORT_FINISHED_AT = datetime.now(UTC)
