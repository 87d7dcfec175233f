"""The systemd unit that starts the stack of one data folder with the machine."""

import os
import sys

from deploy.local.environment import REPOSITORY
from deploy.local.folder import DataFolder


def unit(folder: DataFolder) -> str:
    """Return the text of a user unit for this checkout, this interpreter and this data folder.

    Only the supervisor gets the stop signal (KillMode=process): it stops its services, and jobs run on, as with
    `make down`.
    """
    variables = {"ATHANOR_DATA_DIR": str(folder.root)}
    if "ATHANOR_PORT" in os.environ:
        variables["ATHANOR_PORT"] = os.environ["ATHANOR_PORT"]
    environment = "".join(f'Environment="{name}={_escaped(value)}"\n' for name, value in variables.items())
    return (
        "[Unit]\nDescription=Athanor\nAfter=network.target\nStartLimitIntervalSec=0\n\n"
        f"[Service]\nType=exec\nWorkingDirectory={_escaped(str(REPOSITORY))}\n{environment}"
        f"EnvironmentFile=-{_escaped(str(folder.root / 'environment'))}\n"
        f'ExecStart="{_escaped(sys.executable)}" -m deploy.local up\n'
        "KillMode=process\nTimeoutStopSec=120\nRestart=on-failure\nRestartSec=5\n\n"
        "[Install]\nWantedBy=default.target\n"
    )


def _escaped(value: str) -> str:
    """Escape what systemd would expand or unquote."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
