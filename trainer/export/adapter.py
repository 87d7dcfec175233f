"""Names and configuration of exported adapters in PEFT's layout: `adapter_config.json`, `adapter_model.safetensors`."""

from typing import Any

from trainer.contract.models import ModelShape
from trainer.contract.optimisation import LoraSpec
from trainer.export.names import hugging_face_names
from trainer.models.lora import LORA_A

ADAPTER_CONFIG_NAME, ADAPTER_NAME = "adapter_config.json", "adapter_model.safetensors"


def peft_name(name: str, shape: ModelShape) -> str:
    """`blocks.3.mlp.up.lora_a` -> `base_model.model.model.layers.3.mlp.up_proj.lora_A.weight`."""
    part = "lora_A" if name.endswith(LORA_A) else "lora_B"
    return f"base_model.model.{_module(name, shape)}.{part}.weight"


def adapter_config(names: list[str], shape: ModelShape, lora: LoraSpec, base: str) -> dict[str, Any]:
    """Return PEFT's configuration. `names`: parameter names of all adapters; `base`: the base model's name."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": lora.dropout,
        "bias": "none",
        "use_rslora": lora.rank_stabilized,
        "target_modules": sorted({_module(name, shape).rpartition(".")[2] for name in names}),
        "inference_mode": True,
    }


def _module(name: str, shape: ModelShape) -> str:
    (theirs,) = hugging_face_names(name.rpartition(".")[0] + ".weight", shape)
    return theirs.removesuffix(".weight")
