"""`make model-demo`: from raw conversations to a model in production: evaluated, replayed, signed and documented.

Each step is a command of `athanor` on the local stack, printed before it runs, and promises are tried: the report finds
the planted row, a requirement that is not met moves no alias, a folder with one altered bit is refused.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml
from rich.text import Text

from deploy.local.demo import Cli, console, start_stack
from deploy.local.errors import StackError
from deploy.local.folder import DataFolder, read_json

MODEL, BASE = "demo-support-bot", "demo-base"
SEQUENCE_LENGTH = 256
COLOURS = ("red", "green", "blue", "yellow", "black", "white")
THINGS = ("door", "car", "house", "cup", "book", "chair", "lamp", "hat", "ball", "box")
QUESTION = "The {thing} is {colour}. What colour is the {thing}?"
OFFLINE = "http://127.0.0.1:9"  # the port of the discard service: nothing answers


def main() -> int:
    """Run the demonstration. Return the exit code."""
    folder = DataFolder.from_environment()
    began = time.monotonic()
    try:
        start_stack()
        with tempfile.TemporaryDirectory(prefix="athanor-model-demo-") as scratch:
            _Demo(folder, Path(scratch)).run()
    except StackError as error:
        console.print(Text(error.log))
        console.print(f"[red]demo failed:[/red] {error}", soft_wrap=True)
        return 1
    console.print(f"\n{time.monotonic() - began:.0f} s; the stack continues in the background: `make down` stops it")
    return 0


class _Demo:
    """The steps. Names have the time of the run, so that it can be repeated."""

    def __init__(self, folder: DataFolder, scratch: Path) -> None:
        credentials = read_json(folder.credentials)
        if credentials is None:
            raise StackError(f"{folder.credentials} is not there although the stack is up: run `make down`, then again")
        self._url, self._scratch = credentials["url"], scratch
        self._cli = Cli(credentials["url"], credentials["token"])
        self._offline = Cli(OFFLINE, "none")
        self._stamp = f"{time.time():.0f}"

    def run(self) -> None:
        """Run all steps."""
        base = self._base_model()
        self._replay()
        self._report_on_raw_data()
        self._adapt(base)
        self._evaluate_and_promote()
        self._download_and_verify()
        self._document()

    def _base_model(self) -> str:
        self._heading("a base model: the adapters need one")
        data = {"source": "builtin:python-stdlib"}
        training = {"model": {"preset": "llama-1m"}, "data": data, "steps": 40}
        self._train("base", training, BASE, "latest", checkpoint={"every_steps": 10, "keep_last": 4})
        return f"model:{BASE}@latest"

    def _replay(self) -> None:
        self._heading("a replay: steps of the base model, computed again, are equal to its checkpoints in all bits")
        self._do("verify", "--replay", "1", self._name("base"), "--wait")

    def _report_on_raw_data(self) -> None:
        self._heading("raw conversations, one of which has no answer: the data report finds it")
        rows = [_conversation(colour, thing) for colour in COLOURS for thing in THINGS]
        raw = [*rows, {"messages": [{"role": "user", "content": "Is anyone there?"}]}]
        name = self._upload("raw", raw, "--format", "chat")
        options = ["--make", "--sequence-length", str(SEQUENCE_LENGTH), "--wait"]
        self._do("dataset", "report", name, *options)
        self._do("dataset", "report", name)
        (source,) = self._cli.json("dataset", "report", name)["report"]["sources"]
        places = [place["row"] for finding in source["findings"] for place in finding["places"]]
        if places != [len(raw)]:
            raise StackError(f"the report found defects in the rows {places}, the planted one is row {len(raw)}")
        self._upload("clean", rows, "--format", "chat")

    def _adapt(self, base: str) -> None:
        self._heading("adapters (LoRA) on the clean conversations, exported as a version with the alias candidate")
        training = {
            "model": {"base": base},
            "data": {"source": f"dataset:{self._name('clean')}", "packing": "documents", "validation_fraction": 0.1},
            "lora": {"rank": 8, "export": "merged"},
            "optimizer": {"learning_rate": 0.003},
            "steps": 60,
        }
        self._train("adapt", training, MODEL, "candidate")

    def _evaluate_and_promote(self) -> None:
        self._heading("an evaluation, and a promotion that must meet its requirements")
        held_out = [_conversation(colour, "tree") for colour in COLOURS]
        questions = [
            {"question": QUESTION.format(colour=colour, thing=thing), "choices": [colour, "none"], "answer": 0}
            for colour in COLOURS
            for thing in THINGS
        ]
        loss = {"name": "held-out", "kind": "loss", "format": "chat"}
        choice = {"name": "colours", "kind": "multiple_choice"}
        tasks = [
            {**loss, "source": f"dataset:{self._upload('held-out', held_out)}"},
            {**choice, "source": f"dataset:{self._upload('questions', questions)}"},
        ]
        evaluation = {"model": f"model:{MODEL}@candidate", "sequence_length": SEQUENCE_LENGTH, "tasks": tasks}
        self._submit("evaluate", {"evaluation": evaluation})
        self._do("model", "evaluations", MODEL)
        promote = ["model", "promote", f"{MODEL}@candidate", "--to", "production", "--require"]
        self._refused("a loss that no model has", *promote, "held-out.loss<=0")
        self._do(*promote, "held-out.loss<=9")

    def _download_and_verify(self) -> None:
        self._heading("a signed download, verified without the platform")
        self._do("download", f"model:{MODEL}@production", str(self._folder))
        key = self._cli.output("signing-key", "show", "--public")
        self._key.write_text(key)
        verify = ["model", "verify", str(self._folder), "--key", str(self._key)]
        self._do(*verify, cli=self._offline)
        weights = self._folder / "model.safetensors"
        content = weights.read_bytes()
        weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        self._refused("one altered bit", *verify, cli=self._offline)
        weights.write_bytes(content)

    def _document(self) -> None:
        self._heading("technical documentation, a bill of materials and a signed provenance")
        documents = {"documentation.md": [], "bom.cdx.json": ["--bom"], "provenance.json": ["--provenance"]}
        for name, options in documents.items():
            self._do("model", "document", f"{MODEL}@production", *options, "--out", str(self._scratch / name))
        made = ["--provenance", str(self._scratch / "provenance.json")]
        self._do("model", "verify", str(self._folder), "--key", str(self._key), *made, cli=self._offline)
        lines = (self._scratch / "documentation.md").read_text().splitlines()
        console.print(
            "\n".join(line for line in lines if "FLOPs" in line or "Energy |" in line), markup=False, soft_wrap=True
        )
        console.print(f"\nthe model's page: {self._url}/models", soft_wrap=True)

    @property
    def _folder(self) -> Path:
        return self._scratch / "model"

    @property
    def _key(self) -> Path:
        return self._scratch / "team.pub.pem"

    def _name(self, name: str) -> str:
        return f"demo-{name}-{self._stamp}"

    def _upload(self, name: str, rows: list[dict[str, Any]], *options: str) -> str:
        path = self._scratch / f"{name}.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        self._do("dataset", "add", self._name(name), str(path), "--no-prepare", *options)
        return self._name(name)

    def _train(self, name: str, training: dict[str, Any], model: str, alias: str, **spec: Any) -> None:
        sizes = {"sequence_length": SEQUENCE_LENGTH, "tokens_per_step": 4 * SEQUENCE_LENGTH}
        self._submit(name, {"training": {**sizes, **training}, "output": {"register": model, "alias": alias}, **spec})

    def _submit(self, name: str, spec: dict[str, Any]) -> None:
        path = self._scratch / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"version": 1, "name": self._name(name), **spec}, sort_keys=False))
        self._do("submit", str(path), "--wait")

    def _heading(self, text: str) -> None:
        console.print(f"\n[bold]{text}[/bold]", soft_wrap=True)

    def _do(self, *arguments: str, cli: Cli | None = None) -> None:
        """Run a command. Raises StackError unless it succeeds."""
        console.print(f"$ athanor {' '.join(arguments)}", soft_wrap=True, markup=False)
        code = (cli or self._cli).show(*arguments)
        if code:
            raise StackError(f"`athanor {' '.join(arguments)}` ended with exit code {code}")

    def _refused(self, why: str, *arguments: str, cli: Cli | None = None) -> None:
        """Run a command that must be refused. Raises StackError if it succeeds."""
        console.print(f"$ athanor {' '.join(arguments)}", soft_wrap=True, markup=False)
        if (cli or self._cli).show(*arguments) == 0:
            raise StackError(f"`athanor {' '.join(arguments)}` was not refused: {why}")


def _conversation(colour: str, thing: str) -> dict[str, Any]:
    question = {"role": "user", "content": QUESTION.format(colour=colour, thing=thing)}
    return {"messages": [question, {"role": "assistant", "content": f"It is {colour}."}]}


if __name__ == "__main__":
    sys.exit(main())
