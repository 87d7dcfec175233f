"""The estimate of stored activations, beside what autograd stores."""

import pytest
import torch
from torch import _dynamo as dynamo

from tests.trainer.activations import BATCH, BLOCKS, LENGTH, block_of, predicted_bytes, stored_bytes, training_of
from tests.trainer.equality import MODELS, VOCABULARY, Case
from trainer.contract.cost import RankCost
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.models import ModelShape
from trainer.models.decoder import Decoder, initialise


@pytest.mark.parametrize("name", BLOCKS)
def test_what_compiled_blocks_store_is_predicted(name: str) -> None:
    training = training_of(BLOCKS[name], precision="bf16", compile=True)
    decoder, run, shared = block_of(training.model.resolve(), torch.bfloat16)
    for block in decoder.blocks.values():
        block.compile(backend="aot_eager_decomp_partition")  # divides the graph as the compiler of GPUs does
    dynamo.reset()
    run().sum().backward()
    assert predicted_bytes(training) == pytest.approx(stored_bytes(decoder, run, shared), rel=0.05)


@pytest.mark.parametrize("name", BLOCKS)
def test_what_blocks_store_that_are_not_compiled_is_predicted(name: str) -> None:
    training = training_of(BLOCKS[name], precision="fp32", compile=False)
    decoder, run, shared = block_of(training.model.resolve(), torch.float32)
    assert predicted_bytes(training) == pytest.approx(stored_bytes(decoder, run, shared), rel=0.2)


@pytest.mark.parametrize("model", ["dense", "moe"])
def test_activations_of_a_model_are_predicted(model: str) -> None:
    shape = ModelShape.model_validate(MODELS[model])
    decoder = Decoder(shape, VOCABULARY, LENGTH)
    initialise(decoder, 1)
    decoder.zero_buffers()
    tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH))
    found = stored_bytes(decoder, lambda: decoder(tokens), [])
    spec = Case(model, 1, {}, training={"sequence_length": LENGTH, "tokens_per_step": BATCH * LENGTH}).spec()
    predicted = RankCost(spec, VOCABULARY, plan_mesh(spec, VOCABULARY, 1), 0).memory().activations
    assert predicted == pytest.approx(found, rel=0.25)
