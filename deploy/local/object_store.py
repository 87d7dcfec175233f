"""A durable S3 endpoint on loopback: OpenStack Swift's proxy, account, container and object server in one process.

Run as `python -m deploy.local.object_store FOLDER PORT`, the secret key in ATHANOR_S3_SECRET_KEY. One device, one
replica; every object is fsynced before it is acknowledged, so the folder survives a kill at any moment.
"""

# The patch must come before anything imports socket or threading; hence the order of the imports below.
import eventlet

eventlet.monkey_patch()

import argparse  # noqa: E402 - after the patch
import errno  # noqa: E402 - after the patch
import os  # noqa: E402 - after the patch
import secrets  # noqa: E402 - after the patch
import socket  # noqa: E402 - after the patch
import sys  # noqa: E402 - after the patch
from collections.abc import Callable, Iterable  # noqa: E402 - after the patch
from contextlib import suppress  # noqa: E402 - after the patch
from logging import NullHandler, getLogger  # noqa: E402 - after the patch
from pathlib import Path  # noqa: E402 - after the patch
from typing import Any  # noqa: E402 - after the patch

from eventlet import hubs, patcher, tpool, wsgi  # noqa: E402 - after the patch
from eventlet.semaphore import Semaphore  # noqa: E402 - after the patch
from swift.common import bufferedhttp, utils  # noqa: E402 - after the patch

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
ACCEPT_AGAIN_SECONDS = 0.5
UPDATE_SECONDS = 2.0
DEVICE = "d1"
BACKENDS = ("account", "container", "object")
PARTITION_POWER = 4  # 16 partitions: one device needs no more
REGION_NAME = "us-east-1"
BLOCK_BYTES = 1024 * 1024
RESERVE_BYTES = 300 * BLOCK_BYTES  # free space below which it takes no object: the database on the same disk needs it
MAX_PARTS = 10_000  # of a multipart upload, as on AWS
MAX_CONNECTIONS = 256
PIPELINE = (
    "catch_errors", "gatekeeper", "healthcheck", "listing_formats", "bulk", "s3api", "tempauth",
    "copy", "slo", "dlo", "versioned_writes", "symlink",
)  # fmt: skip
HEALTH_PATH = "/healthcheck"  # of Swift's filter of that name
OWN_HEADER = "X-Athanor-Own-Request"


def write_configuration(folder: Path, access_key: str, secret_key: str) -> None:
    """Swift's files below `folder`/etc. The hash salt places every object on disk: it is written only once."""
    etc = folder / "etc"
    etc.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / "srv" / DEVICE).mkdir(mode=0o700, parents=True, exist_ok=True)
    salt = etc / "swift.conf"
    if not salt.exists():
        temporary = etc / ".swift.conf.new"
        temporary.write_text(
            f"[swift-hash]\nswift_hash_path_suffix = {secrets.token_hex(16)}\n"
            f"swift_hash_path_prefix = {secrets.token_hex(16)}\n"
            "[storage-policy:0]\nname = single\ndefault = yes\n"
        )
        temporary.rename(salt)
    for name in BACKENDS:
        (etc / f"{name}-server.conf").write_text(
            f"[DEFAULT]\nswift_dir = {etc}\ndevices = {folder / 'srv'}\nmount_check = false\n"
            f"fallocate_reserve = {RESERVE_BYTES}\n"
            f"log_level = WARNING\n[pipeline:main]\npipeline = {name}-server\n"
            f"[app:{name}-server]\nuse = egg:swift#{name}\n"
            f"disk_chunk_size = {BLOCK_BYTES}\nnetwork_chunk_size = {BLOCK_BYTES}\n"
        )
    (etc / "proxy-server.conf").write_text(_proxy_configuration(etc, access_key, secret_key))


def _proxy_configuration(etc: Path, access_key: str, secret_key: str) -> str:
    account, _, user = access_key.partition(":")
    options = {
        "s3api": f"location = {REGION_NAME}\nmax_upload_part_num = {MAX_PARTS}\ndns_compliant_bucket_names = true\n",
        "tempauth": f"user_{account}_{user} = {secret_key} .admin\n",
        "slo": f"max_manifest_segments = {MAX_PARTS}\nmax_manifest_size = {8 * BLOCK_BYTES}\n",
        "versioned_writes": "allow_versioned_writes = true\nallow_object_versioning = true\n",
    }
    filters = "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n{options.get(name, '')}" for name in PIPELINE)
    return (
        f"[DEFAULT]\nswift_dir = {etc}\nlog_level = WARNING\n"
        f"[pipeline:main]\npipeline = {' '.join(PIPELINE)} proxy-server\n"
        "[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\n"
        # There is one device: not to ask it for a minute after a full disk would refuse reads, too.
        "error_suppression_interval = 1\n"
        f"object_chunk_size = {BLOCK_BYTES}\nclient_chunk_size = {BLOCK_BYTES}\n{filters}"
    )


def write_rings(etc: Path, ports: dict[str, int]) -> None:
    """Where each kind of server listens. One device each, so new ports do not move any data."""
    # Swift reads swift.conf when this module is imported, so its folder must be known by then.
    from swift.common.ring import RingBuilder  # noqa: PLC0415 - see above

    for name, port in ports.items():
        builder = RingBuilder(PARTITION_POWER, 1, 0)
        builder.add_dev(
            {
                "id": 0, "region": 1, "zone": 1, "weight": 100.0, "ip": "127.0.0.1", "port": port,
                "device": DEVICE, "replication_ip": "127.0.0.1", "replication_port": port, "meta": "",
            }
        )  # fmt: skip
        builder.rebalance()
        builder.get_ring().save(str(etc / f"{name}.ring.gz"))


class OwnRequestsOnly:
    """Guards the inner servers, which check no credentials: other users of the machine reach their ports too.

    Every request this process sends inwards carries a word that only it knows; without it the answer is 403.
    """

    def __init__(self) -> None:
        self._word = secrets.token_hex(32)

    def mark_outgoing(self) -> None:
        """Send the word with every request of this process to the inner servers."""
        word = self._word

        class OwnConnection(bufferedhttp.BufferedHTTPConnection):  # type: ignore[misc] # Swift has no types
            def putrequest(self, *args: Any, **kwargs: Any) -> Any:
                result = super().putrequest(*args, **kwargs)
                self.putheader(OWN_HEADER, word)
                return result

        bufferedhttp.BufferedHTTPConnection = OwnConnection

    def guard(self, application: Application) -> Application:
        """Return the application behind a check of the word."""
        variable = "HTTP_" + OWN_HEADER.upper().replace("-", "_")

        def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
            if not secrets.compare_digest(environ.pop(variable, ""), self._word):
                start_response("403 Forbidden", [("Content-Length", "0")])
                return []
            return application(environ, start_response)

        return guarded


def serialise_conditional_writes(application: Application) -> Application:
    """Swift checks If-None-Match before it writes, not while: two writers of one key may both win.

    A conditional write therefore holds its key, and other writers of that key wait for it.
    """
    held: dict[str, list[Any]] = {}  # path -> [semaphore, number of requests that use it]

    def serialised(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        writes = environ["REQUEST_METHOD"] in ("PUT", "POST", "DELETE")
        if not writes or not (environ.get("HTTP_IF_NONE_MATCH") or path in held):
            return application(environ, start_response)
        entry = held.setdefault(path, [Semaphore(1), 0])
        entry[1] += 1
        try:
            with entry[0]:
                return list(application(environ, start_response))
        finally:
            entry[1] -= 1
            if not entry[1]:
                held.pop(path, None)

    return serialised


def check_inner_servers(application: Application, ports: Iterable[int]) -> Application:
    """Answer health checks when the inner servers answer, too: the proxy works while one of them hangs.

    What they answer does not matter. Nothing is written, so that a full or slow disk does not count as a failure.
    """

    def ask(port: int) -> None:
        connection = bufferedhttp.http_connect("127.0.0.1", port, DEVICE, 0, "HEAD", "/health")
        try:
            connection.getresponse()
        finally:
            connection.close()

    def checked(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == HEALTH_PATH:
            for asked in [eventlet.spawn(ask, port) for port in ports]:
                asked.wait()
        return application(environ, start_response)

    return checked


def make_bucket(proxy: Application, account: str, bucket: str) -> None:
    """Create the bucket by a request that never leaves this process; it is there already on later starts."""
    from swift.common.swob import Request  # noqa: PLC0415 - needs swift.conf

    request = Request.blank(f"/v1/AUTH_{account}/{bucket}", environ={"REQUEST_METHOD": "PUT"})
    request.environ["swift.authorize_override"] = True
    request.environ["swift.authorize"] = lambda _: None
    response = request.get_response(proxy)
    if response.status_int // 100 != 2:
        sys.exit(f"bucket {bucket} cannot be made: {response.status} {response.body!r}")


def listen(port: int) -> socket.socket:
    """Return a socket that listens on a port of 127.0.0.1.

    While this process may open no more files, `accept` waits: eventlet's server would end at the error, for good.
    """
    bound: socket.socket = eventlet.listen(("127.0.0.1", port), backlog=512)
    bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    accept = bound.accept

    def accept_when_possible() -> Any:
        while True:
            try:
                return accept()
            except OSError as error:
                if error.errno not in NO_DESCRIPTORS:
                    raise
                eventlet.sleep(ACCEPT_AGAIN_SECONDS)

    bound.accept = accept_when_possible  # type: ignore[method-assign] # of this socket alone
    return bound


def start_threads() -> None:
    """Start the threads for fsync, each with its event loop, while there are descriptors for them.

    eventlet would start them at the first write. If no descriptor is free at that moment, it takes them for started,
    and every later write waits forever. A thread without its loop leaks a descriptor at each file that it opens.
    """
    tpool.setup()
    threads = patcher.original("threading")
    each_has_one = threads.Barrier(len(tpool._threads))

    def prepare() -> None:
        hubs.get_hub()
        each_has_one.wait()

    for started in [eventlet.spawn(tpool.execute, prepare) for _ in range(each_has_one.parties)]:
        started.wait()


def send_postponed_updates(folder: Path) -> None:
    """Send the updates of listings that the container server did not take when the object changed.

    The object server stores them on disk. Without this, an acknowledged object could be missing from listings forever.
    """
    from swift.common.utils.pickle import unpickle  # noqa: PLC0415 - needs swift.conf
    from swift.obj.updater import ObjectUpdater  # noqa: PLC0415 - needs swift.conf

    class Updater(ObjectUpdater):  # type: ignore[misc] # Swift has no types
        def _load_update(self, device: str, update_path: str) -> Any:
            """Leave a file that cannot be read now for the next sweep: Swift would discard it as damaged."""
            try:
                return unpickle(Path(update_path).read_bytes())
            except OSError:
                return None
            except Exception:  # noqa: BLE001 - what unpickling damaged bytes raises depends on the bytes
                return super()._load_update(device, update_path)

    updater = Updater({"devices": str(folder / "srv"), "swift_dir": str(folder / "etc"), "log_level": "WARNING"})
    updater.get_container_ring()
    while True:
        eventlet.sleep(UPDATE_SECONDS)
        with suppress(OSError):  # no descriptors, or a full disk: the next sweep finds the same files
            updater.object_sweep(str(folder / "srv" / DEVICE))


def serve(folder: Path, port: int, access_key: str, secret_key: str, bucket: str) -> None:
    """Serve until the process is killed."""
    start_threads()
    write_configuration(folder, access_key, secret_key)
    utils.set_swift_dir(str(folder / "etc"))
    from swift.common.http_protocol import SwiftHttpProtocol  # noqa: PLC0415 - needs swift.conf
    from swift.common.wsgi import loadapp  # noqa: PLC0415 - needs swift.conf

    sockets = {name: listen(0) for name in BACKENDS}
    ports = {name: bound.getsockname()[1] for name, bound in sockets.items()}
    write_rings(folder / "etc", ports)
    own = OwnRequestsOnly()
    own.mark_outgoing()
    silent = getLogger("athanor.object_store")
    silent.addHandler(NullHandler())
    silent.propagate = False

    def spawn(bound: socket.socket, application: Application) -> Any:
        server = eventlet.spawn(
            wsgi.server, bound, application, silent, protocol=SwiftHttpProtocol, log_output=False,
            capitalize_response_headers=False, keepalive=True, max_size=MAX_CONNECTIONS,
        )  # fmt: skip
        server.link(lambda _: os._exit(1))  # without one of its servers the store is started again
        return server

    for name in BACKENDS:
        spawn(sockets[name], own.guard(loadapp(f"{folder}/etc/{name}-server.conf", global_conf={})))
    proxy = loadapp(f"{folder}/etc/proxy-server.conf", global_conf={})
    make_bucket(proxy, access_key.partition(":")[0], bucket)
    eventlet.spawn(send_postponed_updates, folder).link(lambda _: os._exit(1))
    spawn(listen(port), check_inner_servers(serialise_conditional_writes(proxy), ports.values())).wait()


def main() -> None:
    """Serve as the arguments and environment say."""
    parser = argparse.ArgumentParser(prog="python -m deploy.local.object_store")
    parser.add_argument("folder", type=Path)
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    os.umask(0o077)
    serve(
        options.folder.absolute(),
        options.port,
        os.environ["ATHANOR_S3_ACCESS_KEY"],
        os.environ["ATHANOR_S3_SECRET_KEY"],
        os.environ["ATHANOR_S3_BUCKET"],
    )


if __name__ == "__main__":
    main()
