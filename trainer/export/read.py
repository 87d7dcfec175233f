"""An exported folder back into our decoder."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from trainer.contract.run import EndClass
from trainer.errors import TrainerError
from trainer.export.names import our_name, shape_of_config
from trainer.models.decoder import Decoder


def load_exported(folder: Path, sequence_length: int | None = None) -> tuple[Decoder, Tokenizer]:
    """Model (in evaluation mode, on the CPU, in its stored precision) and tokenizer. Raises TrainerError."""
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise TrainerError(EndClass.USER_ERROR, f"{folder} has no {name}: give the folder of an exported model")
    config = json.loads((folder / "config.json").read_text())
    shape = shape_of_config(config)
    model = Decoder(shape, config["vocab_size"], sequence_length or config["max_position_embeddings"])
    weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        weights |= {our_name(name): tensor for name, tensor in load_file(path).items()}
    if shape.tie_embeddings:
        weights.pop("head.weight", None)
    model.to(next(iter(weights.values())).dtype)
    model.load_state_dict(weights)
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


def log_probabilities(model: Decoder, tokens: list[int]) -> torch.Tensor:
    """Of the token after the last of `tokens`: [V], fp32."""
    with torch.inference_mode():
        logits_BSV = model(torch.tensor([tokens]))
    return logits_BSV[0, -1].float().log_softmax(-1)
