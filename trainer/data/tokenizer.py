"""A byte-level BPE trained on the data itself: every text is representable and decodes to itself."""

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.contract.data import TokenizerSpec

END_OF_TEXT = "<|endoftext|>"
TRAINING_CHARACTERS = 4_000_000  # merges settle long before this; more text only costs start-up time


def train_tokenizer(documents: Sequence[str], spec: TokenizerSpec) -> Tokenizer:
    """At most `spec.vocab_size` entries (fewer where the text has too few pairs), END_OF_TEXT as id 0."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=spec.vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_spread(documents, TRAINING_CHARACTERS), trainer)
    return tokenizer


def _spread(documents: Sequence[str], limit: int) -> Iterator[str]:
    """Documents evenly spaced over the data set, about `limit` characters in all."""
    total = sum(map(len, documents))
    stride = max(1, -(-total // limit))
    yield from documents[::stride]
