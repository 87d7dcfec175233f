"""Where an agent learns that its machine is taken back: a file, or an address that answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.providers import Provider
from trainer.agent.interruption import MAX_NOTICE_CHARACTERS, read_interruption_notice


@pytest.fixture
def metadata() -> Iterator[Provider]:
    """Serve a machine's metadata to requests with Google's header."""
    with Provider(status=404, headers=(("Metadata-Flavor", "Google"),)) as made:
        yield made


def test_a_file_that_appears_is_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    assert read_interruption_notice("") == read_interruption_notice(str(path)) == ""
    path.write_text("")
    assert read_interruption_notice(str(path)) == "the notice file exists"
    path.write_text("terminate at 12:00\n")
    assert read_interruption_notice(str(path)) == "terminate at 12:00"
    path.write_text("FALSE\n")
    assert read_interruption_notice(str(path)) == ""
    path.write_text("x" * 10_000)
    assert len(read_interruption_notice(str(path))) == MAX_NOTICE_CHARACTERS


@pytest.mark.parametrize(
    ("status", "body", "notice"),
    [(404, b"", ""), (200, b"FALSE", ""), (200, b"NONE", ""), (200, b"TRUE", "TRUE"), (500, b"broken", "")],
)
def test_an_address_that_answers_is_a_notice(metadata: Provider, status: int, body: bytes, notice: str) -> None:
    metadata.status, metadata.body = status, body
    assert read_interruption_notice(metadata.url) == notice


def test_an_address_where_nobody_is_is_none() -> None:
    assert read_interruption_notice("http://127.0.0.1:9/preempted") == ""
