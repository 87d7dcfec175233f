"""docs/reference/models.md, from the families of models that are read and written."""

from deploy.reference.markdown import code, page, table
from trainer.contract.families import FAMILIES, Family

INTRODUCTION = """
Models of these families, in Hugging Face's layout, can be the base of a training (`training.model.base`), and a
finished model is exported in the layout of its family, so that `transformers` loads it with equal logits. The model
type is that of `config.json`; the features are fields of [`training.model.shape`](spec.md). Every family has positions
without scaling, and those of types `linear`, `llama3` and `yarn` unless the last column says otherwise. `longrope` has
other factors for long sequences: a run uses them if its `sequence_length` is above the original length.

All weights are trained, embeddings and biases too. Only the row of the embeddings that `pad_token_id` names gets no
gradient from the tokens of the input, as in `transformers`. With LoRA, only adapters are trained: beside the matrices
of attention, of dense feed-forward networks and of shared experts. Every axis of parallelism, packed documents, LoRA
and generation work for every family, except where the last column says otherwise.
"""
OTHERS = """
A configuration with an entry that would be computed differently is refused with the entry and its value, before
anything is trained.
"""


def models_page() -> str:
    """Return the page."""
    columns = ("models", "model type", "features", "restrictions")
    rows = ((each.title, code(each.model_type), _features(each), each.restrictions) for each in FAMILIES)
    return page("Families of models", INTRODUCTION, table(columns, rows), OTHERS)


def _features(family: Family) -> str:
    fixed = [f"{code(name)} {str(value).lower()}" for name, value in family.always.items()]
    experts = [f"`moe` with scoring {code(family.experts)}"] if family.experts else []
    return ", ".join([*experts, *fixed, *(f"any {code(name)}" for name in family.entries)]) or "none"
