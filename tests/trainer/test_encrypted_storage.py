"""Encrypted parts: what was changed, cut short or swapped is refused before a byte of it is used."""

from pathlib import Path

import pytest

from tests.trainer.agent_api import TOKEN, AgentApi
from tests.trainer.runs import platform_run, tiny_training
from trainer.client.http import PlatformClient
from trainer.contract import manifest as manifest_module
from trainer.contract.encryption import DecryptionError, Encryptor, new_keyset
from trainer.storage import encrypted as encrypted_module
from trainer.storage.base import MissingObject, StorageError
from trainer.storage.encrypted import decrypt_to_file, encrypt_file, get_decrypted, put_encrypted
from trainer.storage.folder import FolderStorage
from trainer.storage.presigned import PresignedStorage

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encrypted_module, "PART_PLAINTEXT_BYTES", 4096)


@pytest.fixture
def stored(tmp_path: Path, small_parts: None):
    storage, encryptor = FolderStorage(tmp_path), Encryptor(new_keyset())
    return storage, encryptor, put_encrypted(storage, encryptor, "p/", "file", CONTENT)


def test_a_file_of_several_parts_comes_back_whole(stored) -> None:
    storage, encryptor, file = stored
    assert [part.key for part in file.parts] == ["p/file-000.part", "p/file-001.part", "p/file-002.part"]
    assert [part.plaintext_size for part in file.parts] == [4096, 4096, 2048]
    assert get_decrypted(storage, encryptor, file) == CONTENT
    assert all(CONTENT[:64] not in storage.get(part.key) for part in file.parts)


@pytest.mark.parametrize("position", [0, 100, -1])
def test_a_flipped_bit_is_refused(stored, position: int) -> None:
    storage, encryptor, file = stored
    damaged = bytearray(storage.get(file.parts[1].key))
    damaged[position] ^= 1
    storage.put(file.parts[1].key, bytes(damaged))
    with pytest.raises(DecryptionError, match="p/file-001.part: digest differs"):
        get_decrypted(storage, encryptor, file)


def test_a_flipped_bit_is_refused_even_where_the_manifest_was_made_to_agree(stored) -> None:
    storage, encryptor, file = stored
    damaged = bytearray(storage.get(file.parts[0].key))
    damaged[-1] ^= 1
    with pytest.raises(DecryptionError, match="cannot be decrypted"):
        encryptor.decrypt_unlisted(bytes(damaged), file.parts[0].key)


def test_a_truncated_part_is_refused(stored) -> None:
    storage, encryptor, file = stored
    storage.put(file.parts[2].key, storage.get(file.parts[2].key)[:-1])
    with pytest.raises(DecryptionError, match="bytes where the manifest says"):
        get_decrypted(storage, encryptor, file)


def test_swapped_parts_are_refused(stored) -> None:
    storage, encryptor, file = stored
    first, second = (storage.get(part.key) for part in file.parts[:2])
    storage.put(file.parts[0].key, second)
    storage.put(file.parts[1].key, first)
    with pytest.raises(DecryptionError):
        get_decrypted(storage, encryptor, file)
    with pytest.raises(DecryptionError, match="cannot be decrypted"):
        encryptor.decrypt_unlisted(second, file.parts[0].key)


def test_nothing_of_a_damaged_file_appears_under_its_name(stored, tmp_path: Path) -> None:
    storage, encryptor, file = stored
    storage.put(file.parts[2].key, b"x" * file.parts[2].size)
    with pytest.raises(DecryptionError):
        decrypt_to_file(storage, encryptor, file, tmp_path / "out" / "file")
    assert not (tmp_path / "out" / "file").exists()


def test_a_missing_object_is_told_from_a_store_that_is_away(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training())
    with AgentApi(run, keys, objects) as api:
        storage = PresignedStorage(PlatformClient(api.url, TOKEN), retry_seconds=0.5)
        with pytest.raises(MissingObject):
            storage.get("nothing")
        api.store_away = True
        with pytest.raises(StorageError, match="HTTP 503"):
            storage.put("key", b"x")


def test_a_bucket_that_does_not_exist_is_no_missing_object(tmp_path: Path) -> None:
    """Otherwise a store that is set up wrongly would make every checkpoint damaged."""
    run, keys, objects = platform_run(tiny_training())
    with AgentApi(run, keys, objects) as api:
        api.not_found = b"<Error><Code>NoSuchBucket</Code></Error>"
        storage = PresignedStorage(PlatformClient(api.url, TOKEN), retry_seconds=0.2)
        with pytest.raises(StorageError, match="HTTP 404: .*NoSuchBucket") as raised:
            storage.get("nothing")
        assert not isinstance(raised.value, MissingObject)


def test_a_put_is_tried_again_until_the_store_is_back(tmp_path: Path) -> None:
    run, keys, objects = platform_run(tiny_training())
    pauses = []
    with AgentApi(run, keys, objects) as api:
        api.store_away = True

        def wait(seconds: float) -> None:
            pauses.append(seconds)
            api.store_away = len(pauses) < 5

        PresignedStorage(PlatformClient(api.url, TOKEN), wait=wait).put("key", b"content")
        assert api.objects["key"] == b"content"
    assert len(pauses) == 5


def test_a_file_on_disk_is_encrypted_like_bytes_in_memory(tmp_path: Path, small_parts: None) -> None:
    storage, encryptor = FolderStorage(tmp_path / "store"), Encryptor(new_keyset())
    (tmp_path / "source").write_bytes(CONTENT)
    file = encrypt_file(storage, encryptor, "", "name", tmp_path / "source")
    assert get_decrypted(storage, encryptor, file) == CONTENT
    assert file.size == len(CONTENT)


def test_parts_are_bounded() -> None:
    assert manifest_module.PART_PLAINTEXT_BYTES <= 64 * 2**20
