"""Webhooks cannot reach addresses of the platform's internal network."""

import socket
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from athanor.core import outbound
from athanor.core.errors import Invalid
from athanor.webhooks import envelope, retry_schedule
from tests.control_plane.conftest import Api
from tests.control_plane.webhooks.receiver import Receiver
from trainer.contract.addresses import Allowed, Refused, check, origin_of, resolve

NONE = Allowed("")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/",
        "ftp://example.org/",
        "https://",
        "example.org",
        "https://127.0.0.1/",
        "https://127.0.0.1:443/",
        "https://[::1]/",
        "https://10.0.0.5/",
        "https://168.63.129.16/machine",
        "https://192.0.0.192/opc/v2/",
        "https://[::ffff:168.63.129.16]/",
        "https://172.16.0.1/",
        "https://192.168.1.1/",
        "https://169.254.169.254/latest/meta-data/",
        "https://100.64.0.1/",
        "https://0.0.0.0/",
        "https://224.0.0.1/",
        "https://255.255.255.255/",
        "https://[fe80::1]/",
        "https://[fc00::1]/",
        "https://[fec0::1]/",
        "https://[ff02::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[2002:7f00:1::]/",
        "https://user:password@example.org/",
        "https://example.org/#fragment",
        "https://example.org/a b",
        "https://example.org\\@127.0.0.1/",
        "https://example.org:0/",
        "https://example.org:99999/",
        "https://exämple.org/",
        "https://example.org/\r\nX-Header: 1",
    ],
)
def test_an_address_that_leads_inside_is_refused(url: str) -> None:
    with pytest.raises(Invalid) as refused:
        outbound.check_webhook_url(url)
    assert refused.value.code == "invalid_webhook_url"
    assert refused.value.problems[0].pointer == "/url"


@pytest.mark.parametrize("url", ["https://example.org/hook?a=b", "https://1.1.1.1:8443/", "https://[2606:4700::1]/"])
def test_a_public_address_is_taken(url: str) -> None:
    check(url, NONE)


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("http://127.0.0.1:8080/", "127.0.0.0/8"),
        ("http://10.1.2.3/", "hooks.internal, 10.1.2.3"),
        ("http://hooks.internal/", "hooks.internal"),
        ("https://[fc00::1]/", "fc00::/7"),
    ],
)
def test_what_an_administrator_lists_is_taken(url: str, allowed: str) -> None:
    check(url, Allowed(allowed))


@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["::1"], ["fe80::1%eth0"]])
def test_a_public_name_of_a_private_address_is_refused(addresses: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with pytest.raises(Refused, match="does not resolve to a public address") as refused:
        resolve("https://rebinding.example.org/", NONE)
    assert not any(address in str(refused.value) for address in addresses), "internal addresses are not revealed"
    outcome = outbound.post("https://rebinding.example.org/", b"{}", {}, NONE)
    assert (outcome.status, outcome.is_success) == (0, False)
    assert outcome.error.startswith("not sent: ")


def test_a_name_that_does_not_exist_reads_like_one_that_leads_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error does not reveal which names exist in the platform's network."""

    def inside(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 443))]

    def unknown(*_: Any, **__: Any) -> list[Any]:
        raise socket.gaierror(-2, "Name or service not known")

    errors = []
    for answer in (inside, unknown):
        monkeypatch.setattr(socket, "getaddrinfo", answer)
        errors.append(outbound.post("https://db.internal/", b"{}", {}, NONE).error)
    assert errors[0] == errors[1] == "not sent: db.internal does not resolve to a public address"
    message = outbound.post("https://db.internal/", b"{}", {}, Allowed("db.internal")).error
    assert "Name or service not known" in message, "what an administrator has allowed is explained"


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://Example.org/path?x", "https://example.org"),
        ("https://example.org:443", "https://example.org"),
        ("http://example.org:8080/", "http://example.org:8080"),
        ("https://[2606:4700::1]:8443/", "https://[2606:4700::1]:8443"),
    ],
)
def test_an_origin_has_one_form(url: str, origin: str) -> None:
    assert origin_of(url) == origin


def test_the_connection_goes_to_the_address_that_was_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """DNS rebinding has no effect, because a name is resolved once."""
    receiver, asked = Receiver(), []
    port = int(receiver.url.split(":")[2].split("/")[0])

    def answer(host: str, *_: Any, **__: Any) -> list[Any]:
        asked.append(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    allowed = Allowed("hooks.internal")
    target = resolve(f"http://hooks.internal:{port}/hook", allowed)
    assert (target.address, asked) == ("127.0.0.1", ["hooks.internal"])
    monkeypatch.undo()
    monkeypatch.setattr(outbound, "resolve", lambda *_: target)
    outcome = outbound.post(f"http://hooks.internal:{port}/hook", b"{}", {"Content-Type": "text/plain"}, allowed)
    receiver.close()
    assert outcome.status == 200
    assert receiver.received[0].headers["Host"] == f"hooks.internal:{port}"


def test_whoever_drips_an_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "WHOLE_SECONDS", 0.3)
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            link, _ = listening.accept()
            with link:
                while not stop.wait(0.05):
                    try:
                        link.sendall(b"H")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        outcome = outbound.post(url, b"{}", {}, Allowed("127.0.0.1"))
        stop.set()
        thread.join()
    assert (outcome.status, outcome.is_success) == (0, False)


def test_nobody_there_and_no_tls_there_are_failures_like_others() -> None:
    receiver = Receiver()
    plain = receiver.url.replace("http://", "https://")
    assert "SSL" in outbound.post(plain, b"{}", {}, Allowed("127.0.0.1")).error
    receiver.close()
    assert "refused" in outbound.post(receiver.url, b"{}", {}, Allowed("127.0.0.1")).error


def test_tries_become_rarer_and_end_after_72_hours() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    ends, waits, tries = now + retry_schedule.GIVE_UP_AFTER, [], 0
    while True:
        tries += 1
        following = retry_schedule.next_try(tries, now, ends, 0.5)
        if following is None:
            break
        waits.append(following - now)
        now = following
    assert waits[:3] == [timedelta(seconds=s) for s in retry_schedule.FIRST_WAITS_SECONDS[:3]]
    assert waits[:-1] == sorted(waits[:-1])
    assert now == ends, "the last try is at the very end"
    assert 15 <= tries <= 40
    early, late = (retry_schedule.next_try(1, now - timedelta(hours=1), ends, chance) for chance in (0.0, 0.99))
    assert early is not None
    assert late is not None
    assert early < late


def test_types_ask_for_themselves_and_what_lies_below() -> None:
    assert envelope.is_subscribed([], "job.submitted")
    assert envelope.is_subscribed(["job"], "job.status.failed")
    assert envelope.is_subscribed(["job.status"], "job.status.failed")
    assert not envelope.is_subscribed(["job.status.failed"], "job.status.succeeded")
    assert not envelope.is_subscribed(["job.stat"], "job.status.failed")


@pytest.mark.django_db
def test_the_api_refuses_by_field_and_by_role(api: Api, api_of: Any, make_user: Any, team: Any) -> None:
    assert api.send("POST", "webhooks", {"url": "https://example.org/"}).status_code == 403, "a member"
    admin = api_of(make_user("hal", team, "admin"), team)
    refused = admin.send("POST", "webhooks", {"url": "https://169.254.169.254/"})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/url")
    assert admin.send("POST", "webhooks", {"url": "https://example.org/", "types": ["job."]}).status_code == 422
    made = admin.send("POST", "webhooks", {"url": "https://example.org/"}).json()
    assert made["secret"].startswith("whsec_")
    assert "secret" not in admin.send("GET", f"webhooks/{made['id']}").json()
    assert admin.send("PATCH", f"webhooks/{made['id']}", {"url": "https://10.0.0.1/"}).status_code == 422
    assert api.send("GET", "webhooks").json()["items"] == []
    assert api.send("GET", f"webhooks/{made['id']}").status_code == 403
    for _ in range(19):
        admin.send("POST", "webhooks", {"url": "https://example.org/"})
    full = admin.send("POST", "webhooks", {"url": "https://example.org/"})
    assert (full.status_code, full.json()["code"]) == (409, "too_many_webhooks")
