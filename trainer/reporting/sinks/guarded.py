"""Connections of tools that bring their own HTTP client (urllib3) go only to addresses that may be connected to."""

import socket
from typing import Any

import urllib3.util.connection
from urllib3.exceptions import HTTPError

from trainer.contract.addresses import Allowed, Refused, resolve_host

_connect = urllib3.util.connection.create_connection


class AddressRefused(HTTPError):
    """Not an OSError, so that the client does not try again what is refused each time."""


def guard_connections(allowed: Allowed) -> None:
    """Check where each connection of urllib3 in this process goes, at the moment it is made.

    The name is resolved here and the connection made to a checked address, so neither a redirect nor a name that
    resolves differently the second time leads inside. TLS still verifies the name.
    """

    def connect(address: tuple[str, int], *arguments: Any, **options: Any) -> socket.socket:
        host, port = address
        try:
            found = resolve_host(host.strip("[]"), port, allowed)
        except Refused as refused:
            raise AddressRefused(
                f"{refused}; an administrator can allow internal addresses with ATHANOR_OUTBOUND_ALLOW"
            ) from refused
        return _connect((found[0], port), *arguments, **options)

    urllib3.util.connection.create_connection = connect
