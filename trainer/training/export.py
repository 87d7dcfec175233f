"""Export the trained model: all ranks write, encrypt and store files of its weights; the first one registers it."""

import hashlib
import json
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from trainer.contract.data import END_OF_TEXT
from trainer.contract.encryption import authenticate
from trainer.contract.hugging_face import CONFIG_NAME, TEMPLATE_NAME, TOKENIZER_SETTINGS_NAME, hugging_face_config
from trainer.contract.manifest import ModelManifest, StoredFile
from trainer.data.chat import DEFAULT_TEMPLATE, template_of
from trainer.data.shards import TOKENIZER_NAME
from trainer.export.adapter import ADAPTER_CONFIG_NAME, ADAPTER_NAME, adapter_config, peft_name
from trainer.export.folder import read_config, user_error
from trainer.export.write import WeightsWriter, WrittenFile, file_name, write_index
from trainer.models.lora import is_adapter
from trainer.parallel.full_tensors import gather_full_tensors
from trainer.storage.encrypted import encrypt_file
from trainer.training.build import TrainState, open_base

BASE_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "chat_template.jinja", "generation_config.json",
)  # fmt: skip
"""Files of a base model that describe its tokenizer and generation, which are copied unchanged."""


def export_model(state: TrainState) -> None:
    """Export the model, with the average of its weights where there is one; a collective. All ranks write files of
    weights, the first one everything else."""
    begin = time.monotonic()
    if state.optimizer.average is not None:
        state.writer.wait()  # the last checkpoint may be written from the weights that are now exchanged
    with state.averaged_weights():
        _export(state)
    if state.mesh.rank == 0:
        state.reporter.event("export.finished", seconds=time.monotonic() - begin)


def _export(state: TrainState) -> None:
    assert state.final is not None, "training is over"
    assignment, lora = state.assignment, state.training.lora
    final = assignment.model_folder or assignment.folder / "export"
    folder = final.with_name(f"{final.name}.building")
    if state.mesh.rank == 0:  # the ranks meet before others write to it
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    stored: list[StoredFile] = []
    if lora is not None and lora.export == "adapter":
        tensors = {
            name: whole.to("cpu", copy=True).contiguous()
            for name, whole in gather_full_tensors(state.model.weights, select=is_adapter)
        }
        if state.mesh.rank == 0:
            write_adapter(state, tensors, folder)
    else:
        written = _write_weights(state, folder)
        if state.mesh.rank == 0:
            stored = [each.stored for each in written if each.stored is not None]
            write_index(folder, [each.tensors for each in written])
            _write_description(state, folder)
    if state.mesh.rank != 0:
        return
    if assignment.model_folder is None:
        _store(state, folder, stored)
        shutil.rmtree(folder)
    else:
        shutil.rmtree(final, ignore_errors=True)
        folder.rename(final)


def _write_weights(state: TrainState, folder: Path) -> list[WrittenFile]:
    """Write the files of the weights to the folder, or store them; as `WeightsWriter.write`."""
    assignment, lora = state.assignment, state.training.lora

    def store_file(path: Path) -> StoredFile | None:
        if assignment.model_folder is not None:
            return None
        stored = _encrypt_file(state, path)
        path.unlink()
        return stored

    base = open_base(assignment) if state.model.weights.quantized else None
    writer = WeightsWriter(
        state.model.weights,
        state.training.model.resolve(),
        torch.bfloat16 if state.training.computes_in_bf16 else torch.float32,
        processes_per_node=assignment.run.layout.processes_per_node,
        adapter_scale=None if lora is None else lora.scale,
        read_base=None if base is None else base.whole,
    )
    written = writer.write(folder, state.mesh.open_store("export/"), store_file)
    for number, each in enumerate(written):
        path = folder / file_name(number, len(written))
        if each.stored is None and not path.exists():
            raise user_error(f"{path} is missing, which another node has written: give a folder that all nodes share")
    return written


def _write_description(state: TrainState, folder: Path) -> None:
    """Write the files beside the weights from which `transformers` loads the model and its tokenizer."""
    end_of_text = _write_tokenizer(state, folder)
    dtype = "bfloat16" if state.training.computes_in_bf16 else "float32"
    length = state.training.sequence_length
    config = hugging_face_config(state.training.model.resolve(), state.index.vocab_size, length, dtype, end_of_text)
    base = state.assignment.base_folder
    if base is not None:
        config |= _base_token_ids(read_config(base))
        if not state.training.model.is_new:
            config["max_position_embeddings"] = max(length, read_config(base).get("max_position_embeddings", 0))
    write_json(folder / CONFIG_NAME, config)


def write_adapter(state: TrainState, tensors: dict[str, Tensor], folder: Path) -> None:
    """Write the files from which `peft` loads the adapters, in fp32, and the tokenizer."""
    training = state.training
    assert training.lora is not None and training.model.base is not None
    _write_tokenizer(state, folder)
    shape = training.model.resolve()
    renamed = {peft_name(name, shape): tensor for name, tensor in tensors.items()}
    save_file(renamed, folder / ADAPTER_NAME, metadata={"format": "pt"})
    config = adapter_config(list(tensors), shape, training.lora, training.model.base)
    write_json(folder / ADAPTER_CONFIG_NAME, config)


def _write_tokenizer(state: TrainState, folder: Path) -> int | None:
    """Write the tokenizer, and how it is used. Return the token that ends a text, None where a base model's tokenizer
    has not ours."""
    shutil.copy(state.assignment.dataset_folder / TOKENIZER_NAME, folder / TOKENIZER_NAME)
    end_of_text = Tokenizer.from_file(str(folder / TOKENIZER_NAME)).token_to_id(END_OF_TEXT)
    base = state.assignment.base_folder
    if base is None:
        assert end_of_text is not None, "every tokenizer that is trained here has it"
        _write_tokenizer_settings(folder, end_of_text, state.training.sequence_length)
    else:
        for name in BASE_FILES:
            if (base / name).exists():
                shutil.copy(base / name, folder / name)
        if not (folder / TOKENIZER_SETTINGS_NAME).exists():
            write_json(folder / TOKENIZER_SETTINGS_NAME, {"tokenizer_class": "PreTrainedTokenizerFast"})
    is_chat = any(part.format == "chat" for part in state.training.data.parts)
    if is_chat and template_of(folder, json.loads((folder / TOKENIZER_SETTINGS_NAME).read_text())) is None:
        (folder / TEMPLATE_NAME).write_text(DEFAULT_TEMPLATE)
    return end_of_text


def _base_token_ids(base: dict[str, Any]) -> dict[str, Any]:
    """Return the entries on its tokenizer that the configuration takes over from the base model's."""
    return {name: base[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in base}


def _write_tokenizer_settings(folder: Path, end_of_text: int, length: int) -> None:
    write_json(
        folder / TOKENIZER_SETTINGS_NAME,
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END_OF_TEXT,
            "bos_token": END_OF_TEXT,
            "model_max_length": length,
            "clean_up_tokenization_spaces": False,
        },
    )
    write_json(
        folder / "generation_config.json",
        {"bos_token_id": end_of_text, "eos_token_id": end_of_text, "do_sample": True, "temperature": 0.8},
    )


def _prefix(state: TrainState) -> str:
    run = state.assignment.run
    return f"{run.prefix}model/{run.attempt_number}-{state.assignment.restart_count}/"


def _store(state: TrainState, folder: Path, stored: list[StoredFile]) -> None:
    """Store the files of the folder, and register the model with them and those that are `stored`."""
    assert state.final is not None, "training is over"
    run = state.assignment.run
    files = stored + [_encrypt_file(state, path) for path in sorted(folder.iterdir())]
    shape, lora = state.training.model.resolve(), state.training.lora
    num_parameters = shape.num_parameters(state.index.vocab_size)
    if lora is not None and lora.export == "adapter":
        num_parameters = shape.adapter_parameters(lora.rank, lora.targets)
    manifest = ModelManifest(
        job_id=run.job_id,
        attempt_id=run.attempt_id,
        step=state.final.step,
        num_parameters=num_parameters,
        metrics=state.final.metrics,
        created_at=datetime.now(UTC),
        files=files,
    )
    state.platform.register_model(authenticate(manifest, state.encryptor))


def _encrypt_file(state: TrainState, path: Path) -> StoredFile:
    """Encrypt and store a file of the model. Return its record, with the digest that the platform signs."""
    stored = encrypt_file(state.storage, state.encryptor, _prefix(state), path.name, path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return stored.model_copy(update={"plaintext_sha256": digest})


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(content, indent=2) + "\n")
