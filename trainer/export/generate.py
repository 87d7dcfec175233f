"""`python -m trainer.export.generate MODEL_DIR --prompt ...`: sample text from an exported model."""

import argparse
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

from trainer.contract.data import END_OF_TEXT
from trainer.contract.hugging_face import TOKENIZER_NAME, end_of_text_id
from trainer.contract.run import EXIT_STATUS
from trainer.data.tokenizer import ids_before_text
from trainer.errors import TrainerError
from trainer.export.folder import read_config
from trainer.export.read import load_exported
from trainer.models.cache import use_kv_cache
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
) -> list[int]:
    """Return new token ids, until `end_of_text` (None: END_OF_TEXT) or `tokens` of them.

    The model sees all that came before, up to `window` ids; when these are full it continues from their later half.
    `temperature` 0 takes the likeliest token each time. The same seed gives the same text.
    """
    if end_of_text is None:
        end_of_text = tokenizer.token_to_id(END_OF_TEXT)
    given = [*ids_before_text(tokenizer), *tokenizer.encode(prompt, add_special_tokens=False).ids] or [end_of_text or 0]
    generator = torch.Generator().manual_seed(seed)
    seen, new = given[-window:], list[int]()
    with torch.inference_mode(), use_kv_cache([model], window) as cache:
        cache.prefill([len(seen)], torch.device("cpu"))
        while len(new) < tokens:
            logits_V = model(torch.tensor([seen]), positions_BS=cache.positions_BN)[0, 0].float()
            if temperature == 0.0:
                chosen = int(logits_V.argmax())
            else:
                chosen = int(torch.multinomial((logits_V / temperature).softmax(-1), 1, generator=generator))
            if chosen == end_of_text:
                break
            new.append(chosen)
            if cache.end < window:
                seen = [chosen]
                cache.step()
            else:
                seen = [*given, *new][-max(1, window // 2) :]
                cache.prefill([len(seen)], torch.device("cpu"))
    return new


def main() -> int:
    """Print a continuation of the prompt. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainer.export.generate", description=__doc__)
    parser.add_argument("model", type=Path, help="folder of an exported model")
    parser.add_argument("--prompt", default="", help="text to continue")
    parser.add_argument("--tokens", type=_positive, default=200, help="maximum number of new tokens")
    parser.add_argument(
        "--temperature",
        type=_not_negative,
        default=0.8,
        help="sampling temperature; 0 always takes the most probable token",
    )
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        model, tokenizer = load_exported(arguments.model, _needed_length(arguments))
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
    sys.stdout.write(arguments.prompt + tokenizer.decode(new) + "\n")
    return 0


def _needed_length(arguments: argparse.Namespace) -> int | None:
    """Return the positions of prompt and continuation, at most those of the model; positions may be scaled by them.

    None if there is no tokenizer: `load_exported` names what is missing.
    """
    path = arguments.model / TOKENIZER_NAME
    if not path.is_file():
        return None
    asked = len(Tokenizer.from_file(str(path)).encode(arguments.prompt).ids) + 1 + arguments.tokens
    return int(min(asked, read_config(arguments.model)["max_position_embeddings"]))


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
