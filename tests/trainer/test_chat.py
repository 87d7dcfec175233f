"""Conversations become tokens as `transformers` makes them, and only what the assistant says is learnt from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer

from tests.trainer.runs import FinishedRun, run_alone, tiny_text, tiny_training
from trainer.contract.data import END_OF_TEXT, DataSpec, MixturePart, TokenizerSpec
from trainer.contract.run import EndClass
from trainer.data.chat import DEFAULT_TEMPLATE, ChatTemplate, read_conversations
from trainer.data.documents import RawObject
from trainer.data.packing import IGNORED, Rows
from trainer.data.prepare import Preparation
from trainer.data.source import PreparedSource, Source
from trainer.data.tokenizer import ExistingTokenizer, train_tokenizer
from trainer.errors import TrainerError
from trainer.storage.folder import FolderStorage

CHATML = (
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
LLAMA = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    " + message['content'] | trim + '<|eot_id|>' }}{%- endfor %}{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}"
)
FORGETFUL = (  # as models that think aloud: earlier answers are rendered again, without the thinking
    "{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.role == 'assistant' and loop.last %}{{ '<think></think>' }}{% endif %}"
    "{{- message.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"
)
STRICT = (
    "{%- if messages[0].role != 'user' %}{{ raise_exception('a conversation begins with the user') }}{% endif %}"
) + CHATML
MESSAGES = [
    {"role": "system", "content": "Answer briefly."},
    {"role": "user", "content": "What is gold\nmade of?"},
    {"role": "assistant", "content": "Of lead, naïvely."},
    {"role": "user", "content": "And lead?"},
    {"role": "assistant", "content": "  nobody has to watch it\n"},
]


def answers_of(template: str, messages: list[dict[str, str]] = MESSAGES) -> list[str]:
    made = ChatTemplate(template, {"eos_token": END_OF_TEXT, "bos_token": "<s>"}).conversation(messages)
    return [made[start:stop] for start, stop in made.counted]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small one that knows the marks of the templates."""
    made = train_tokenizer([tiny_text(5000)], TokenizerSpec(vocab_size=300))
    made.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<s>"])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return path


@pytest.mark.parametrize("template", [CHATML, LLAMA, FORGETFUL, DEFAULT_TEMPLATE])
def test_text_and_tokens_are_those_of_transformers(template: str, tokenizer: Path) -> None:
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer), eos_token=END_OF_TEXT, bos_token="<s>", chat_template=template
    )
    ours = ChatTemplate(template, {"eos_token": END_OF_TEXT, "bos_token": "<s>"}).conversation(MESSAGES)
    assert str(ours) == theirs.apply_chat_template(MESSAGES, tokenize=False)
    ids = Tokenizer.from_file(str(tokenizer)).encode(str(ours), add_special_tokens=False).ids
    assert ids == theirs.apply_chat_template(MESSAGES)["input_ids"]


def test_answers_are_counted_with_what_ends_them() -> None:
    assert answers_of(CHATML) == ["Of lead, naïvely.<|im_end|>\n", "  nobody has to watch it\n<|im_end|>\n"]
    assert answers_of(LLAMA) == ["Of lead, naïvely.<|eot_id|>", "nobody has to watch it<|eot_id|>"]
    assert answers_of(DEFAULT_TEMPLATE) == [
        f"Of lead, naïvely.{END_OF_TEXT}", f"  nobody has to watch it\n{END_OF_TEXT}",
    ]  # fmt: skip


def test_where_earlier_turns_are_written_anew_the_last_answer_counts() -> None:
    assert answers_of(FORGETFUL) == ["<think></think>  nobody has to watch it\n<|im_end|>\n"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"}', r"x.jsonl line 1: no field 'messages' \(it has: text\)"),
        ('{"messages": []}', "line 1: messages is not a list of messages"),
        ('{"messages": [{"role": "user"}]}', r"messages\[0\] has no text in 'content'"),
        ('{"messages": [{"role": "user", "content": "a"}]}', "no message with the role assistant"),
        ('{"messages": [{"role": "assistant", "content": "a", "weight": 0}]}', "a weight other than 0"),
        ('{"messages": [{"role": "assistant", "content": "a", "weight": 0.5}]}', "has the weight 0.5, which must be 0"),
        ('{"messages": [{"role": "assistant", "tool_calls": []}]}', "has no text in 'content'"),
        ('{"messages": [{"role": "assistant", "tool_calls": [{"name": 1}]}]}', "has tool_calls that are no list of"),
        ('{"messages": [{"role": "assistant", "content": "a"}], "tools": "x"}', "stands beside tools, which must be"),
        ('{"messages": [{"role": "assistant", "content": "a"}]}', "line 1: a conversation begins with the user"),
        ('{"messages": [{"role": "assistant", "content": "\\ue0f1"}]}', "private-use character"),
    ],
)
def test_what_is_no_conversation_is_refused_with_its_place(line: str, message: str) -> None:
    part = MixturePart(source="dataset:x", format="chat")
    with pytest.raises(TrainerError, match=message) as caught:
        list(read_conversations([RawObject.of("x.jsonl", line.encode())], part, ChatTemplate(STRICT, {})))
    assert caught.value.end_class is EndClass.DATA_ERROR


TOOLS = [{"type": "function", "function": {"name": "weigh", "parameters": {"type": "object"}}}]
TOOL_MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "How heavy is it?"},
    {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": {"name": "weigh", "arguments": {"of": "é"}}}],
    },
    {"role": "tool", "content": "3 kg"},
    {"role": "assistant", "content": "Three kilograms."},
]
HERMES = (  # as Qwen and Hermes: tools in a system message, calls between tags
    "{%- if tools %}{{ '<|im_start|>system\n' }}{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endif %}{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{%- if message.content %}{{ message.content }}{% endif %}"
    "{%- for call in message.tool_calls or [] %}{{ '<tool_call>' + call.function | tojson + '</tool_call>' }}"
    "{%- endfor %}{{ '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- endif %}"
)


@pytest.mark.parametrize("template", [HERMES, DEFAULT_TEMPLATE])
def test_tools_and_calls_are_rendered_as_transformers_does_and_calls_are_trained_on(
    template: str, tokenizer: Path
) -> None:
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer), eos_token=END_OF_TEXT, bos_token="<s>", chat_template=template
    )
    calls_as_text = json.loads(json.dumps(TOOL_MESSAGES))
    calls_as_text[1]["tool_calls"][0]["function"]["arguments"] = json.dumps({"of": "é"})
    line = json.dumps({"messages": calls_as_text, "tools": TOOLS}).encode()
    ours = ChatTemplate(template, {"eos_token": END_OF_TEXT, "bos_token": "<s>"})
    part = MixturePart(source="dataset:x", format="chat")
    (made,) = read_conversations([RawObject.of("x.jsonl", line)], part, ours)
    assert made == theirs.apply_chat_template(TOOL_MESSAGES, tools=TOOLS, tokenize=False)
    call, answer = [made[start:stop] for start, stop in made.counted]
    assert '{"name": "weigh", "arguments": {"of": "é"}}' in call
    assert answer.startswith("Three kilograms.")


def test_a_template_that_leaves_calls_out_is_refused_with_the_place() -> None:
    part = MixturePart(source="dataset:x", format="chat")
    messages = [{**message, "content": message.get("content", "")} for message in TOOL_MESSAGES]
    for template, sent, problem in (
        (CHATML, messages, "leaves the calls of message 1 out"),
        (CHATML, TOOL_MESSAGES, "cannot render these messages"),
        ("{{ tools | tojson }}" + CHATML, messages, "leaves the calls of message 1 out"),  # it names the function
    ):
        line = json.dumps({"messages": sent, "tools": TOOLS}).encode()
        with pytest.raises(TrainerError, match=f"x.jsonl line 1: the chat template {problem}"):
            list(read_conversations([RawObject.of("x.jsonl", line)], part, ChatTemplate(template, {})))


@pytest.mark.parametrize("template", [CHATML, LLAMA, DEFAULT_TEMPLATE])
def test_a_message_of_weight_0_is_not_trained_on(template: str) -> None:
    weighted = [{**message, "weight": 0} if number == 2 else message for number, message in enumerate(MESSAGES)]
    assert answers_of(template, weighted) == answers_of(template)[1:]


def conversations(count: int) -> bytes:
    words = tiny_text(20_000).split()
    lines = []
    for number in range(count):
        said = [" ".join(words[number * 7 + turn * 5 :][: 3 + (number + turn) % 9]) for turn in range(4)]
        turns = [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * 2, said, strict=True)]
        lines.append(json.dumps({"messages": turns}) + "\n")
    return "".join(lines).encode()


def rows_of(folder: Path, data: DataSpec, length: int) -> list[Rows]:
    source = Source(PreparedSource("dataset:x", folder, None, ""), "train", data, length, FolderStorage(folder))
    return [source.row(shard, row) for shard, count in enumerate(source.rows) for row in range(count)]


def test_only_answers_are_targets_and_inputs_are_the_conversation(tokenizer: Path, tmp_path: Path) -> None:
    data = DataSpec(source="dataset:x", format="chat", packing="documents")
    given = ExistingTokenizer(tokenizer, 400, 0)
    objects = [RawObject.of("x.jsonl", conversations(40))]
    index = Preparation([lambda: objects], data.parts[0], given, tmp_path / "prepared").run()
    assert index.is_masked
    words = Tokenizer.from_file(str(tokenizer))
    template = ChatTemplate(DEFAULT_TEMPLATE, {"eos_token": END_OF_TEXT})
    expected = {}
    for made in read_conversations(objects, data.parts[0], template):
        answers = "".join(made[start:stop] for start, stop in made.counted)
        expected[str(made)] = answers
    seen = 0
    for rows in rows_of(tmp_path / "prepared", data, 256):
        for number in range(int(rows.documents_BS.max()) + 1):
            here = rows.documents_BS[0] == number
            text = words.decode(rows.tokens_BS[0][here].tolist(), skip_special_tokens=False)
            if text not in expected:
                continue  # padding
            targets = rows.targets_BS[0][here]
            assert words.decode(targets[targets != IGNORED].tolist(), skip_special_tokens=False) == expected[text]
            shifted = np.append(rows.tokens_BS[0][here][1:], IGNORED)
            assert (targets == np.where(targets == IGNORED, IGNORED, shifted)).all()
            assert rows.positions_BS[0][here][0] == 0
            seen += 1
    assert seen == 39  # of 40 one is held out


def test_conversations_need_rows_of_their_own() -> None:
    with pytest.raises(ValueError, match="format `chat` needs packing `documents`"):
        DataSpec(source="dataset:x", format="chat")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    folder = tmp_path_factory.mktemp("tuned")
    data = folder / "tiny.jsonl"
    data.write_bytes(conversations(300))
    fields: dict[str, Any] = {"source": "dataset:tiny", "format": "chat", "packing": "documents"}
    return run_alone(folder / "run", tiny_training(data=fields, sequence_length=64), processes=2, data=data)


@pytest.mark.processes
def test_a_run_learns_answers_and_its_export_knows_the_template(tuned: FinishedRun) -> None:
    assert tuned.end_class is EndClass.COMPLETED
    losses = tuned.series("evaluation/loss")
    assert losses[20] < losses[0] - 0.5
    theirs = transformers.AutoTokenizer.from_pretrained(tuned.output / "model")
    ours = ChatTemplate(DEFAULT_TEMPLATE, {"eos_token": END_OF_TEXT}).conversation(MESSAGES)
    assert theirs.apply_chat_template(MESSAGES, tokenize=False) == str(ours)
