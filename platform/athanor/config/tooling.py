"""Settings for tools that read the code but never serve: mypy's plugin. Its keys open nothing."""

import os

os.environ.setdefault("ATHANOR_SECRET_KEY", "tooling")
os.environ.setdefault("ATHANOR_MASTER_KEY", "tooling")

from athanor.config.settings import *  # noqa: F403 - the two names above are read on import
