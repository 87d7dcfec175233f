"""Export the trained model: gather it from all ranks, write its files, encrypt, store and register them."""

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
from trainer.contract.manifest import ModelManifest
from trainer.contract.models import ModelShape
from trainer.data.chat import DEFAULT_TEMPLATE, template_of
from trainer.data.shards import TOKENIZER_NAME
from trainer.export.adapter import ADAPTER_CONFIG_NAME, ADAPTER_NAME, adapter_config, peft_name
from trainer.export.folder import read_config
from trainer.export.names import hugging_face_names, is_expert_stack
from trainer.models.lora import is_adapter, merge_adapters
from trainer.parallel.full_tensors import gather_full_tensors
from trainer.storage.encrypted import encrypt_file
from trainer.training.build import TrainState

MAX_FILE_BYTES = 4 * 2**30
BASE_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "tokenizer.model", "chat_template.jinja", "generation_config.json",
)  # fmt: skip
"""Files of a base model that describe its tokenizer and generation, which are copied unchanged."""


def export_model(state: TrainState) -> None:
    """Export the model; a collective: all ranks gather, the first one writes."""
    begin = time.monotonic()
    dtype = torch.bfloat16 if state.training.computes_in_bf16 else torch.float32
    shape = state.training.model.resolve()
    tensors: dict[str, Tensor] = {}
    lora = state.training.lora
    only_adapter = lora is not None and lora.export == "adapter"
    if only_adapter:
        for name, whole in gather_full_tensors(state.model.weights, select=is_adapter):
            tensors[name] = whole.to("cpu", copy=True).contiguous()
    else:
        named = gather_full_tensors(state.model.weights)
        for name, whole in merge_adapters(named, lora.scale) if lora is not None else named:
            export_tensors(tensors, name, whole, shape, dtype)
    if state.mesh.rank != 0:
        return
    assignment = state.assignment
    folder = assignment.model_folder or assignment.folder / "export"
    building = folder.with_name(f"{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    if only_adapter:
        write_adapter(state, tensors, building)
    else:
        write_files(state, tensors, building)
    shutil.rmtree(folder, ignore_errors=True)
    building.rename(folder)
    if assignment.model_folder is None:
        _store(state, folder)
        shutil.rmtree(folder)
    state.reporter.event("export.finished", seconds=time.monotonic() - begin)


def export_tensors(tensors: dict[str, Tensor], name: str, whole: Tensor, shape: ModelShape, dtype: torch.dtype) -> None:
    """Add copies of a parameter to `tensors` under Hugging Face's names, on the CPU. Router biases stay in fp32, as in
    `transformers`."""
    kept = torch.float32 if name.endswith("mlp.balance") else dtype
    theirs = hugging_face_names(name, shape)
    parts = whole.unbind() if is_expert_stack(name) else [whole] * len(theirs)
    for their_name, part in zip(theirs, parts, strict=True):
        tensors[their_name] = part.to("cpu", kept, copy=True).contiguous()


def write_files(state: TrainState, tensors: dict[str, Tensor], folder: Path) -> None:
    """Write the files from which `transformers` loads the model and its tokenizer."""
    end_of_text = _write_tokenizer(state, folder)
    dtype = "bfloat16" if state.training.computes_in_bf16 else "float32"
    length = state.training.sequence_length
    config = hugging_face_config(state.training.model.resolve(), state.index.vocab_size, length, dtype, end_of_text)
    base = state.assignment.base_folder
    if base is not None:
        config |= _base_token_ids(read_config(base), length)
    write_weights(tensors, folder, MAX_FILE_BYTES)
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


def _base_token_ids(base: dict[str, Any], sequence_length: int) -> dict[str, Any]:
    """Return the entries that the configuration takes over from the base model's."""
    kept = {name: base[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in base}
    return kept | {"max_position_embeddings": max(sequence_length, base.get("max_position_embeddings", 0))}


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


def write_weights(tensors: dict[str, Tensor], folder: Path, largest_bytes: int) -> None:
    """Write `model.safetensors`, or numbered files with an index if it would exceed `largest_bytes`."""
    groups: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, tensor in tensors.items():
        if groups[-1] and filled + tensor.nbytes > largest_bytes:
            groups.append({})
            filled = 0
        groups[-1][name] = tensor
        filled += tensor.nbytes
    if len(groups) == 1:
        save_file(groups[0], folder / "model.safetensors", metadata={"format": "pt"})
        return
    where: dict[str, str] = {}
    for number, group in enumerate(groups, start=1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        save_file(group, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(group, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": where})


def _store(state: TrainState, folder: Path) -> None:
    run = state.assignment.run
    prefix = f"{run.prefix}model/{run.attempt_number}-{state.assignment.restart_count}/"
    files = [encrypt_file(state.storage, state.encryptor, prefix, path.name, path) for path in sorted(folder.iterdir())]
    shape, lora = state.training.model.resolve(), state.training.lora
    num_parameters = shape.num_parameters(state.index.vocab_size)
    if lora is not None and lora.export == "adapter":
        num_parameters = shape.adapter_parameters(lora.rank, lora.targets)
    manifest = ModelManifest(
        job_id=run.job_id,
        attempt_id=run.attempt_id,
        step=state.training.steps,
        num_parameters=num_parameters,
        metrics=state.final_metrics,
        created_at=datetime.now(UTC),
        files=files,
    )
    state.platform.register_model(authenticate(manifest, state.encryptor))


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(content, indent=2) + "\n")
