"""Which addresses chosen by users may be connected to: none may lead into the network of the platform or of a node.

A name is resolved once, every address it has is checked, and the connection goes to a checked one, so a name that
resolves differently the next time gains nothing. What an administrator allows (names, addresses, networks) is
exempt, and only there is plain http allowed.
"""

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
DEFAULT_PORTS = {"http": 80, "https": 443}
# Services of clouds that answer on addresses which count as public: Azure's agent, Oracle's metadata.
CLOUD_SERVICES = frozenset(map(ipaddress.ip_address, ("168.63.129.16", "192.0.0.192")))


class Refused(Exception):
    """The address may not be connected to; the text says why, and never what a name resolves to."""


@dataclass(frozen=True)
class Target:
    """The parts of a URL that decide where a request goes."""

    scheme: str
    host: str
    port: int
    path: str
    address: str


class Allowed:
    """Names, addresses and networks that an administrator exempts, comma-separated."""

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


def check(url: str, allowed: Allowed) -> None:
    """Raise Refused for what can be seen without resolving the name."""
    _judge(_parsed(url), allowed)


def origin_of(url: str) -> str:
    """Return `scheme://host[:port]` in lower case, without the port that the scheme implies. Raise Refused."""
    parts = _parsed(url)
    host = str(parts.hostname)
    shown = f"[{host}]" if ":" in host else host
    implied = parts.port is None or parts.port == DEFAULT_PORTS[parts.scheme]
    return f"{parts.scheme}://{shown}" if implied else f"{parts.scheme}://{shown}:{parts.port}"


def resolve(url: str, allowed: Allowed) -> Target:
    """Return the address to connect to. Raise Refused, and OSError when an allowed name does not resolve."""
    parts = _parsed(url)
    _judge(parts, allowed)
    host, port = str(parts.hostname), parts.port or DEFAULT_PORTS[parts.scheme]
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, host, port, path, resolve_host(host, port, allowed)[0])


def resolve_host(host: str, port: int, allowed: Allowed) -> list[str]:
    """Return the addresses of a name, each of which may be connected to. Raise Refused, and OSError when an allowed
    name does not resolve."""
    refusal = f"{host} does not resolve to a public address"
    try:
        found = [info[4][0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    except OSError as error:
        if host in allowed:
            raise
        # The same text as below: whether a name exists in an internal network must not be visible.
        raise Refused(refusal) from error
    addresses = [ipaddress.ip_address(str(text).partition("%")[0]) for text in found]
    if any(host not in allowed and address not in allowed and not is_public(address) for address in addresses):
        raise Refused(refusal)
    return list(dict.fromkeys(map(str, addresses)))


def is_public(address: Address) -> bool:
    """Return whether an address is public; of an IPv6 address with an IPv4 one in it, whether that is."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _inner(address)
        if inner is not None:
            return is_public(inner)
        if address.is_site_local:
            return False
    return address.is_global and not (
        address in CLOUD_SERVICES
        or address.is_multicast
        or address.is_private
        or address.is_loopback
        or address.is_link_local
        or address.is_reserved
        or address.is_unspecified
    )


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that packets to this one are delivered to."""
    if any(address in network for network in NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)


def _parsed(url: str) -> SplitResult:
    if any(ord(character) <= 32 or ord(character) >= 127 for character in url):
        raise Refused("it may contain only printable ASCII without spaces; percent-encode the rest")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Refused(str(error)) from error
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or port == 0:
        raise Refused("it must be a URL such as https://host/path")
    if parts.username is not None or parts.password is not None or parts.fragment or "\\" in url:
        raise Refused("it must not contain a user name, a password, a fragment or a backslash")
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
