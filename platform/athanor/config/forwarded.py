"""The client's address and scheme behind reverse proxies, from X-Forwarded-For and X-Forwarded-Proto.

Rate limits, sign-in delays, sessions and the audit trail use this address. uvicorn's own reader takes text that is no
address ("unknown") for the client's, trusts nothing where the list has a typing error, and with `*` takes the first
entry, which any client writes.
"""

import ipaddress
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]


def parse_proxies(text: str) -> list[Network]:
    """Return the networks of ATHANOR_TRUSTED_PROXIES. Raises ValueError for what is neither address nor network."""
    proxies: list[Network] = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        try:
            network = ipaddress.ip_network(entry)
        except ValueError as error:
            raise ValueError(
                f"{entry!r} is neither an address nor a network ({error}): give the addresses from which proxies "
                "connect, such as 192.0.2.7 or 192.0.2.0/24"
            ) from error
        if network.prefixlen == 0:
            raise ValueError(f"{entry!r} contains every address: then each client could choose its own")
        proxies.append(network)
    return proxies


class ForwardedHeadersApplication:
    """An ASGI application that sees the client where a trusted proxy connects.

    The client is the right-most entry of X-Forwarded-For that is no trusted proxy: each proxy appends the address that
    connected to it, so what a client sends itself is further to the left. An entry that is no address ends the search
    at the proxy that reported it.
    """

    def __init__(self, application: Application, proxies: Iterable[Network]) -> None:
        self._application = application
        self._proxies = tuple(proxies)

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Handle a connection."""
        peer = _parse(scope["client"][0]) if scope["type"] == "http" and scope.get("client") else None
        if peer is not None:
            client = peer
            if self._trusts(peer):
                client = self._client(peer, _values(scope, b"x-forwarded-for"))
                scheme = (_values(scope, b"x-forwarded-proto") or [""])[-1]
                if scheme in ("http", "https"):
                    scope["scheme"] = scheme
            scope["client"] = (str(client), scope["client"][1] if client == peer else 0)
        await self._application(scope, receive, send)

    def _client(self, peer: Address, forwarded: list[str]) -> Address:
        found = peer
        for entry in reversed(forwarded):
            address = _parse(_without_port(entry))
            if address is None:
                break
            found = address
            if not self._trusts(address):
                break
        return found

    def _trusts(self, address: Address) -> bool:
        return any(address in network for network in self._proxies)


def _values(scope: Scope, wanted: bytes) -> list[str]:
    """Return the entries of a header, over all its lines, in order."""
    lines = [value.decode("latin-1") for name, value in scope["headers"] if name == wanted]
    return [entry.strip() for line in lines for entry in line.split(",") if entry.strip()]


def _parse(text: str) -> Address | None:
    """Return an address, IPv4 also where it is written as IPv6 (::ffff:192.0.2.7); None for anything else."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return None
        return address.ipv4_mapped or address
    return address


def _without_port(entry: str) -> str:
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry
