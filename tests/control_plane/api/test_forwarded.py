"""Clients behind reverse proxies: which address counts, whatever clients and proxies send.

The test is the proxy: it connects from 127.0.0.1, and each request carries what a proxy would have made of a client's.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from athanor.accounts.models import AuditEvent, SignInTries, User
from athanor.config.env import EnvironmentProblem, read
from athanor.config.forwarded import ForwardedHeadersApplication, parse_proxies
from tests.control_plane.api.live import LiveServer

PROXY, OUTER_PROXY = "127.0.0.1", "10.0.0.7"
ATTACKER, VICTIM = "198.51.100.6", "203.0.113.9"


def seen(trusted: str, *headers: tuple[str, str], peer: str = PROXY) -> tuple[str, str]:
    """Return the client's address and the scheme that the application sees."""
    found: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        found.append(scope)

    encoded = [(name.lower().encode(), value.encode()) for name, value in headers]
    scope = {"type": "http", "client": (peer, 4711), "scheme": "http", "headers": encoded}
    asyncio.run(ForwardedHeadersApplication(application, parse_proxies(trusted))(scope, None, None))
    return found[0]["client"][0], found[0]["scheme"]


@pytest.mark.parametrize("trusted", ["", OUTER_PROXY])
def test_headers_of_a_peer_that_is_no_trusted_proxy_are_ignored(trusted: str) -> None:
    headers = (("X-Forwarded-For", VICTIM), ("X-Forwarded-Proto", "https"))
    assert seen(trusted, *headers) == (PROXY, "http")


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        (ATTACKER, ATTACKER),
        (f"{VICTIM}, {ATTACKER}", ATTACKER),  # the client sent VICTIM, the proxy appended where it came from
        (f"{VICTIM}, {ATTACKER}, {OUTER_PROXY}", ATTACKER),  # through two proxies
        (f"{VICTIM},{OUTER_PROXY}, {ATTACKER}", ATTACKER),  # the client claims to be behind a proxy
        (f"{VICTIM}, unknown", PROXY),
        (f"{VICTIM}, unknown, {OUTER_PROXY}", OUTER_PROXY),
        ("x" * 5000, PROXY),
        ("'; DROP TABLE", PROXY),
        ("fe80::1%eth0", PROXY),
        (f"{ATTACKER}:51234", ATTACKER),
        ("[2001:db8::6]:51234", "2001:db8::6"),
        (f"::ffff:{ATTACKER}", ATTACKER),
        (OUTER_PROXY, OUTER_PROXY),
        (" , ", PROXY),
    ],
)
def test_the_client_is_the_right_most_address_that_is_no_proxy(forwarded: str, client: str) -> None:
    assert seen(f"{PROXY}, 10.0.0.0/29", ("X-Forwarded-For", forwarded))[0] == client


def test_several_lines_of_a_header_are_one_list() -> None:
    lines = (("X-Forwarded-For", VICTIM), ("X-Forwarded-For", ATTACKER))
    assert seen(PROXY, *lines)[0] == ATTACKER
    assert seen(PROXY, ("X-Forwarded-Proto", "https"), ("X-Forwarded-Proto", "http"))[1] == "http"
    assert seen(PROXY, ("X-Forwarded-Proto", "javascript"))[1] == "http"


def test_a_socket_of_both_families_is_the_same_proxy() -> None:
    assert seen(PROXY, ("X-Forwarded-For", ATTACKER), peer=f"::ffff:{PROXY}")[0] == ATTACKER
    assert seen("", peer=f"::ffff:{ATTACKER}")[0] == ATTACKER


@pytest.mark.parametrize("value", ["*", "proxy.example", "10.0.0.7/8", "0.0.0.0/0", "::/0", "10.0.0.7 10.0.0.8"])
def test_a_list_that_would_trust_everyone_or_nothing_is_refused(value: str) -> None:
    with pytest.raises(EnvironmentProblem, match="ATHANOR_TRUSTED_PROXIES") as refused:
        read({"ATHANOR_TRUSTED_PROXIES": value})
    assert repr(value) in str(refused.value)


@pytest.fixture
def behind_proxy(transactional_db: None) -> Iterator[LiveServer]:
    server = LiveServer(trusted_proxies=PROXY)
    yield server
    server.close()


def test_an_attacker_behind_the_proxy_neither_evades_the_delay_nor_blames_another(
    settings: Any, behind_proxy: LiveServer, user: User
) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    csrf = "a" * 32
    for number in range(4):  # each try with another invented address
        answer = httpx.post(
            f"{behind_proxy.url}/session",
            json={"username": user.username, "password": "wrong"},
            headers={"X-Forwarded-For": f"203.0.113.{number}, {ATTACKER}", "X-CSRFToken": csrf},
            cookies={"csrftoken": csrf},
            timeout=60,
        )
        assert answer.status_code == 401, answer.text
    recorded = AuditEvent.objects.filter(action="session.refuse").values_list("address", flat=True)
    assert list(recorded) == [ATTACKER] * 4
    assert list(SignInTries.objects.values_list("count", flat=True)) == [4, 4, 4], "one count each: name, address, both"
