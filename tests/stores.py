"""Real stores for tests that need Django: PostgreSQL, Valkey and S3, embedded, one set for each pytest process.

`configure` chooses their addresses and sets Django up, which is quick and starts nothing; `start` starts them, when the
first test asks for the database or another store (tests/conftest.py).
"""

import atexit
import json
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

import dj_database_url
import django
from django.conf import settings

from athanor.core.encryption import new_wrapping_keyset
from deploy.local import environment, ports, secret_values
from deploy.local.environment import Embedded
from deploy.local.errors import StackError
from deploy.local.folder import DataFolder
from deploy.local.handle import FOREIGN, StackHandle

_stack: list[StackHandle] = []
_reserved: list[socket.socket] = []
_started: list[bool] = []


def configure() -> None:
    """Choose folder, ports and keys, put them into the environment, and set Django up. Starts no process."""
    if _stack:
        return
    _forget_outside_settings()
    root = Path(tempfile.mkdtemp(prefix="athanor-test-stores-"))
    root.chmod(0o755)  # PostgreSQL may run as another user
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    stack = StackHandle(root / "data")
    _stack.append(stack)
    folder = DataFolder(stack.data_dir)
    folder.open()
    chosen, web = ports.choose(folder, Embedded.from_environment().port_names())
    web.close()
    _reserved.extend(held for name, port in chosen.items() if name != "web" and (held := ports.hold(port)))
    secret_values.load_or_make(folder)
    os.environ.update(environment.of_running(folder))
    del os.environ["ATHANOR_AUDIT_ANCHORS"]
    os.environ["ATHANOR_LOCAL_BACKEND_DIR"] = str(root / "local-backend")
    os.environ["ATHANOR_CLUSTER_CONFIG_DIR"] = str(root / "clusters")
    os.environ["ATHANOR_SECRET_KEY"] = "tests"
    os.environ["ATHANOR_MASTER_KEY"] = new_wrapping_keyset()
    os.environ["DJANGO_SETTINGS_MODULE"] = "athanor.config.settings"
    # The tests' database is made by the owner of its tables; each test then runs as the role of web and workers
    # (`runtime_role` in tests/control_plane/conftest.py).
    owner = dj_database_url.parse(os.environ["ATHANOR_MIGRATION_DATABASE_URL"])
    settings.DATABASES["default"].update(USER=owner["USER"], PASSWORD=owner["PASSWORD"])
    # Each test client loads the middleware, which would list all static files then, in 40 ms. Files are looked up as
    # they are requested instead; servers as users start them run in tests/e2e.
    settings.WHITENOISE_AUTOREFRESH = True
    django.setup()
    # pytest-django reads this variable before any conftest: a worker of pytest-xdist, which inherits it, would load the
    # settings with the addresses of this process.
    del os.environ["DJANGO_SETTINGS_MODULE"]


def start() -> None:
    """Start the stores unless they run already. Raises StackError if they are not at the chosen addresses."""
    configure()
    if _started:
        return
    stack = _stack[0]
    while _reserved:
        _reserved.pop().close()
    before = _store_ports(stack)
    stack.up(only_stores=True)
    atexit.register(stop)
    _started.append(True)
    if _store_ports(stack) != before:
        raise StackError("a port of the test stores was taken in the meantime: run the tests again")


def stop() -> None:
    """Stop the stores, if they were started."""
    if _started:
        _started.clear()
        _stack[0].down()


def _store_ports(stack: StackHandle) -> dict[str, int]:
    """Return the ports of the stores. The port of the web, which does not run here, may change."""
    known: dict[str, int] = json.loads((stack.data_dir / "ports.json").read_text())
    return {name: port for name, port in known.items() if name != "web"}


def _forget_outside_settings() -> None:
    """Remove settings of the user's own platform, and those of a process that started this one."""
    for name in list(os.environ):
        if name.startswith("ATHANOR_") and not name.startswith("ATHANOR_TEST_") or name in FOREIGN:
            with suppress(KeyError):
                del os.environ[name]


def secret(name: str) -> str:
    """Return a secret of the stores, such as the password of PostgreSQL's superuser."""
    return secret_values.load_or_make(_stack[0].folder)[name]
