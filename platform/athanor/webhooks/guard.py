"""Which addresses may be told: no request that a user names may reach into the platform's own network.

A name is resolved once, every address it has is judged, and the connection goes to one that was judged: a name that
answers otherwise the next time gains nothing. What an administrator lists in ATHANOR_WEBHOOK_ALLOW (names, addresses,
networks) is allowed as it is, and only there is plain http.
"""

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from athanor.core.errors import FieldProblem, Invalid

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
DEFAULT_PORTS = {"http": 80, "https": 443}


class Refused(Exception):
    """The address may not be told; the text says why."""


@dataclass(frozen=True)
class Target:
    scheme: str
    host: str
    port: int
    path: str
    address: str


class Allowed:
    """What ATHANOR_WEBHOOK_ALLOW lists, comma-separated."""

    def __init__(self, text: str) -> None:
        self.names: set[str] = set()
        self.networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for entry in filter(None, (part.strip().lower() for part in text.split(","))):
            try:
                self.networks.append(ipaddress.ip_network(entry, strict=False))
            except ValueError:
                self.names.add(entry)

    def __contains__(self, host: str | Address) -> bool:
        if isinstance(host, str):
            literal = _literal(host)
            return host.lower() in self.names or (literal is not None and literal in self)
        return any(host.version == network.version and host in network for network in self.networks)


def check_url(url: str, allowed: Allowed) -> None:
    """What can be said without asking anybody. Raises Invalid."""
    try:
        _judge(_parsed(url), allowed)
    except Refused as refused:
        detail = f"url={url!r}: {refused}"
        raise Invalid(
            "invalid_webhook_url",
            detail,
            remedy="name a public https address; others must be listed in ATHANOR_WEBHOOK_ALLOW by an administrator",
            problems=(FieldProblem("/url", "url", detail),),
        ) from refused


def resolve(url: str, allowed: Allowed) -> Target:
    """The address to connect to. Raises Refused; OSError when the name is not known. Asks the network."""
    parts = _parsed(url)
    _judge(parts, allowed)
    host, port = str(parts.hostname), parts.port or DEFAULT_PORTS[parts.scheme]
    found = [info[4][0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    addresses = [ipaddress.ip_address(str(text).partition("%")[0]) for text in found]
    for address in addresses:
        if host not in allowed and address not in allowed and not is_public(address):
            # Without the address: what names mean inside the platform's network is not for who reads this.
            raise Refused(f"{host} leads to what is not a public address")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port, path, str(addresses[0]))


def is_public(address: Address) -> bool:
    if isinstance(address, ipaddress.IPv6Address):
        inner = _inner(address)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not (
        address.is_multicast
        or address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_reserved
        or address.is_unspecified
    )


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that packets to this one end up at."""
    if any(address in network for network in NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def _parsed(url: str) -> SplitResult:
    if any(ord(character) <= 32 or ord(character) >= 127 for character in url):
        raise Refused("only printable ASCII without spaces is taken; encode the rest")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Refused(str(error)) from error
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or port == 0:
        raise Refused("an address looks like https://host/path")
    if parts.username is not None or parts.password is not None or parts.fragment or "\\" in url:
        raise Refused("neither a user nor a fragment belongs into it")
    return parts


def _judge(parts: SplitResult, allowed: Allowed) -> None:
    host = str(parts.hostname)
    if host in allowed:
        return
    literal = _literal(host)
    if literal is not None and not is_public(literal):
        raise Refused(f"{literal} is not a public address")
    if parts.scheme != "https":
        raise Refused("it must be https")


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
