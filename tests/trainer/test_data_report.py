"""The data report finds exactly what is wrong, says what the model sees, and prints no secret."""

import json
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from tokenizers.processors import TemplateProcessing

from tests.bench import trainer_data_report as bench
from tests.bench.defects import CORPORA, TEXT_DEFECTS, Maker, assistant, user, write_corpus
from tests.pages import REPOSITORY
from tests.trainer.runs import TINY, tiny_text, tiny_training
from trainer.__main__ import main
from trainer.contract.data import DataSpec, TokenizerSpec
from trainer.contract.data_findings import FINDINGS
from trainer.contract.data_report import DataReport, SourceReport, format_report
from trainer.contract.run import EXIT_STATUS, EndClass
from trainer.data.documents import Place, RawObject, Reading, RowProblem, read_documents
from trainer.data.packing import IGNORED
from trainer.data.prepare import Preparation
from trainer.data.source import PreparedSource, Source
from trainer.data.tokenizer import train_tokenizer
from trainer.data_report.duplicates import MIN_SIMILARITY, Duplicates, Fingerprints
from trainer.data_report.ngrams import word_hashes, words_of
from trainer.data_report.report import ReportOptions, make_report
from trainer.data_report.secrets import find_secrets, is_iban, is_luhn_valid
from trainer.data_report.text import TextBatch
from trainer.errors import TrainerError
from trainer.standalone.data_report import report_on_files
from trainer.standalone.job_file import read_job
from trainer.storage.folder import FolderStorage

CHAT = {"source": "dataset:chat", "format": "chat", "packing": "documents"}
LONGER = {"sequence_length": 1024, "tokens_per_step": 1024}
JSONL = {"source": "dataset:rows", "format": "jsonl", "packing": "documents"}


def report_on(path: Path, content: bytes | list[Any], data: dict[str, Any] = JSONL, **options: Any) -> SourceReport:
    if isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content).encode()
    path.write_bytes(content)
    return report_on_files(tiny_training(data=data), [path], ReportOptions(**options)).sources[0]


def kinds_of(report: SourceReport) -> dict[str, list[int]]:
    return {finding.kind: [place.row for place in finding.places] for finding in report.findings}


def answer(number: int, text: str = "It is the number that follows.") -> dict[str, Any]:
    question = {"role": "user", "content": f"What comes after {number}?"}
    return {"messages": [question, {"role": "assistant", "content": f"{text} {number + 1}"}]}


@pytest.mark.parametrize("form", ["text", "chat", "pairs"])
def test_every_planted_defect_is_found_and_nothing_else(tmp_path: Path, form: str) -> None:
    planted = write_corpus(tmp_path, form, each=2, clean=60)
    found = bench.found_rows(bench.report_on(planted, form))
    rows = {row: (planted.names.get(row, "a clean row"), kinds) for row, kinds in found.items()}
    assert rows == {row: (planted.names[row], kinds) for row, kinds in planted.findings.items()}


def test_the_corpus_has_fifty_kinds_of_defects_and_more() -> None:
    defects = [(form, each) for form, (kinds, _, _) in CORPORA.items() for each in kinds]
    assert len({(form, each.name) for form, each in defects}) == len(defects) >= 50
    planted = {kind for _, each in defects for kind in each.findings}
    assert set(FINDINGS) - planted == {"not_parquet", "no_documents", "too_few_tokens"}  # of files, below


def test_a_score_counts_what_is_missed_and_what_is_wrong(tmp_path: Path) -> None:
    planted = write_corpus(tmp_path, "text", each=2, clean=1)
    emails = [row for row, kinds in planted.findings.items() if kinds == {"email"}]
    scores = {kind: rest for kind, *rest in bench.score(planted, {emails[0]: {"email"}, 10**6: {"email", "iban"}})}
    assert scores["email"] == [2, 0.5, 0.5]
    assert scores["iban"] == [2, 0.0, 0.0]


def test_lengths_and_sequences_are_those_of_the_prepared_data(tmp_path: Path) -> None:
    rows = [answer(number, "word " * number) for number in range(60)]
    report = report_on(tmp_path / "chat.jsonl", rows, {**CHAT, "long_documents": "truncate"})
    training = tiny_training(data={**CHAT, "long_documents": "truncate"})
    part = training.data.parts[0]
    unit = [RawObject.file(tmp_path / "chat.jsonl")]
    index = Preparation([lambda: unit], part, training.tokenizer, tmp_path / "prepared").run()
    place = PreparedSource("chat", tmp_path / "prepared", None, "")
    source = Source(place, "train", training.data, training.sequence_length, FolderStorage(tmp_path / "store"))
    assert report.packing.documents == source.num_rows
    assert report.splits["train"].tokens == index.train_tokens
    assert report.splits["train"].documents + report.splits["validation"].documents == index.documents == 60
    assert sum(report.lengths.counts) == report.splits["train"].documents
    assert report.lengths.cut_documents == sum(
        count for bound, count in zip([*report.lengths.bounds, 10**9], report.lengths.counts, strict=True)
        if bound > training.sequence_length
    )  # fmt: skip
    trained = [source.row(0, row) for row in range(source.num_rows)]
    padding = training.sequence_length * source.num_rows - (index.train_tokens - report.lengths.lost_tokens)
    assert report.packing.padding == pytest.approx(padding / (training.sequence_length * source.num_rows))
    targets = sum(int((row.targets_BS != IGNORED).sum()) for row in trained)
    assert targets < report.splits["train"].learned_tokens  # what is cut is not trained on
    whole = report_on(tmp_path / "chat.jsonl", rows[:5], CHAT)
    assert whole.splits["train"].learned_tokens / whole.splits["train"].tokens > 0.2


def test_the_preview_has_the_tokens_and_the_mask_that_training_has(tmp_path: Path) -> None:
    report = report_on(tmp_path / "chat.jsonl", [answer(number) for number in range(6)], CHAT)
    shown = report.preview[0]
    text = "".join(token.text for token in shown.tokens)
    assert text == "### User:\nWhat comes after 0?\n\n### Assistant:\nIt is the number that follows. 1<|endoftext|>\n"
    learned = "".join(token.text for token in shown.tokens if token.learned)
    assert learned == "It is the number that follows. 1<|endoftext|>"
    assert (shown.object, shown.row, shown.omitted) == ("chat.jsonl", 1, 0)
    lines = format_report(DataReport(sequence_length=64, packing="documents", long_documents="cut", sources=[report]))
    assert (
        r"preview of chat.jsonl:1: ### User:\nWhat comes after 0?\n\n### Assistant:\n"
        r"«It is the number that follows. 1<|endoftext|>»\n"
    ) in lines
    assert [each.row for each in report.preview] == sorted({each.row for each in report.preview})


def model_folder(folder: Path) -> Path:
    """A folder that describes a model, with a tokenizer that begins each text, and a chat template."""
    made = train_tokenizer([tiny_text(5000)], TokenizerSpec(vocab_size=300, special_tokens=["<s>", "<|im_end|>"]))
    made.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "llama", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "eos_token_id": 0, "tie_word_embeddings": True, "hidden_act": "silu",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    template = "{% for each in messages %}{{ each.role + ': ' + each.content + '<|im_end|>' }}{% endfor %}"
    generation = "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template + generation}))
    return folder


def test_a_base_model_brings_tokenizer_template_and_special_tokens(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model")
    job, rows = tmp_path / "job.yaml", tmp_path / "rows.jsonl"
    texts = [{"text": f"line {number}"} for number in range(5)] + [{"text": "one <|im_end|> more"}]
    shown = []
    for data, content in ((CHAT, [answer(number) for number in range(6)]), (JSONL, texts)):
        training = {name: value for name, value in TINY.items() if name != "tokenizer"}
        job.write_text(yaml.safe_dump({"name": "tiny", "training": {**training, "data": data}}))
        rows.write_text("".join(json.dumps(row) + "\n" for row in content))
        _, settings = read_job(job, model)
        (report,) = report_on_files(settings.training, [rows], ReportOptions()).sources
        assert report.vocab_size == 300
        shown.append([(token.text, token.learned) for token in report.preview[0].tokens])
    learned = "".join(text for text, is_learned in shown[0] if is_learned)
    assert learned == "It is the number that follows. 1<|im_end|>"
    assert [shown[1][0], shown[1][-1]] == [("<s>", True), ("<|endoftext|>", True)]
    assert kinds_of(report)["special_tokens"] == [6]


def test_all_tokens_of_a_text_are_learned(tmp_path: Path) -> None:
    report = report_on(tmp_path / "rows.jsonl", [{"text": f"one more line, {number}"} for number in range(40)])
    train = report.splits["train"]
    assert train.learned_tokens == train.tokens > 0
    assert "".join(token.text for token in report.preview[0].tokens) == "one more line, 0<|endoftext|>"


def test_no_secret_is_in_the_report(tmp_path: Path) -> None:
    maker, secrets = Maker(3), []
    for defect in TEXT_DEFECTS:
        if defect.findings & SECRET_KINDS:
            text = defect.make(maker)
            secrets += [text[start:stop] for _, start, stop, _ in find_secrets(text)]
            report = report_on(tmp_path / "rows.jsonl", [{"text": text}] * 3)
            written = json.dumps(report.model_dump(mode="json"))
            shown = "".join(token.text for each in report.preview for token in each.tokens)
            for secret in secrets:
                for line in filter(None, secret.splitlines()):
                    assert "PRIVATE KEY" in line or (line not in written and line not in shown)
            assert any(token.hidden for token in report.preview[0].tokens)
    assert len(secrets) > 15


SECRET_KINDS = {
    kind for kind, each in FINDINGS.items() if "revoke" in each.remedy or "placeholder unless" in each.remedy
}


def test_a_message_that_quotes_a_row_hides_secrets(tmp_path: Path) -> None:
    key = "AKIA" + Maker(4).token("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 16)
    rows: list[Any] = [answer(number) for number in range(5)]
    rows[2]["messages"][1]["weight"] = key
    report = report_on(tmp_path / "chat.jsonl", rows, CHAT)
    assert kinds_of(report)["invalid_message"] == [3]
    assert key not in report.model_dump_json()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", {"no_documents": [0]}),
        (b"\n \n", {"no_documents": [0]}),
        (b'{"text": " "}\n', {"no_documents": [0], "empty_text": [1]}),
        (b"\xff\n" * 3, {"no_documents": [0], "not_utf8": [1, 2, 3]}),
        (b'{"text": "one"}\n{"text": "another"}\n', {"too_few_tokens": [0]}),
    ],
)
def test_data_without_documents_is_a_finding(tmp_path: Path, content: bytes, expected: dict[str, list[int]]) -> None:
    report = report_on(tmp_path / "rows.jsonl", content, {**JSONL, "packing": "none"})
    assert kinds_of(report) == expected
    assert report.read_bytes == len(content)
    assert all(finding.severity == "critical" for finding in report.findings if finding.kind != "empty_text")


def test_a_broken_text_file_is_named_with_its_line_and_the_others_are_read(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.txt", "b.txt")]
    paths[0].write_bytes(b"one\ntwo\n\xff three\n")
    paths[1].write_text("line of text\n" * 2000)
    training = tiny_training(data={"source": "dataset:text", "packing": "documents"})
    report = report_on_files(training, paths, ReportOptions()).sources[0]
    (finding,) = [each for each in report.findings if each.kind == "not_utf8"]
    assert [(place.object, place.row) for place in finding.places] == [("a.txt", 3)]
    assert report.splits["train"].tokens > 1000
    # Pieces of a file name the line at which they begin.
    repeated = [each.places for each in report.findings if each.kind == "repeated_lines"][0]
    assert [place.row for place in repeated if place.object == "b.txt"] == [1, 1261]


def test_a_file_that_is_no_parquet_is_a_finding_and_others_are_read(tmp_path: Path) -> None:
    report = report_on(tmp_path / "rows.parquet", b"PAR1 no", {**JSONL, "format": "parquet"})
    assert kinds_of(report) == {"not_parquet": [1], "no_documents": [0]}


def test_a_line_of_any_length_takes_bounded_memory() -> None:
    block = b"x" * 2**20
    problems: list[RowProblem] = []

    class Collecting(Reading):
        max_row_bytes = 2**21

        def on_problem(self, problem: RowProblem) -> None:
            problems.append(problem)

    def read() -> Iterator[bytes]:
        yield from (block for _ in range(64))
        yield b'\n{"text": "short"}\n'

    part = DataSpec.model_validate(JSONL).parts[0]
    tracemalloc.start()
    found = list(read_documents([RawObject("long.jsonl", read)], part, Collecting()))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [(str(each), each.place) for each in found] == [("short", Place("long.jsonl", 2))]
    assert [(each.kind, each.place.row) for each in problems] == [("row_too_long", 1)]
    assert "67,108,864 bytes" in problems[0].message
    assert peak < 8 * 2**20


@pytest.mark.parametrize("row", ['{"text": "half \\ud83d pair"}', "[" * 90_000])
def test_training_refuses_what_the_report_finds(row: str) -> None:
    part = DataSpec.model_validate(JSONL).parts[0]
    with pytest.raises(TrainerError, match=r"rows.jsonl line 1") as caught:
        list(read_documents([RawObject.of("rows.jsonl", row.encode())], part))
    assert caught.value.end_class is EndClass.DATA_ERROR


def similar_rows(share: float, words: int = 400) -> tuple[str, str]:
    """Two texts, of which this share of the runs of words is equal."""
    maker = Maker(7)
    first = maker.words(words).split()
    changed = round(words * (1 - share) / (1 + share))
    return " ".join(first), " ".join([*first[: words - changed], *maker.words(changed).split()])


@pytest.mark.parametrize(("share", "is_near"), [(0.97, True), (0.9, True), (0.6, False), (0.3, False)])
def test_documents_are_near_duplicates_by_the_share_of_equal_runs(share: float, is_near: bool) -> None:
    duplicates, texts = Duplicates(), similar_rows(share)
    batch = TextBatch(texts)
    duplicates.add([Place("a", 1), Place("a", 2)], Fingerprints.of(texts, words_of(batch.data, batch.begins)))
    near = list(duplicates.near())
    assert [(document.row, other.row) for document, other, _ in near] == ([(2, 1)] if is_near else [])
    assert all(similarity == pytest.approx(share, abs=0.1) for _, _, similarity in near)
    assert MIN_SIMILARITY == 0.75
    assert list(duplicates.exact()) == []


def test_words_are_compared_without_case_and_a_character_of_chinese_is_a_word() -> None:
    def hashes(text: str) -> list[int]:
        return word_hashes(np.frombuffer(text.encode(), np.uint8)).tolist()

    assert hashes("One, TWO") == hashes("one two") == [*hashes("one"), *hashes("two")]
    assert hashes("ab") != hashes("ba")
    assert len(hashes("敏捷的狐狸 fox")) == 6
    assert hashes(" .,") == hashes("") == []


def test_checksums() -> None:
    assert is_luhn_valid("4111111111111111")
    assert not is_luhn_valid("4111111111111112")
    assert is_iban("DE89370400440532013000")
    assert not is_iban("DE89370400440532013001")
    assert not is_iban("XX89370400440532013000")


def test_scripts_are_shares_of_letters(tmp_path: Path) -> None:
    rows = [{"text": "abc где 漢字かな 123"}] * 4
    assert report_on(tmp_path / "rows.jsonl", rows).scripts == {
        "LATIN": 0.3, "CYRILLIC": 0.3, "CJK": 0.2, "HIRAGANA": 0.2,
    }  # fmt: skip


def test_sources_of_a_mixture_share_the_tokenizer(tmp_path: Path) -> None:
    paths = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for number, path in enumerate(paths):
        path.write_text("".join(json.dumps({"text": f"row {row} of {number}"}) + "\n" for row in range(200)))
    data = {
        "mixture": [{"source": "dataset:first"}, {"source": "dataset:second", "weight": 2.0}],
        "packing": "documents",
    }
    training = tiny_training(data=data, tokenizer={"vocab_size": 300, "trained_on": "dataset:second"})
    report = report_on_files(training, paths, ReportOptions())
    assert [source.source for source in report.sources] == ["dataset:first", "dataset:second"]
    assert len({source.vocab_size for source in report.sources}) == 1
    assert [source.preview[0].object for source in report.sources] == ["first.jsonl", "second.jsonl"]


SHORT_PAIR = {"prompt": "Which is larger, one or two?", "chosen": " Two is.", "rejected": " One is."}


def report_on_pairs(path: Path, rows: list[dict[str, Any]]) -> SourceReport:
    data = {**JSONL, "format": "preference", "long_documents": "drop"}
    training = tiny_training(data=JSONL, **LONGER)
    training = training.model_copy(update={"data": DataSpec.model_validate(data)})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return report_on_files(training, [path], ReportOptions()).sources[0]


def test_the_answers_of_pairs_are_measured_and_previewed_one_by_one(tmp_path: Path) -> None:
    longer = {"prompt": "Name a fruit.", "chosen": " An apple, which grows on a tree.", "rejected": " No."}
    rows = [longer, {**longer, "prompt": "Name another."}, SHORT_PAIR] * 20
    report = report_on_pairs(tmp_path / "pairs.jsonl", rows)
    train, pairs = report.splits["train"], report.pairs
    assert pairs is not None
    assert pairs.pairs == 60
    assert pairs.chosen_mean > pairs.rejected_mean > 1
    assert pairs.chosen_longer == pytest.approx(2 / 3)
    learned = sum(split.learned_tokens for split in report.splits.values())
    assert learned == round(pairs.pairs * (pairs.chosen_mean + pairs.rejected_mean))
    assert train.learned_tokens < train.tokens
    first, second = report.preview[:2]
    assert (first.answer, second.answer) == ("chosen", "rejected")
    shown = ["".join(token.text for token in each.tokens if token.learned) for each in (first, second)]
    assert shown == [" An apple, which grows on a tree.<|endoftext|>", " No.<|endoftext|>"]
    assert "".join(token.text for token in second.tokens) == "Name a fruit. No.<|endoftext|>"
    lines = "\n".join(
        format_report(DataReport(sequence_length=1024, packing="documents", long_documents="drop", sources=[report]))
    )
    assert "preview of pairs.jsonl:1 (rejected): Name a fruit.« No.<|endoftext|>»" in lines
    assert "the chosen one is longer in 66.7%" in lines


def test_both_answers_of_conversations_are_checked(tmp_path: Path) -> None:
    prompt = [user("Is it late?")]
    fine = {"prompt": prompt, "chosen": [assistant("Yes.")], "rejected": [assistant("No.")]}
    rejected = {**fine, "rejected": [assistant("As an AI language model, I cannot know.")]}
    report = report_on_pairs(tmp_path / "pairs.jsonl", [{**fine, "n": number} for number in range(50)] + [rejected])
    assert kinds_of(report)["assistant_boilerplate"] == [51]
    assert report.preview[0].answer == "chosen"
    assert "".join(token.text for token in report.preview[1].tokens if token.learned) == "No.<|endoftext|>"


def test_answers_with_a_label_are_refused_with_what_checks_them(tmp_path: Path) -> None:
    texts = tiny_training(data=JSONL)
    answers = texts.data.model_copy(update={"format": "unpaired"})
    training = texts.model_copy(update={"data": answers})
    with pytest.raises(TrainerError, match="not answers with a label; a run checks each line") as refused:
        make_report([[]], TokenizerSpec(vocab_size=300), training, tmp_path, ReportOptions())
    assert refused.value.end_class is EndClass.BAD_SPEC


def test_equal_data_gives_an_equal_digest(tmp_path: Path) -> None:
    training = tiny_training(data=JSONL, tokenizer={"vocab_size": 300})
    unit = [RawObject.of("rows.jsonl", b'{"text": "a line of text"}\n' * 300)]
    spec = TokenizerSpec(vocab_size=300)
    made = [
        make_report([[lambda: unit]], spec, training, tmp_path / str(number), ReportOptions()) for number in range(2)
    ]
    assert made[0].digest == made[1].digest
    assert DataReport.model_validate_json(made[0].model_dump_json()).digest == made[0].digest
    assert made[0].worst == "warning"
    lines = format_report(made[0])
    assert "exact_duplicate" in "\n".join(lines)
    assert lines[-1] == f"digest {made[0].digest}"


def test_the_command_prints_json_and_fails_on_a_severity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job, rows, scores = tmp_path / "job.yaml", tmp_path / "rows.jsonl", tmp_path / "scores.jsonl"
    job.write_text(yaml.safe_dump({"name": "tiny", "training": {**TINY, "data": JSONL, **LONGER}}))
    maker = Maker(5)
    question = maker.words(30)
    scores.write_text(json.dumps({"question": question, "choices": ["yes", "no"]}) + '\n{"question": "short"}\n')
    texts = [maker.text() for _ in range(200)] + [f"{maker.words(20)} {question} {maker.words(20)}"]
    rows.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def run(*arguments: str) -> tuple[int, str]:
        command = ["trainer", "data-report", str(job), "--data", str(rows), *arguments]
        monkeypatch.setattr(sys, "argv", command)
        return main(), capsys.readouterr().out

    status, out = run("--json", "--fail-on", "critical")
    report = DataReport.model_validate_json(out)
    assert (status, report.worst) == (EXIT_STATUS[EndClass.COMPLETED], None)
    status, out = run("--evaluation", str(scores), "--fail-on", "critical", "--output", str(tmp_path / "report.json"))
    assert status == EXIT_STATUS[EndClass.DATA_ERROR]
    assert "evaluation_overlap: documents that share text with evaluation data" in out
    stored = DataReport.model_validate_json((tmp_path / "report.json").read_text()).sources[0]
    assert kinds_of(stored) == {"evaluation_overlap": [201]}
    assert stored.overlap is not None
    assert (stored.overlap.rows, stored.overlap.too_short) == (2, 1)
    rows.unlink()
    monkeypatch.setattr(sys, "argv", ["trainer", "data-report", str(job), "--data", str(rows)])
    assert main() == EXIT_STATUS[EndClass.DATA_ERROR]
    assert f"{rows}: No such file or directory" in capsys.readouterr().err


def test_the_page_lists_every_finding() -> None:
    page = (REPOSITORY / "docs" / "how-to" / "check-your-data.md").read_text()
    page = page.partition("\n## Findings\n")[2]
    rows = [line.split("|")[1:4] for line in page.splitlines() if line.startswith("| `")]
    listed = {kind.strip(" `"): (severity.strip(), title.strip()) for kind, severity, title in rows}
    assert listed == {kind: (each.severity, each.title) for kind, each in FINDINGS.items()}
