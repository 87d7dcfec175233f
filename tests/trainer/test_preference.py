"""Preference training: losses by the papers' formulas, pairs from TRL's formats, the same numbers on every mesh."""

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.trainer.pairs import CHAT, DPO, PAIRS, pairs, preferring, write_pairs
from tests.trainer.runs import MIXTURE, FinishedRun, kill_rank, run_alone, tiny_training
from trainer.contract.base import FieldConflictError
from trainer.contract.cost import RankCost
from trainer.contract.data import DataSpec, PrepareSpec
from trainer.contract.launch_plan import plan_mesh
from trainer.contract.parallelism import MeshSizes
from trainer.contract.preference import PreferenceSpec
from trainer.contract.run import EndClass
from trainer.contract.training import TrainingSpec
from trainer.data.batch import MicroBatch
from trainer.data.chat import ChatTemplate
from trainer.data.documents import RawObject
from trainer.data.masks import masked
from trainer.data.packing import IGNORED, DocumentRows
from trainer.data.pairs import Pair, read_pairs
from trainer.errors import TrainerError
from trainer.models.decoder import Decoder
from trainer.models.loss import linear_cross_entropy, linear_log_probabilities
from trainer.models.preference import count_answers, pair_loss, preference_series, sum_sides

SHAPE = {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "intermediate_size": 64}
LORA = {"lora": {"rank": 4, "alpha": 8.0}, "optimizer": {"learning_rate": 1e-2, "epsilon": 1e-5}}
ORPO = {"preference": {"loss": "orpo"}}
PRECOMPUTED = {"preference": {**DPO, "reference": "precomputed"}}


def spec(**changes: Any) -> TrainingSpec:
    """A spec that is valid without the files of its base."""
    fields = {
        "model": {"base": "model:x", "shape": SHAPE},
        "data": PAIRS,
        "preference": DPO,
        "steps": 4,
        "tokens_per_step": 512,
        "sequence_length": 64,
        **changes,
    }
    return TrainingSpec.model_validate(fields)


def two_pairs() -> MicroBatch:
    """One row: a pair of answers of 3 and 2 targets, one of 1 and 4, and padding."""
    documents = torch.tensor([[0] * 5 + [1] * 4 + [2] * 3 + [3] * 6 + [4] * 2])
    targets = torch.full((1, 20), IGNORED)
    for start, count in ((1, 3), (6, 2), (10, 1), (13, 4)):
        targets[0, start : start + count] = 7
    return MicroBatch(torch.zeros(1, 20, dtype=torch.int64), targets, documents.int())


def log_probs(seed: int) -> tuple[Tensor, list[list[float]]]:
    """Log-probabilities of the tokens of `two_pairs`, and those of each answer: chosen and rejected of each pair."""
    batch = two_pairs()
    values = -torch.rand(1, 20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.05
    values = values.where(batch.targets_BS != IGNORED, 0.0)
    assert batch.documents_BS is not None
    counted = batch.targets_BS != IGNORED
    sides = [values[(batch.documents_BS == number) & counted].tolist() for number in range(4)]
    return values, sides


@pytest.mark.parametrize("changes", [{}, {"label_smoothing": 0.2, "beta": 0.7}, {"length_normalised": True}], ids=str)
def test_dpo_is_the_formula_of_the_paper(changes: dict[str, Any]) -> None:
    chosen = PreferenceSpec.model_validate({"beta": 0.3, **changes})
    values, mine = log_probs(1)
    reference, theirs = log_probs(2)
    found = pair_loss(chosen, two_pairs(), values, sum_sides(reference, two_pairs()))
    expected, rewards, correct = 0.0, [0.0, 0.0], 0
    for pair in range(2):
        of_side = []
        for side in range(2):
            policy, base = mine[2 * pair + side], theirs[2 * pair + side]
            divisor = len(policy) if chosen.length_normalised else 1
            of_side.append(chosen.beta * (sum(policy) - sum(base)) / divisor)
            rewards[side] += of_side[-1]
        margin = of_side[0] - of_side[1]
        smoothing = chosen.label_smoothing
        expected -= (1 - smoothing) * math.log(1 / (1 + math.exp(-margin)))
        expected -= smoothing * math.log(1 / (1 + math.exp(margin)))
        correct += margin > 0
    assert float(found.loss) == pytest.approx(expected, rel=1e-9)
    assert found.figures.tolist() == pytest.approx([*rewards, correct, 2, 2])
    series = preference_series(chosen, "train", [*found.figures.tolist(), 0.0, 0.0])
    assert series["train/reward_margin"] == pytest.approx((rewards[0] - rewards[1]) / 2)
    assert series["train/reward_accuracy"] == correct / 2


def test_orpo_is_the_formula_of_the_paper() -> None:
    chosen = PreferenceSpec(loss="orpo", beta=0.4)
    values, mine = log_probs(3)
    found = pair_loss(chosen, two_pairs(), values, None)
    expected = 0.0
    for pair in range(2):
        probabilities = [math.exp(sum(side) / len(side)) for side in mine[2 * pair : 2 * pair + 2]]
        odds = [each / (1 - each) for each in probabilities]
        ratio = math.log(odds[0] / odds[1])
        expected += -math.log(probabilities[0]) - 0.4 * math.log(1 / (1 + math.exp(-ratio)))
    assert float(found.loss) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("loss", ["dpo", "orpo"])
def test_answers_without_targets_are_no_pairs_and_have_no_gradient(loss: Any) -> None:
    batch = two_pairs()
    targets = batch.targets_BS.clone()
    targets[0, 13:17] = IGNORED  # the rejected answer of the second pair
    batch = MicroBatch(batch.tokens_BS, targets, batch.documents_BS)
    values = log_probs(1)[0].where(targets != IGNORED, 0.0).requires_grad_()
    chosen = PreferenceSpec(loss=loss)
    found = pair_loss(chosen, batch, values, sum_sides(values.detach() * 0.9, batch))
    found.loss.backward()
    assert (int(count_answers(chosen, batch)), found.figures[3]) == (1, 1)
    assert values.grad is not None and values.grad.isfinite().all()
    assert not values.grad[0, 9:].any() and values.grad[0, 1:4].all()


@pytest.mark.parametrize("cap", [None, 0.5])
def test_log_probabilities_and_their_gradients_are_those_of_log_softmax(
    cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer.models.loss.CHUNK_BYTES", 4 * 31 * 4)  # four tokens a chunk
    generator = torch.Generator().manual_seed(1)
    x, weight = torch.randn(10, 8, generator=generator), torch.randn(31, 8, generator=generator)
    targets = torch.randint(0, 31, (10,), generator=generator)
    targets[3], factors = IGNORED, torch.randn(10, generator=generator)
    mine, plain = ([each.clone().requires_grad_() for each in (x, weight)] for _ in range(2))
    found = linear_log_probabilities(*mine, targets, cap=cap)
    logits = plain[0] @ plain[1].T
    logits = logits if cap is None else cap * (logits / cap).tanh()
    expected = -functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")
    torch.testing.assert_close(found, expected)
    (found * factors).sum().backward()
    (expected * factors).sum().backward()
    for one, other in zip(mine, plain, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
    summed = linear_cross_entropy(x, weight, targets, cap=cap)
    assert -found.sum().item() == pytest.approx(float(summed), rel=1e-6)


def read(*rows: Any, template: ChatTemplate | None = CHAT) -> list[Pair]:
    content = "\n".join(json.dumps(row) for row in rows).encode()
    return list(read_pairs([RawObject.of("a.jsonl", content)], template))


def answers(pair: Pair) -> list[tuple[str, str]]:
    """(prompt, answer) of each side."""
    return [
        (str(side)[: side.counted[0][0]], "".join(side[start:stop] for start, stop in side.counted))
        for side in pair.sides
    ]


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


QUESTION, GOOD, BAD = message("user", "why"), message("assistant", "so"), message("assistant", "no")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": "The sky is", "chosen": " blue.", "rejected": " green."},
         [("The sky is", " blue."), ("The sky is", " green.")]),
        ({"chosen": "The sky is blue.", "rejected": "The sky is green."},
         [("The sky is", " blue."), ("The sky is", " green.")]),
        ({"chosen": "The sky is black.", "rejected": "The sky is blue."},
         [("The sky is", " black."), ("The sky is", " blue.")]),
        ({"chosen": "yes", "rejected": "no"}, [("", "yes"), ("", "no")]),
        ({"prompt": [QUESTION], "chosen": [GOOD], "rejected": [BAD]},
         [("[user]why[assistant]", "so"), ("[user]why[assistant]", "no")]),
        ({"chosen": [QUESTION, GOOD], "rejected": [QUESTION, BAD]},
         [("[user]why[assistant]", "so"), ("[user]why[assistant]", "no")]),
        ({"prompt": [QUESTION, GOOD, QUESTION], "chosen": [GOOD], "rejected": [BAD]},
         [("[user]why[assistant]so[user]why[assistant]", "so"), ("[user]why[assistant]so[user]why[assistant]", "no")]),
    ],
    ids=["text", "text-implicit", "text-in-a-word", "text-no-prompt", "chat", "chat-implicit", "chat-turns"],
)  # fmt: skip
def test_pairs_of_each_format(row: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    assert answers(read(row)[0]) == expected


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "a", "chosen": "b"}, "no fields 'chosen' and 'rejected' (it has: chosen, prompt)"),
        ("text", "(it has: a str)"),
        ({"prompt": "a", "chosen": [GOOD], "rejected": [BAD]}, "prompt is a str, chosen is a list, rejected is a list"),
        ({"chosen": 1, "rejected": 2}, "chosen is a int, rejected is a int"),
        ({"chosen": "a", "rejected": None}, "chosen is a str, rejected is a NoneType"),
        ({"prompt": "a", "chosen": "b", "rejected": ""}, "the rejected answer is empty"),
        (
            {"prompt": "a", "chosen": "b", "rejected": "c \ud800"},
            "the rejected answer, or its prompt, has half of a surr",
        ),
        ({"chosen": [QUESTION], "rejected": [QUESTION, BAD]}, "the chosen answer has no message with the role assista"),
        ({"chosen": [{"role": "user"}], "rejected": [BAD]}, "prompt and chosen[0] has no text in 'content'"),
        ({"prompt": [QUESTION], "chosen": [message("assistant", "")], "rejected": [BAD]}, "the chosen answer"),
    ],
)
def test_a_line_that_is_no_pair_is_refused_by_name(row: Any, problem: str) -> None:
    good = {"prompt": "a", "chosen": "b", "rejected": "c"}
    with pytest.raises(TrainerError) as refused:
        read(good, row)
    assert refused.value.end_class is EndClass.DATA_ERROR
    assert "a.jsonl line 2: " in str(refused.value) and problem in str(refused.value)


def test_conversations_need_the_template_of_the_model() -> None:
    with pytest.raises(TrainerError, match="the base model has no chat template; train it on conversations first"):
        read({"prompt": [QUESTION], "chosen": [GOOD], "rejected": [BAD]}, template=None)


def test_both_answers_of_a_pair_are_documents_of_one_row() -> None:
    chosen = masked(np.array([5, 6, 7], np.uint32), np.array([False, True, True]))
    rejected = masked(np.array([5, 8], np.uint32), np.array([False, True]), is_rejected=True)
    tokens = np.concatenate([chosen, rejected, chosen, rejected])
    rows = DocumentRows(np.array([5, 5]), 12, "drop")
    (row,) = [rows.read(tokens, number, 99, is_masked=True, has_pairs=True) for number in range(rows.count)]
    assert row.documents_BS is not None and row.positions_BS is not None
    assert row.tokens_BS.tolist() == [[5, 6, 7, 5, 8, 5, 6, 7, 5, 8, 99, 99]]
    assert row.documents_BS.tolist() == [[0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 4, 4]]
    assert row.positions_BS.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2, 0, 1, 0, 1]]
    ignored = IGNORED
    assert row.targets_BS.tolist() == [[6, 7, ignored, 8, ignored, 6, 7, ignored, 8, ignored, ignored, ignored]]


@pytest.mark.parametrize(
    ("changes", "field", "remedy"),
    [
        ({"data": {"source": "dataset:x"}}, "data.format", "needs data.format preference, and it is auto"),
        ({"preference": None}, "preference", "set preference, for example {loss: dpo}"),
        ({"model": {"shape": SHAPE}}, "preference", "name it in model.base"),
        ({"z_loss": 0.1}, "z_loss", "z_loss 0.1 is a part of the loss of text; leave it out"),
        ({**PRECOMPUTED, "data": {**PAIRS, "on_corrupt": "skip"}}, "preference.reference", "or reference to live"),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_field(changes: Any, field: str, remedy: str) -> None:
    with pytest.raises(ValueError, match="1 validation error") as refused:
        spec(**changes)
    found = refused.value.errors()[0]["ctx"]["error"]  # type: ignore[attr-defined] # pydantic's
    assert isinstance(found, FieldConflictError)
    assert [conflict.at for conflict in found.conflicts] == [field] and remedy in str(found)


def test_orpo_refuses_what_it_does_not_have() -> None:
    with pytest.raises(ValueError, match=r"label_smoothing 0\.1 is not defined for loss orpo; leave it out"):
        PreferenceSpec(loss="orpo", label_smoothing=0.1)
    with pytest.raises(ValueError, match="reference precomputed belongs to loss dpo, and loss is orpo; leave it out"):
        PreferenceSpec(loss="orpo", reference="precomputed")
    with pytest.raises(ValueError, match="loss orpo always divides by the length; leave length_normalised out"):
        PreferenceSpec(loss="orpo", length_normalised=True)


def test_pairs_are_never_cut_nor_prepared_without_their_model() -> None:
    with pytest.raises(ValueError, match="set it to drop, which leaves such pairs out"):
        DataSpec(source="dataset:x", format="preference", packing="documents")
    with pytest.raises(ValueError, match="needs packing `documents`, so that answers do not see one another"):
        DataSpec(source="dataset:x", format="preference")
    with pytest.raises(ValueError, match="the job that trains it prepares its data"):
        PrepareSpec.model_validate({"data": PAIRS})


@pytest.mark.parametrize(
    ("changes", "world", "problem"),
    [
        ({"parallelism": {"pipeline": 2}}, 2, "preference cannot be combined with pipeline 2; take 1"),
        ({"parallelism": {"context": 2}}, 2, "preference cannot be combined with context 2; take 1"),
        ({"compile": True, "cuda_graphs": True}, 1, "preference cannot be combined with cuda_graphs true"),
    ],
    ids=str,
)
def test_meshes_that_cannot_train_on_pairs_are_refused(changes: Any, world: int, problem: str) -> None:
    found = plan_mesh(spec(**changes), 300, world)
    assert isinstance(found, list)
    assert any(problem in each.message for each in found), found


def test_estimates_count_the_reference() -> None:
    full, orpo, lora = spec(), spec(**ORPO), spec(**LORA)
    shape = full.model.resolve()
    trained = orpo.flops_per_token(300, causal=True)
    assert full.flops_per_token(300, causal=True) == pytest.approx(trained * 4 / 3, rel=1e-6)
    without = TrainingSpec.model_validate({**lora.model_dump(), **ORPO}).flops_per_token(300, causal=True)
    assert lora.flops_per_token(300, causal=True) == pytest.approx(without + trained / 3, rel=1e-6)
    with torch.device("meta"):
        parameters = sum(each.numel() for each in Decoder(shape, 300, 64).parameters())
    weights = {name: RankCost(each, 300, MeshSizes(), 0).memory().reference for name, each in
               {"full": full, "orpo": orpo, "lora": lora, "precomputed": spec(**PRECOMPUTED)}.items()}  # fmt: skip
    assert weights == {"full": 4 * parameters, "orpo": 0, "lora": 0, "precomputed": 0}
    assert spec(**PRECOMPUTED).flops_per_token(300, causal=True) == trained
    sharded = RankCost(spec(parallelism={"zero": 3}), 300, MeshSizes(shard=2, zero=3), 0).memory()
    assert sharded.reference == pytest.approx(2 * parameters + sharded.gathered, rel=0.01)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_alone(tmp_path_factory.mktemp("base") / "run", tiny_training(steps=4, schedule={"warmup_steps": 0}))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pairs(tmp_path_factory.mktemp("pairs") / "pairs.jsonl", pairs())


CHANGES: dict[str, dict[str, Any]] = {
    "full": {}, "lora": LORA, "orpo": ORPO, "precomputed": PRECOMPUTED, "precomputed_lora": {**LORA, **PRECOMPUTED},
}  # fmt: skip
Alone = Callable[[str], FinishedRun]


@pytest.fixture(scope="module")
def alone(base: FinishedRun, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """The run of one process, by what it trains."""
    folder = tmp_path_factory.mktemp("alone")
    return cache(lambda name: run_alone(folder / name, preferring(base, **CHANGES[name]), data=data))


SERIES = ("train/loss", "train/chosen_reward", "train/rejected_reward", "train/reward_margin", "train/reward_accuracy")


@pytest.mark.processes
@pytest.mark.parametrize("name", ["full", "lora", pytest.param("orpo", marks=pytest.mark.slow)])
def test_a_run_learns_to_prefer(name: str, alone: Alone) -> None:
    run = alone(name)
    assert run.end_class is EndClass.COMPLETED, run.end
    accuracy, margin = run.series("evaluation/reward_accuracy"), run.series("evaluation/reward_margin")
    assert accuracy[20] == 1.0 and margin[20] > margin[0] + 0.01
    losses = run.series("train/loss")
    assert losses[20] < losses[1]
    if name != "orpo":  # the model is its reference before the first step
        assert losses[1] == pytest.approx(math.log(2), abs=1e-6) and margin[0] == accuracy[0] == 0.0
    chosen, rejected = (run.series(f"train/{each}_reward") for each in ("chosen", "rejected"))
    assert run.series("train/reward_margin")[20] == pytest.approx(chosen[20] - rejected[20], abs=1e-6)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "parallelism"),
    [
        ("full", {"zero": 0}),
        ("full", {"tensor": 2}),
        pytest.param("full", {"zero": 3}, marks=pytest.mark.slow),
        pytest.param("lora", {"zero": 3}, marks=pytest.mark.slow),
        pytest.param("lora", {"tensor": 2}, marks=pytest.mark.slow),
        pytest.param("orpo", {"zero": 2}, marks=pytest.mark.slow),
        pytest.param("orpo", {"tensor": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_numbers_are_the_same_on_every_mesh(
    name: str, parallelism: dict[str, int], base: FinishedRun, data: Path, alone: Alone, tmp_path: Path
) -> None:
    training = preferring(base, **CHANGES[name], parallelism=parallelism)
    run = run_alone(tmp_path / "run", training, processes=2, data=data)
    assert run.end_class is EndClass.COMPLETED, run.end
    for series in (*SERIES, *(each.replace("train", "evaluation") for each in SERIES)):
        assert run.series(series) == pytest.approx(alone(name).series(series), abs=1e-4), series


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "live", "parallelism"),
    [
        ("precomputed", "full", {}),
        pytest.param("precomputed", "full", {"zero": 3}, marks=pytest.mark.slow),
        pytest.param("precomputed", "full", {"tensor": 2}, marks=pytest.mark.slow),
        pytest.param("precomputed_lora", "lora", {"zero": 0}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_reference_computed_before_the_run_gives_the_same_numbers(
    name: str, live: str, parallelism: dict[str, int], base: FinishedRun, data: Path, alone: Alone, tmp_path: Path
) -> None:
    training = preferring(base, **CHANGES[name], parallelism=parallelism)
    run = run_alone(tmp_path / "run", training, processes=2 if parallelism else 1, data=data)
    assert run.end_class is EndClass.COMPLETED, run.end
    assert "reference" in [event["phase"] for event in run.events("phase.finished")]
    for series in (*SERIES, *(each.replace("train", "evaluation") for each in SERIES)):
        assert run.series(series) == pytest.approx(alone(live).series(series), abs=1e-4), series


@pytest.mark.processes
@pytest.mark.parametrize(
    "name", ["full", *(pytest.param(each, marks=pytest.mark.slow) for each in ("lora", "precomputed"))]
)
def test_a_killed_run_continues_with_the_same_bits(
    name: str, base: FinishedRun, data: Path, alone: Alone, tmp_path: Path
) -> None:
    training = preferring(base, **CHANGES[name])
    run = run_alone(tmp_path / "run", training, data=data, restarts=1, every_steps=7, at_first_checkpoint=kill_rank(0))
    assert run.end_class is EndClass.COMPLETED, run.end
    assert run.events("checkpoint.restored"), "the run was not resumed"
    for series in SERIES:
        assert run.series(series) == alone(name).series(series), series


@pytest.mark.processes
@pytest.mark.slow
def test_experts_on_other_ranks_have_the_same_numbers(data: Path, tmp_path: Path) -> None:
    base = run_alone(tmp_path / "base", tiny_training(model={"shape": MIXTURE}, steps=4, schedule={"warmup_steps": 0}))
    one = run_alone(tmp_path / "one", preferring(base, optimizer={"learning_rate": 1e-3}), data=data)
    training = preferring(base, optimizer={"learning_rate": 1e-3}, parallelism={"expert": 2, "zero": 3})
    two = run_alone(tmp_path / "two", training, processes=2, data=data)
    assert one.end_class is two.end_class is EndClass.COMPLETED, two.end
    for series in SERIES:
        assert two.series(series) == pytest.approx(one.series(series), abs=1e-4), series


@pytest.mark.processes
@pytest.mark.slow
def test_adapters_on_a_base_in_4_bits_learn_to_prefer(base: FinishedRun, data: Path, tmp_path: Path) -> None:
    training = preferring(base, **{**LORA, "lora": {**LORA["lora"], "quantization": "nf4"}})
    run = run_alone(tmp_path / "run", training, data=data)
    assert run.end_class is EndClass.COMPLETED, run.end
    assert run.series("train/loss")[1] == pytest.approx(math.log(2), abs=1e-6)
    assert run.series("evaluation/reward_accuracy")[20] == 1.0


@pytest.mark.processes
@pytest.mark.slow
def test_compiled_blocks_leave_the_adapters_out_for_the_reference(
    base: FinishedRun, data: Path, alone: Alone, tmp_path: Path
) -> None:
    run = run_alone(tmp_path / "run", preferring(base, **LORA, compile=True), data=data)
    assert run.end_class is EndClass.COMPLETED, run.end
    for series in SERIES:
        assert run.series(series) == pytest.approx(alone("lora").series(series), abs=1e-4), series


@pytest.mark.processes
def test_pairs_that_are_all_too_long_end_the_run_with_the_remedy(base: FinishedRun, data: Path, tmp_path: Path) -> None:
    run = run_alone(tmp_path / "run", preferring(base, sequence_length=8), data=data)
    assert run.end_class is EndClass.DATA_ERROR
    assert "no pair in the train split of" in run.end["message"]
    assert "training.sequence_length 8, and longer ones are left out: set a longer" in run.end["message"]
