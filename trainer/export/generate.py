"""`python -m trainer.export.generate MODEL_DIR --prompt ...`: sample text from an exported model."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer

from trainer.contract.hugging_face import end_of_text_id
from trainer.contract.run import EXIT_STATUS
from trainer.data.tokenizer import END_OF_TEXT
from trainer.errors import TrainerError
from trainer.export.folder import read_config
from trainer.export.read import load_exported, log_probabilities
from trainer.models.decoder import Decoder


def generate(
    model: Decoder,
    tokenizer: Tokenizer,
    prompt: str,
    *,
    tokens: int,
    temperature: float,
    seed: int,
    window: int,
    end_of_text: int | None = None,
) -> Iterator[int]:
    """New token ids one by one, until `end_of_text` (None: END_OF_TEXT) or `tokens` of them; the model sees the last
    `window` ids.

    `temperature` 0 takes the likeliest token each time. The same seed gives the same text.
    """
    if end_of_text is None:
        end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    context = tokenizer.encode(prompt).ids or [end_of_text or 0]
    generator = torch.Generator().manual_seed(seed)
    for _ in range(tokens):
        scores = log_probabilities(model, context[-window:])
        if temperature == 0.0:
            chosen = int(scores.argmax())
        else:
            chosen = int(torch.multinomial((scores / temperature).softmax(-1), 1, generator=generator))
        if chosen == end_of_text:
            return
        context.append(chosen)
        yield chosen


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m trainer.export.generate", description=__doc__)
    parser.add_argument("model", type=Path, help="folder of an exported model")
    parser.add_argument("--prompt", default="", help="text to go on from")
    parser.add_argument("--tokens", type=_positive, default=200, help="most tokens to add")
    parser.add_argument("--temperature", type=_not_negative, default=0.8, help="0: always the likeliest token")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        model, tokenizer = load_exported(arguments.model)
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_STATUS[error.end_class]
    new = generate(
        model,
        tokenizer,
        arguments.prompt,
        tokens=arguments.tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
        window=model.rotary.sequence_length,
        end_of_text=end_of_text_id(read_config(arguments.model)),
    )
    sys.stdout.write(arguments.prompt + tokenizer.decode(list(new)) + "\n")
    return 0


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be 1 or more")
    return number


def _not_negative(text: str) -> float:
    number = float(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{number} must be 0 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
