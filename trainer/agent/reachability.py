"""Whether a node reaches the services that the agents of a job need."""

import json

import httpx

from trainer.contract.preflight import Finding

TIMEOUT = httpx.Timeout(10.0)


def check_addresses(text: str) -> list[Finding]:
    """Return a finding for each address that does not answer HTTP. `text`: a JSON object, name: URL.

    Any response is an answer, also a refusal: the node has no credentials. A finding names no node: the fault may be in
    the network, a firewall or a certificate.
    """
    addresses: dict[str, str] = json.loads(text)
    return [
        Finding(severity="broken", nodes=[], because=f"the {name} at {url} cannot be reached from the node: {error}")
        for name, url in addresses.items()
        if (error := _why_not(url))
    ]


def _why_not(url: str) -> str:
    try:
        httpx.get(url, timeout=TIMEOUT)
    except httpx.HTTPError as error:
        return str(error) or type(error).__name__
    return ""
