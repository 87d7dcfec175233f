"""`python gpu_kit/run.py`: check and measure the trainer on this machine's GPU. Needs no network and installs nothing.

This file is copied to the top of the kit, beside `source/` (the trainer and the parts of the kit) and `wheels/` (what a
machine with torch may lack). The wheels are unpacked into `site/` where the interpreter is the one they were made for.
"""

import os
import sys
import zipfile
from pathlib import Path

KIT = Path(__file__).resolve().parent


def unpack_wheels() -> list[str]:
    """Unpack the wheels once. Return what must be in front of the module search path, and say what is missing."""
    source, site = KIT / "source", KIT / "site"
    made_for = (KIT / "wheels" / "python").read_text().strip() if (KIT / "wheels" / "python").exists() else ""
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if made_for != here:
        print(f"the wheels are for Python {made_for or '(none)'}, this is {here}: only its own packages are used")
        return [str(source)]
    for wheel in sorted((KIT / "wheels").glob("*.whl")):
        done = site / f".{wheel.name}"
        if not done.exists():
            zipfile.ZipFile(wheel).extractall(site)
            done.touch()
    return [str(source), str(site)]


if __name__ == "__main__":
    paths = unpack_wheels()
    sys.path[:0] = paths
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])])
    from tests.gpu_kit.schedule import main

    sys.exit(main(KIT / "results"))
