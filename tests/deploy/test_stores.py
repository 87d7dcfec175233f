"""The embedded stores under one supervisor: kept alive, given up cleanly, found again after a kill -9."""

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import psutil
import psycopg
import pytest
from botocore.config import Config

from deploy.local.environment import REPOSITORY
from deploy.local.errors import StackError
from deploy.local.folder import DataFolder
from deploy.local.handle import StackHandle, wait_until
from deploy.local.postgres import Postgres
from deploy.local.supervisor import LOG_BYTES


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[StackHandle]:
    """A stack of the test's own, which is not started yet."""
    handle = StackHandle(tmp_path / "data")
    yield handle
    handle.down()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackHandle]:
    """Running stores, for tests that leave them running."""
    handle = StackHandle(tmp_path_factory.mktemp("running") / "data")
    handle.up(only_stores=True)
    yield handle
    handle.down()


def settings(stack: StackHandle) -> dict[str, str]:
    """The addresses and keys that `env` prints for a shell."""
    lines = stack.run("env").stdout.splitlines()
    pairs = [line.removeprefix("export ").partition("=") for line in lines]
    return {name: value.strip("'") for name, _, value in pairs}


def bucket(stack: StackHandle) -> tuple[Any, str]:
    known = settings(stack)
    client = boto3.client(
        "s3",
        endpoint_url=known["ATHANOR_S3_ENDPOINT"],
        region_name=known["ATHANOR_S3_REGION"],
        aws_access_key_id=known["ATHANOR_S3_ACCESS_KEY"],
        aws_secret_access_key=known["ATHANOR_S3_SECRET_KEY"],
        config=Config(s3={"addressing_style": "path"}),
    )
    return client, known["ATHANOR_S3_BUCKET"]


def test_a_killed_store_is_started_again_on_its_port(running: StackHandle) -> None:
    before = running.identity("postgres")
    running.kill("postgres")
    running.wait_for_restart("postgres", before)
    wait_until(lambda: postgres_answers(running), "PostgreSQL answers again")


def postgres_answers(stack: StackHandle) -> bool:
    try:
        with psycopg.connect(settings(stack)["DATABASE_URL"], connect_timeout=2) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)
    except psycopg.OperationalError:
        return False


def test_postgresql_is_back_although_processes_of_the_killed_server_live_on(running: StackHandle) -> None:
    """A frozen one holds the shared memory, beside which a new server refuses to start."""
    before, restarts = running.identity("postgres"), running.state["services"]["postgres"]["restarts"]
    child = psutil.Process(before.pid).children()[0]  # it lives as long as the server; later ones may be short-lived
    child.suspend()
    os.kill(before.pid, signal.SIGKILL)
    running.wait_for_restart("postgres", before)
    wait_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, "the frozen process is ended")
    wait_until(lambda: postgres_answers(running), "PostgreSQL answers again")
    assert running.state["services"]["postgres"]["restarts"] == restarts + 1, "the first new start succeeds"


def test_leftovers_are_found_in_a_data_folder_that_is_a_symbolic_link(running: StackHandle, tmp_path: Path) -> None:
    """Their working folder is the real one."""
    link = tmp_path / "link"
    link.symlink_to(running.data_dir)
    postgres = Postgres(DataFolder(link), 1, defaultdict(str))
    (found,) = [each for each in psutil.process_iter(["name"]) if each.pid == running.pid("postgres")]
    assert postgres._is_ours(found)


@pytest.mark.slow
def test_what_was_written_survives_a_kill_of_everything(stack: StackHandle) -> None:
    stack.up(only_stores=True)
    with psycopg.connect(settings(stack)["ATHANOR_MIGRATION_DATABASE_URL"]) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    client, name = bucket(stack)
    client.put_object(Bucket=name, Key="kept", Body=b"bytes")
    stack.kill_everything()
    assert not stack.identity("supervisor").is_alive()

    stack.up(only_stores=True)
    with psycopg.connect(settings(stack)["ATHANOR_MIGRATION_DATABASE_URL"]) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)
    client, name = bucket(stack)
    assert client.get_object(Bucket=name, Key="kept")["Body"].read() == b"bytes"


def test_services_end_with_a_killed_supervisor_or_are_ended_by_the_next(stack: StackHandle) -> None:
    stack.up(only_stores=True)
    earlier = [stack.identity(name) for name in stack.state["services"]]
    os.kill(stack.pid("supervisor"), signal.SIGKILL)
    stack.up(only_stores=True)
    assert not any(identity.is_alive() for identity in earlier)


def test_a_second_supervisor_is_refused_and_a_second_background_start_changes_nothing(running: StackHandle) -> None:
    first = running.pid("supervisor")
    refused = running.run("up", "--stores")
    assert refused.returncode == 1
    assert "already runs" in refused.stderr
    running.up(only_stores=True)
    assert running.pid("supervisor") == first


def test_secrets_and_folder_are_for_the_owner_only_and_stay_the_same(stack: StackHandle) -> None:
    stack.up(only_stores=True)
    path = stack.data_dir / "secrets.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(stack.data_dir.stat().st_mode) == 0o700
    before = path.read_text()
    stack.down()
    stack.up(only_stores=True)
    assert path.read_text() == before
    secrets = json.loads(before).values()
    command_lines = "\0".join(part for each in psutil.process_iter(["cmdline"]) for part in each.info["cmdline"] or ())
    logs = "".join(log.read_text() for log in stack.folder.logs.iterdir())
    assert not [secret for secret in secrets if secret in command_lines or secret in logs]


@pytest.mark.slow
def test_an_internal_port_that_was_taken_meanwhile_is_chosen_anew(stack: StackHandle) -> None:
    stack.up(only_stores=True)
    taken = json.loads((stack.data_dir / "ports.json").read_text())["valkey"]
    stack.down()
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", taken))
        squatter.listen()
        stack.up(only_stores=True)
        assert json.loads((stack.data_dir / "ports.json").read_text())["valkey"] != taken


def test_the_port_a_user_asked_for_is_not_replaced(tmp_path: Path) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        port = squatter.getsockname()[1]
        stack = StackHandle(tmp_path / "data", {"ATHANOR_PORT": str(port)})
        result = stack.run("up", "--stores")
    assert result.returncode == 1
    assert f"ATHANOR_PORT {port}" in result.stderr


def test_a_folder_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "version").write_text("999\n")
    result = StackHandle(folder).run("up", "--stores")
    assert result.returncode == 1
    assert "format 999" in result.stderr
    assert [path.name for path in folder.iterdir()] == ["version"]


def test_secrets_that_are_gone_are_never_made_anew_beside_old_data(stack: StackHandle) -> None:
    stack.up(only_stores=True)
    stack.down()
    (stack.data_dir / "secrets.json").unlink()
    result = stack.run("up", "--stores")
    assert result.returncode == 1
    assert "secrets.json is gone" in result.stderr


@pytest.mark.slow
def test_a_service_that_cannot_start_is_named_with_the_end_of_its_log(stack: StackHandle) -> None:
    stack.up(only_stores=True)
    stack.down()
    (stack.data_dir / "postgres" / "PG_VERSION").write_text("7\n")
    result = stack.run("up", "--stores")
    assert result.returncode == 1
    assert "postgres does not start" in result.stderr
    assert "incompatible" in result.stderr


def as_superuser(stack: StackHandle) -> psycopg.Connection:
    secrets = json.loads((stack.data_dir / "secrets.json").read_text())
    port = json.loads((stack.data_dir / "ports.json").read_text())["postgres"]
    return psycopg.connect(
        f"postgres://athanor_owner:{secrets['database_owner_password']}@127.0.0.1:{port}/athanor", autocommit=True
    )


@pytest.mark.slow
def test_the_runtime_role_owns_nothing_in_a_folder_of_before_there_were_two_roles(stack: StackHandle) -> None:
    stack.up(only_stores=True)
    with as_superuser(stack) as connection:
        connection.execute("REASSIGN OWNED BY athanor_migration TO athanor")
        connection.execute("DROP OWNED BY athanor_migration")
        connection.execute("DROP ROLE athanor_migration")
        connection.execute("ALTER ROLE athanor CREATEDB")
    with psycopg.connect(settings(stack)["DATABASE_URL"]) as connection:
        connection.execute("CREATE TABLE old AS SELECT 42 AS answer")
    stack.down()
    path = stack.data_dir / "secrets.json"
    secrets = json.loads(path.read_text())
    del secrets["database_migration_password"]
    path.write_text(json.dumps(secrets))

    stack.up(only_stores=True)
    with psycopg.connect(settings(stack)["ATHANOR_MIGRATION_DATABASE_URL"]) as connection:
        assert connection.execute("SELECT answer FROM old").fetchone() == (42,)
        connection.execute("ALTER TABLE old ADD COLUMN more int")
    with (
        psycopg.connect(settings(stack)["DATABASE_URL"]) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("DROP TABLE old")
    with (
        psycopg.connect(settings(stack)["DATABASE_URL"], autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("CREATE DATABASE mine")


def test_an_external_server_replaces_the_embedded_one(tmp_path: Path, running: StackHandle) -> None:
    other = StackHandle(tmp_path / "other", {"DATABASE_URL": settings(running)["DATABASE_URL"]})
    try:
        other.up(only_stores=True)
        assert set(other.state["services"]) == {"valkey", "object-store"}
    finally:
        other.down()


def test_half_an_object_store_setting_is_refused(tmp_path: Path) -> None:
    stack = StackHandle(tmp_path / "data", {"ATHANOR_S3_ENDPOINT": "http://127.0.0.1:9"})
    result = stack.run("up", "--stores")
    assert result.returncode == 1
    assert "ATHANOR_S3_SECRET_KEY" in result.stderr


def test_the_inner_servers_of_the_object_store_refuse_strangers(running: StackHandle) -> None:
    program = (
        "import http.client, json, psutil, sys\n"
        "process = psutil.Process(int(sys.argv[1]))\n"
        "ports = [c.laddr.port for c in process.net_connections('tcp') if c.status == 'LISTEN']\n"
        "answers = []\n"
        "for port in ports:\n"
        "    connection = http.client.HTTPConnection('127.0.0.1', port)\n"
        "    connection.request('GET', '/d1/0/AUTH_athanor')\n"
        "    answers.append(connection.getresponse().status)\n"
        "print(json.dumps(answers))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, str(running.pid("object-store"))],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    answers = json.loads(result.stdout)
    assert len(answers) == 4
    assert answers.count(403) == 3
    assert all(answer in (400, 401, 403) for answer in answers)


def test_of_two_conditional_writers_exactly_one_wins(running: StackHandle) -> None:
    client, name = bucket(running)

    def write(body: bytes) -> bool:
        try:
            client.put_object(Bucket=name, Key="once", Body=body, IfNoneMatch="*")
        except client.exceptions.ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 412
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        wins = list(pool.map(write, [bytes([n]) * 1000 for n in range(8)]))
    assert wins.count(True) == 1
    assert client.get_object(Bucket=name, Key="once")["Body"].read()[:1] == bytes([wins.index(True)])


def test_ctrl_c_in_the_foreground_stops_everything(stack: StackHandle) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "deploy.local", "up", "--stores"],
        cwd=REPOSITORY,
        env=stack.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: stack.folder.state.exists() and stack.state["status"] == "ready", "the stores are ready")
        services = [stack.identity(name) for name in stack.state["services"]]
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "stopped" in output.splitlines()[-1]
    assert not any(identity.is_alive() for identity in services)


def test_a_full_disk_is_named_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**12, 10**12 - 10**8, 10**8))
    with pytest.raises(StackError, match="95 MB free, 500 MB are needed"):
        DataFolder(tmp_path / "data").open()


def test_a_long_log_is_cut_and_one_older_copy_is_kept(running: StackHandle) -> None:
    log = running.folder.logs / "valkey.log"
    with log.open("ab") as handle:
        handle.write(b"a line\n" * (LOG_BYTES // 7 + 1))
    wait_until(lambda: log.stat().st_size < LOG_BYTES, "the log is cut", 30)
    assert (running.folder.logs / "valkey.log.1").stat().st_size > LOG_BYTES
    assert running.identity("valkey").is_alive()


OWNER = """
import sys
from pathlib import Path
from deploy.local.handle import StackHandle

StackHandle(Path(sys.argv[1])).up(only_stores=True)
print("up", flush=True)
sys.stdin.read()
"""


def test_a_stack_ends_by_itself_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    stack = StackHandle(tmp_path / "data")
    command = [sys.executable, "-c", OWNER, str(stack.data_dir)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, env=stack.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        services = [stack.identity(name) for name in ("supervisor", *stack.state["services"])]
        assert all(service.is_alive() for service in services)
        owner.kill()
    wait_until(lambda: not any(service.is_alive() for service in services), "the stack has ended", 60)
