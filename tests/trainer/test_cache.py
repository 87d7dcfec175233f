"""What is remembered of earlier tokens changes nothing but the time: the numbers are those of whole sequences."""

from typing import Any

import pytest
import torch

from tests.trainer.equality import MODELS, VOCABULARY
from trainer.contract.models import ModelShape
from trainer.models.cache import use_kv_cache
from trainer.models.decoder import Decoder, initialise

LENGTHS, ROOM = [3, 9, 1], 16


def decoder(name: str, **changes: Any) -> Decoder:
    model = Decoder(ModelShape.model_validate({**MODELS[name], **changes}), VOCABULARY, ROOM)
    model.zero_buffers()
    initialise(model, seed=3)
    return model.eval()


@pytest.mark.parametrize("name", list(MODELS))
def test_logits_are_those_of_whole_sequences(name: str) -> None:
    model = decoder(name)
    tokens = torch.randint(0, VOCABULARY, (len(LENGTHS), ROOM), generator=torch.Generator().manual_seed(1))
    places = [torch.arange(length - 1, length + 7) for length in LENGTHS]
    with torch.no_grad():
        expected = model(tokens)
        with use_kv_cache([model], ROOM) as cache:
            cache.prefill(LENGTHS, tokens.device)
            found = [model(tokens[:, : max(LENGTHS)], positions_BS=cache.positions_BN)]
            for number in range(7):
                new = torch.stack([row[length + number] for row, length in zip(tokens, LENGTHS, strict=True)])
                cache.step()
                found.append(model(new[:, None], positions_BS=cache.positions_BN))
        for row, (mine, place) in enumerate(zip(torch.cat(found, 1), places, strict=True)):
            torch.testing.assert_close(mine, expected[row, place], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model(tokens), expected, rtol=0, atol=0)  # nothing is left behind


def test_another_beginning_forgets_the_first() -> None:
    model = decoder("dense")
    tokens = torch.arange(12)[None] + 40
    with torch.no_grad(), use_kv_cache([model], ROOM) as cache:
        cache.prefill([12], tokens.device)
        model(tokens, positions_BS=cache.positions_BN)
        cache.prefill([5], tokens.device)
        again = model(tokens[:, 7:], positions_BS=cache.positions_BN)
    with torch.no_grad():
        torch.testing.assert_close(again[0, 0], model(tokens[:, 7:])[0, -1], rtol=1e-5, atol=1e-5)


def test_a_row_has_room_for_so_many() -> None:
    with (
        use_kv_cache([decoder("dense")], 4) as cache,
        pytest.raises(AssertionError, match="5 tokens exceed the 4 of the cache"),
    ):
        cache.prefill([5], torch.device("cpu"))
