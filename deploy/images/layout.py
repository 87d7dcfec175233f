"""An image in a folder (OCI image layout 1.1): reads its files, and attaches documents to it.

A document is attached as an artifact with the image as its subject, as registries list them under `referrers`:
https://github.com/opencontainers/image-spec/blob/v1.1.0/manifest.md#guidelines-for-artifact-usage
"""

import hashlib
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"


@dataclass(frozen=True)
class Descriptor:
    """A blob of the layout, as manifests name it."""

    media_type: str
    digest: str
    size: int

    def as_json(self) -> dict[str, Any]:
        """Return it as manifests hold it."""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size}


class Layout:
    """The layout in a folder, with one image in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._index: dict[str, Any] = json.loads((folder / "index.json").read_text())
        self._tag = self._index["manifests"][0]
        self.image = Descriptor(self._tag["mediaType"], self._tag["digest"], self._tag["size"])

    def read_file(self, path: str) -> bytes:
        """Return a file of the image, by its path without the leading slash.

        Raises FileNotFoundError if no layer has it.
        """
        manifest = json.loads(self._blob(self.image.digest).read_bytes())
        for layer in reversed(manifest["layers"]):
            with tarfile.open(self._blob(layer["digest"])) as files:
                try:
                    member = files.extractfile(path)
                except KeyError:
                    continue
                assert member is not None, f"{path} is no file"
                return member.read()
        raise FileNotFoundError(f"no layer of {self._folder} has the file {path}")

    def attach(self, media_type: str, document: bytes) -> None:
        """Attach a document of this type to the image."""
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": media_type,
            "config": self._add(EMPTY, b"{}").as_json(),
            "layers": [self._add(media_type, document).as_json()],
            "subject": self.image.as_json(),
        }
        added = self._add(MANIFEST, json.dumps(manifest).encode())
        self._index["manifests"].append({**added.as_json(), "artifactType": media_type})
        (self._folder / "index.json").write_text(json.dumps(self._index))

    def attached(self) -> dict[str, bytes]:
        """Return the documents attached to the image, by their type."""
        found = {}
        for entry in self._index["manifests"]:
            manifest = json.loads(self._blob(entry["digest"]).read_bytes())
            if manifest.get("subject", {}).get("digest") == self.image.digest:
                found[manifest["artifactType"]] = self._blob(manifest["layers"][0]["digest"]).read_bytes()
        return found

    def stored_bytes(self) -> int:
        """Return the size of the image as stored, its layers compressed."""
        manifest = json.loads(self._blob(self.image.digest).read_bytes())
        return sum(int(layer["size"]) for layer in manifest["layers"])

    def _blob(self, digest: str) -> Path:
        algorithm, _, value = digest.partition(":")
        return self._folder / "blobs" / algorithm / value

    def _add(self, media_type: str, content: bytes) -> Descriptor:
        made = Descriptor(media_type, f"sha256:{hashlib.sha256(content).hexdigest()}", len(content))
        self._blob(made.digest).write_bytes(content)
        return made
