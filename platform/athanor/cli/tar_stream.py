"""Files sent as one tar archive, read as they are sent."""

import tarfile
from collections.abc import Iterator
from pathlib import Path

from athanor.cli.errors import CliError, ExitCode

BLOCK_BYTES = 1024 * 1024


class TarStream:
    """Stream files as one tar archive, from the beginning at each iteration, so that a retry sends all of it."""

    def __init__(self, paths: list[Path]) -> None:
        names = [path.name for path in paths]
        if len(set(names)) < len(names):
            names = [f"{number}-{name}" for number, name in enumerate(names)]
        self._members = [(path, name, path.stat().st_size) for path, name in zip(paths, names, strict=True)]
        self.size = sum(len(block) if isinstance(block, bytes) else block for block in self._plan())

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of a request with the archive as its body."""
        return {"Content-Type": "application/x-tar", "Content-Length": str(self.size)}

    def __iter__(self) -> Iterator[bytes]:
        for path, name, length in self._members:
            yield self._header(name, length)
            sent = 0
            with path.open("rb") as handle:
                while block := handle.read(min(BLOCK_BYTES, length - sent)):
                    sent += len(block)
                    yield block
            if sent < length:
                raise CliError(ExitCode.USAGE, f"{path} became shorter while it was read")
            yield bytes(-length % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)

    def _plan(self) -> Iterator[bytes | int]:
        for _, name, length in self._members:
            yield self._header(name, length)
            yield length + -length % tarfile.BLOCKSIZE
        yield 2 * tarfile.BLOCKSIZE

    @staticmethod
    def _header(name: str, length: int) -> bytes:
        header = tarfile.TarInfo(name)
        header.size = length
        return header.tobuf(tarfile.PAX_FORMAT)
