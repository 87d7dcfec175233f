"""Deliberately slow clients on a real server do not delay other clients."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from django.http import StreamingHttpResponse

from athanor.accounts.models import Team, User
from athanor.accounts.services import issue_token
from athanor.api import limits, transfers
from athanor.api.gateway.application import TRANSFER_THREADS
from athanor.api.gateway.body import BodyReader, BodyTooSlow
from athanor.artifacts.models import Dataset
from athanor.config import protocol
from athanor.core.errors import TooManyRequests
from athanor.dispatch import tokens
from deploy.local.handle import wait_until
from tests.control_plane.api.live import LiveServer
from tests.raw_http import raw_connections

pytestmark = pytest.mark.django_db(transaction=True)
ACCEPT = "/api/v1/invitations:accept"


@pytest.fixture
def live(db: None) -> Iterator[LiveServer]:
    running = LiveServer()
    yield running
    running.close()


@pytest.fixture
def token(user: User, team: Team) -> str:
    return issue_token(user, team, "healthy")[1]


def assert_served(live: LiveServer, token: str) -> None:
    assert httpx.get(f"{live.origin}/healthz", timeout=5).status_code == 200
    answer = httpx.get(f"{live.url}/jobs", headers={"Authorization": f"Bearer {token}"}, timeout=5)
    assert answer.status_code == 200


def test_bodies_that_never_come_hold_no_view_thread(live: LiveServer, token: str) -> None:
    with raw_connections(live.origin, 40) as slow:
        for connection in slow:
            connection.send_head("POST", ACCEPT, Content_Type="application/json", Content_Length="1000")
            connection.send(b"{")
        assert_served(live, token)


def test_chunked_bodies_that_never_end_hold_no_view_thread(live: LiveServer, token: str) -> None:
    with raw_connections(live.origin, 40) as slow:
        for connection in slow:
            connection.send_head("POST", ACCEPT, Content_Type="application/json", Transfer_Encoding="chunked")
            connection.send(b"1\r\n{\r\n")
        assert_served(live, token)


def test_answers_that_nobody_reads_hold_no_view_thread(live: LiveServer, token: str) -> None:
    with raw_connections(live.origin, 40, receive_buffer=2048) as slow:
        for connection in slow:
            connection.send_head("GET", "/static/drf_spectacular_sidecar/swagger-ui-dist/swagger-ui-bundle.js")
        for connection in slow:
            assert b"200 OK" in connection.receive(512)
        assert_served(live, token)


def test_slow_uploads_of_one_user_do_not_hold_up_those_of_others(
    live: LiveServer, token: str, team: Team, make_user: Any
) -> None:
    other = {"Authorization": f"Bearer {issue_token(make_user('grace', team), team, 'other')[1]}"}
    upload = f"{live.url}/datasets?name=mine&format=text"
    with raw_connections(live.origin, TRANSFER_THREADS + 4) as slow:
        for number, connection in enumerate(slow):
            connection.send_head(
                "POST", f"/api/v1/datasets?name=slow-{number}&format=text", Authorization=f"Bearer {token}",
                Content_Type="text/plain", Content_Length="1000",
            )  # fmt: skip
            connection.send(b"x")
        refused = httpx.post(upload, content=b"text", headers={"Authorization": f"Bearer {token}"}, timeout=10)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_transfers")
        assert int(refused.headers["Retry-After"]) > 0
        kind = {"Content-Type": "text/plain"}
        assert httpx.post(upload, content=b"text", headers={**other, **kind}, timeout=10).status_code == 201

    def is_free() -> bool:
        again = httpx.post(upload, content=b"text", headers={"Authorization": f"Bearer {token}", **kind}, timeout=10)
        return again.status_code == 409  # the name is taken, by the other one's

    wait_until(is_free, "the places of the broken uploads are free again", 20)


def test_downloads_that_are_not_read_count_until_their_clients_are_gone(make_user: Any, team: Team) -> None:
    user = make_user("grace", team)
    running = [transfers.Download(user, iter([b""])) for _ in range(transfers.MAX_TRANSFERS_PER_USER)]
    with pytest.raises(TooManyRequests):
        transfers.Download(user, iter([b""]))
    response = StreamingHttpResponse(running[0])
    response.close()
    response.close()
    with transfers.transfer(user), pytest.raises(TooManyRequests):
        transfers.Download(user, iter([b""]))
    for download in running[1:]:
        download.close()
    with transfers.transfer(user):
        assert transfers.Download(user, iter([b"a"])).close() is None


def test_a_broken_upload_is_no_dataset(live: LiveServer, token: str, team: Team) -> None:
    with raw_connections(live.origin) as (connection,):
        connection.send_head(
            "POST", "/api/v1/datasets?name=cut", Content_Type="text/plain", Content_Length="5000000",
            Authorization=f"Bearer {token}",
        )  # fmt: skip
        connection.send(b"one line\n" * 10_000)
    whole = httpx.post(
        f"{live.url}/datasets?name=whole", content=b"one line\n", timeout=20,
        headers={"Authorization": f"Bearer {token}", "Content-Type": "text/plain"},
    )  # fmt: skip
    assert whole.status_code == 201
    live.close()  # waits for the view of the broken upload
    assert [row.name for row in Dataset.objects.filter(team=team)] == ["whole"]


def test_a_body_above_the_limit_is_refused_with_the_limit_named(live: LiveServer) -> None:
    answer = httpx.post(f"{live.origin}{ACCEPT}", content=b"x" * 20_000, timeout=20)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert "16384 bytes" in answer.json()["detail"]
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_chunked_body_above_the_limit_is_refused(live: LiveServer) -> None:
    def endless() -> Iterator[bytes]:
        for _ in range(200):
            yield b"x" * 16_384

    answer = httpx.post(f"{live.origin}{ACCEPT}", content=endless(), timeout=20)
    assert answer.status_code == 413


def test_a_chunked_body_is_read(live: LiveServer, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    answer = httpx.post(f"{live.url}/jobs:plan", content=iter([b'{"versio', b'n": 2}']), headers=headers, timeout=20)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/version")


def test_only_a_signed_attempt_may_send_a_large_body(live: LiveServer) -> None:
    def send(token: str) -> httpx.Response:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        body = b'{"a": "' + b"x" * 2**21 + b'"}'
        return httpx.post(f"{live.origin}/api/agent/v1/progress", content=body, headers=headers, timeout=20)

    assert send("att_01M81BP72MH2DMVHVJYNMS7TCX.forged").status_code == 413
    unknown = tokens.issue("att_01M81BP72MH2DMVHVJYNMS7TCX")
    assert send(unknown).status_code == 401


def test_a_slow_body_is_given_up(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GRACE_SECONDS", 0.2)
    with raw_connections(live.origin) as (connection,):
        connection.send_head("POST", ACCEPT, Content_Type="application/json", Content_Length="1000")
        connection.send(b"{")
        received = connection.receive_all()
    assert received.startswith(b"HTTP/1.1 408 ")
    assert b"body_too_slow" in received


def test_the_oldest_unfinished_body_makes_room_for_others() -> None:
    async def scenario() -> list[str]:
        reader = BodyReader(max_total_bytes=100)
        outcomes: list[str] = []

        async def read(name: str, pieces: list[bytes]) -> None:
            async def receive() -> dict[str, Any]:
                if not pieces:
                    await asyncio.Event().wait()
                return {"type": "http.request", "body": pieces.pop(0), "more_body": True}

            scope = {"method": "POST", "headers": [(b"transfer-encoding", b"chunked")]}
            try:
                await reader.read(scope, receive, 1000)
            except BodyTooSlow:
                outcomes.append(name)

        old = asyncio.create_task(read("old", [b"x" * 60]))
        await asyncio.sleep(0)
        new = asyncio.create_task(read("new", [b"x" * 60]))
        await old
        new.cancel()
        return outcomes

    assert asyncio.run(scenario()) == ["old"]


def test_a_slow_head_is_given_up(live: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.2)
    with raw_connections(live.origin, 2) as (silent, slow):
        slow.send(b"GET /healthz HTTP/1.1\r\nHost: ")
        assert slow.receive_all().startswith(b"HTTP/1.1 408 ")
        assert silent.receive_all() == b""


def test_a_head_above_the_limit_is_refused(live: LiveServer) -> None:
    with raw_connections(live.origin) as (connection,):
        connection.send(b"GET /healthz HTTP/1.1\r\nX-Long: ")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(40):
                connection.send(b"x" * 4096)
        assert connection.receive_all().startswith(b"HTTP/1.1 431 ")


def test_an_early_answer_is_delivered_and_the_connection_ends(
    live: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.2)
    with raw_connections(live.origin) as (connection,):
        connection.send_head("POST", ACCEPT, Content_Length="50000000")
        connection.send(b"x" * 1000)
        assert connection.receive_all().startswith(b"HTTP/1.1 413 ")


def test_a_full_server_closes_the_connection_that_has_waited_longest(
    live: LiveServer, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol.LimitedProtocol, "max_connections", 5)
    with raw_connections(live.origin, 12) as idle:
        assert_served(live, token)
        assert idle[0].receive_all() == b""
