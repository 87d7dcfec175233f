"""Text of one's own: uploaded, trained on, and refused with the place of the fault."""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def test_an_uploaded_text_is_trained_on(stack, tmp_path: Path) -> None:
    text = tmp_path / "poem.txt"
    text.write_text("".join(f"line {n} of a poem about the number {n * n}\n" for n in range(8000)))
    made = stack.json("dataset", "add", "poem", str(text), "--tokenizer", "512")
    assert made["size_bytes"] == text.stat().st_size
    prepared = stack.wait_for_end(made["job"]["id"])
    assert prepared["status"] == "succeeded", prepared["reason"]
    job_id = stack.submit(tmp_path, steps=10, data={"source": "dataset:poem", "packing": "documents"})
    job = stack.wait_for_end(job_id)
    assert job["status"] == "succeeded", job["reason"]
    events = stack.get(f"/jobs/{made['job']['id']}/events")["items"]
    (told,) = [event["data"] for event in events if event["type"] == "dataset.prepared"]
    assert told["train_tokens"] > 10_000
    listed = [dataset["name"] for dataset in stack.json("dataset", "list")]
    assert "poem" in listed


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("empty.txt", b"", "empty"),
        ("latin1.txt", "so weit g\u00fct".encode("latin-1"), "byte"),
        ("broken.jsonl", b'{"text": "good"}\n{"text": \n', "line"),
    ],
)
def test_a_file_that_is_no_text_is_refused_with_the_place(stack, tmp_path: Path, name, content, place) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    result = stack.athanor("dataset", "add", "faulty", str(path))
    assert result.returncode == 2
    assert place in result.stderr


def test_a_data_set_that_is_not_there_is_named_before_a_job_is_made(stack, tmp_path: Path) -> None:
    result = stack.athanor("submit", str(stack.spec(tmp_path)), "--set", "training.data.source=dataset:absent")
    assert result.returncode == 2
    assert "absent" in result.stderr
