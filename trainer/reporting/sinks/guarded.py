"""Restrict the connections of urllib3, the HTTP client of some tools, to permitted addresses."""

import socket
from typing import Any

import urllib3.util.connection
from urllib3.exceptions import HTTPError

from trainer.contract.addresses import Allowed, Refused, resolve_host

_connect = urllib3.util.connection.create_connection


class AddressRefused(HTTPError):
    """An address that may not be reached. Not an OSError, so that the client does not retry."""


def guard_connections(allowed: Allowed) -> None:
    """Check the address of each urllib3 connection of this process when it is made.

    The name is resolved here and the connection made to a checked address, so neither a redirect nor a name that
    resolves differently the second time reaches an internal address. TLS still verifies the name.
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
