"""The object store's process by itself: what it opens, and what it does when it may open no more files."""

import fcntl
import resource
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from deploy.local import ports, programs
from deploy.local.environment import BUCKET
from deploy.local.folder import DataFolder
from deploy.local.handle import wait_until
from deploy.local.secret_values import S3_ACCESS_KEY

SECRET_KEY = "a-key-of-this-test"
WRITERS = 16
SLOTS = 256  # connections that each of its servers takes


class Store:
    """A new object store, which has taken no object."""

    def __init__(self, root: Path) -> None:
        self.folder = DataFolder(root)
        for path in (self.folder.logs, self.folder.objects):
            path.mkdir(parents=True)
        chosen, web = ports.choose(self.folder, ["object_store"])
        web.close()
        self.port = chosen["object_store"]
        self.service = programs.object_store(self.folder, self.port, SECRET_KEY)
        with self.service.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.service.command,
                cwd=self.service.working_folder,
                env=self.service.environment,
                stdout=log,
                stderr=log,
            )
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.port}",
            region_name="us-east-1",
            aws_access_key_id=S3_ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(
                s3={"addressing_style": "path"},
                read_timeout=1,
                retries={"max_attempts": 0},
                max_pool_connections=WRITERS,
            ),
        )

    def wait_until_ready(self) -> None:
        """Wait until it answers."""
        assert self.service.answers is not None
        wait_until(self.service.answers, "the store answers", 60)

    def write(self, key: str) -> bool:
        """Return whether it has taken an object of that key."""
        try:
            self.client.put_object(Bucket=BUCKET, Key=key, Body=b"x")
        except (BotoCoreError, ClientError):
            return False
        return True

    def open_files(self) -> list[str]:
        """What its descriptors point to."""
        found = []
        for descriptor in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                found.append(str(descriptor.readlink()))
        return found

    def listed(self) -> set[str]:
        """The keys in the listing of the bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return {entry["Key"] for page in pages for entry in page.get("Contents", [])}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    try:
        made.wait_until_ready()
        yield made
    finally:
        made.process.kill()
        made.process.wait()


def test_all_that_writing_needs_is_open_before_the_first_object(store: Store) -> None:
    """What is opened later may find no free descriptor, and stay half made."""

    def lasting() -> tuple[int, int]:
        threads = list(Path(f"/proc/{store.process.pid}/task").iterdir())
        return store.open_files().count("anon_inode:[eventpoll]"), len(threads)

    before = lasting()
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(store.write, [f"object-{number}" for number in range(4 * WRITERS)]))
    assert store.write("another")
    assert lasting() == before


def test_it_works_again_when_it_may_open_files(store: Store) -> None:
    """Its first objects come while descriptors run out, each time at another place of its work."""
    pid = store.process.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    has_open = len(store.open_files())
    taken = set()
    with ThreadPoolExecutor(WRITERS) as pool:
        for more in range(1, 20, 4):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (has_open + more, limits[1]))
            keys = [f"{more}-{number}" for number in range(WRITERS)]
            taken |= {key for key, is_taken in zip(keys, pool.map(store.write, keys), strict=True) if is_taken}
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    wait_until(lambda: store.write("afterwards"), "the store takes objects again", 60)
    wait_until(lambda: taken | {"afterwards"} <= store.listed(), "each object it took is in the listing", 60)
    wait_until(lambda: not any(name.endswith(".lock") for name in store.open_files()), "no lock file stays open", 60)


def test_an_update_of_the_listing_that_failed_is_sent_again(store: Store) -> None:
    """An object server that cannot reach the container server takes the object, and stores the update."""

    def postponed() -> list[Path]:
        return [path for path in store.folder.objects.glob("srv/*/async_pending*/*/*") if path.is_file()]

    (database,) = store.folder.objects.glob("srv/*/containers/*/*/*/*.db")
    with (database.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        store.write("taken")
        wait_until(postponed, "the update is stored", 60)
    wait_until(lambda: not postponed(), "it is sent", 60)
    wait_until(lambda: "taken" in store.listed(), "the object is in the listing", 60)


def test_it_is_not_healthy_while_one_of_its_inner_servers_takes_no_request(store: Store) -> None:
    """All connections of one inner server are in use, one server after the other. The proxy itself answers."""
    answers = programs.answers_ok(store.port, "/healthcheck", seconds=1.0)
    bound = {entry.laddr for entry in psutil.Process(store.process.pid).net_connections() if entry.status == "LISTEN"}
    inner = [address for address in bound if address.port != store.port]
    assert len(inner) == len(("account", "container", "object"))
    for address in inner:
        with ExitStack() as connections:
            for _ in range(SLOTS):
                connections.enter_context(socket.create_connection(address))
            assert not answers()
        wait_until(answers, "the store is healthy again", 60)
