"""How an image was made: an in-toto statement with a SLSA 1.0 provenance (https://slsa.dev/spec/v1.0/provenance)."""

import json
from collections.abc import Mapping
from datetime import datetime

BUILD_TYPE = "https://athanor.example/images/containerfile@v1"


def statement(
    *,
    name: str,
    digest: str,
    containerfile: str,
    arguments: Mapping[str, str],
    base_digest: str,
    revision: str,
    builder: str,
    began: datetime,
    ended: datetime,
) -> bytes:
    """Return the statement as JSON.

    `digest`: of the image's manifest, sha256:HEX; `arguments`: those of the build, by name; `builder`: the version of
    buildah.
    """
    algorithm, _, value = digest.partition(":")
    base_algorithm, _, base_value = base_digest.partition(":")
    made = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {algorithm: value}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"containerfile": containerfile, "arguments": dict(arguments)},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": revision}},
                    {"name": arguments["BASE"], "digest": {base_algorithm: base_value}},
                ],
            },
            "runDetails": {
                "builder": {"id": "https://buildah.io", "version": {"buildah": builder}},
                "metadata": {
                    "startedOn": began.isoformat(timespec="seconds"),
                    "finishedOn": ended.isoformat(timespec="seconds"),
                },
            },
        },
    }
    return json.dumps(made, indent=2).encode()
