"""Real stores for the control plane's tests: PostgreSQL, Valkey and S3, embedded, one set a test run.

Imported by the conftest of folders whose tests need Django, before anything of Django is; so the other tests start
nothing.
"""

import atexit
import os
import shlex
import shutil
import tempfile
from pathlib import Path

import dj_database_url
import django
from django.conf import settings

from athanor.core.encryption import new_wrapping_keyset
from deploy.local.handle import StackHandle

RUNNING = "ATHANOR_TEST_STORES"


def start() -> None:
    """Start them once, tell the settings by the environment, and set Django up."""
    if _started:
        return
    _started.append(True)
    if RUNNING not in os.environ:  # else the main process of pytest-xdist has started them for its workers
        _start_processes()
    # The tests' database is made by the owner of its tables; each test then runs as the role of web and workers
    # (`runtime_role` in tests/control_plane/conftest.py).
    owner = dj_database_url.parse(os.environ["ATHANOR_MIGRATION_DATABASE_URL"])
    settings.DATABASES["default"].update(USER=owner["USER"], PASSWORD=owner["PASSWORD"])
    django.setup()


def _start_processes() -> None:
    folder = Path(tempfile.mkdtemp(prefix="athanor-test-stores-"))
    folder.chmod(0o755)  # PostgreSQL may run as another user
    stack = StackHandle(folder / "data")
    stack.up(only_stores=True)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(stack.down)
    for line in stack.run("env").stdout.splitlines():
        name, _, value = shlex.split(line)[-1].partition("=")
        os.environ[name] = value
    os.environ["ATHANOR_LOCAL_BACKEND_DIR"] = str(folder / "local-backend")
    del os.environ["ATHANOR_AUDIT_ANCHORS"]
    os.environ["ATHANOR_CLUSTER_CONFIG_DIR"] = str(folder / "clusters")
    os.environ["ATHANOR_SECRET_KEY"] = "tests"
    os.environ["DJANGO_SETTINGS_MODULE"] = "athanor.config.settings"
    os.environ["ATHANOR_MASTER_KEY"] = new_wrapping_keyset()
    os.environ[RUNNING] = "1"


_started: list[bool] = []
