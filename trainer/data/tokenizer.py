"""A byte-level BPE trained on the data itself: every text is representable and decodes to itself."""

from collections.abc import Iterable

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from trainer.contract.data import TokenizerSpec

END_OF_TEXT = "<|endoftext|>"
TRAINING_CHARACTERS = 4_000_000  # merges settle long before this; more text only costs start-up time


def train_tokenizer(documents: Iterable[str], spec: TokenizerSpec) -> Tokenizer:
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
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


class EvenSample:
    """Documents evenly spaced over a data set of unknown size, at most `limit` characters (or one document)."""

    def __init__(self, limit: int) -> None:
        self._limit, self._stride, self._characters = limit, 1, 0
        self.documents: list[str] = []
        self.seen = 0

    def add(self, document: str) -> None:
        if self.seen % self._stride == 0:
            self.documents.append(document)
            self._characters += len(document)
        self.seen += 1
        while self._characters > self._limit and len(self.documents) > 1:
            self.documents = self.documents[::2]
            self._stride *= 2
            self._characters = sum(map(len, self.documents))
