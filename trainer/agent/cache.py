"""The part of a node's cache that belongs to a job's team: prepared data and base models lie there as plain files."""

import os
from pathlib import Path

from trainer.contract.run import EndClass, RunConfig
from trainer.errors import TrainerError

TEAMS = "teams"


def team_cache(root: Path, run: RunConfig) -> Path:
    """Return the folder of the run's team below `root`, which only the user of the agent can open; create it.

    Raise TrainerError (USER_ERROR) where it belongs to another user, who could read it or plant data in it.
    """
    if not run.cache_scope:
        return root
    folder = root / TEAMS / run.cache_scope
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise TrainerError(
            EndClass.USER_ERROR,
            f"{folder} belongs to another user than the one that runs this job; ask an administrator of the cluster to "
            "remove it or to set another profile.cache_directory",
        )
    folder.chmod(0o700)
    return folder
