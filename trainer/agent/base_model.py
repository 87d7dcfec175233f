"""Download the base model onto this node."""

import hashlib
import os
import shutil
import socket
from pathlib import Path

from trainer.contract.encryption import Encryptor
from trainer.contract.manifest import StoredFile
from trainer.contract.run import BaseModelSource, DataKeys, RunConfig
from trainer.storage.base import Storage
from trainer.storage.encrypted import decrypt_to_file

WEIGHTS_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")


def fetch_base_model(root: Path, run: RunConfig, keys: DataKeys, storage: Storage) -> Path | None:
    """Return the folder of the base model's files, downloading them if needed; None if there is none.

    Attempts on one node share the folder.

    Raises StorageError, DecryptionError.
    """
    if run.training is not None and run.training.model.base is not None and run.base is None:
        return Path(run.training.model.base)
    if run.base is None:
        return None
    base = run.base
    if run.training is None or run.training.model.is_new:  # only its tokenizer is needed
        files = [file for file in base.files if not file.path.endswith(WEIGHTS_SUFFIXES)]
        base = base.model_copy(update={"files": files})
    folder = root / hashlib.sha256(base.model_dump_json().encode()).hexdigest()[:32]
    if not folder.exists():
        building = folder.with_name(f"{folder.name}.{socket.gethostname()}.{os.getpid()}.building")
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        for file in base.files:
            _download(base, file, keys, storage, building / file.path)
        try:
            building.rename(folder)
        except OSError:
            if not folder.exists():
                raise
            shutil.rmtree(building)  # another attempt was quicker
    return folder


def _download(base: BaseModelSource, file: StoredFile, keys: DataKeys, storage: Storage, target: Path) -> None:
    if base.origin == "sealed":
        decrypt_to_file(storage, Encryptor(keys.base), file, target)
    else:
        with target.open("wb") as sink:
            for part in file.parts:
                sink.write(storage.get(part.key))
