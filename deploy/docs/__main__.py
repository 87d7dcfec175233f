"""`python -m deploy.docs [FOLDER]`: build the site of docs/ into build/docs or FOLDER. A broken link is an error."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SITE = REPOSITORY / "build" / "docs"


def main() -> int:
    """Return mkdocs' exit code."""
    folder = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else SITE
    command = [
        sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", "deploy/docs/mkdocs.yml",
        "--site-dir", str(folder),
    ]  # fmt: skip
    # hooks.py imports athanor, which need not be installed where images are built.
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "platform"), "NO_MKDOCS_2_WARNING": "1"}
    # --quiet would not count warnings.
    built = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if built.returncode:
        sys.stderr.write(built.stderr)
    return built.returncode


if __name__ == "__main__":
    sys.exit(main())
