"""Losses of answers that were judged, from the log-probabilities of their tokens: of pairs, of which one is preferred,
and of single answers with a label.

The answers of a row are documents: numbers 2n and 2n + 1 are the chosen and the rejected one of pair n. A single answer
is number 2n if its label is true and 2n + 1 if it is false, and the other number is of no document. Documents without
targets, such as padding, are no answers.

Shape suffixes: B rows, S sequence, P pairs of a row or its single answers, 2 sides: chosen and rejected, or desirable
and undesirable.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from trainer.contract.preference import PreferenceSpec
from trainer.data.batch import MicroBatch
from trainer.data.packing import IGNORED

MOST_PROBABLE = -1e-6
"""Maximum mean log-probability of an answer in ORPO: the odds of an answer of probability 1 are infinite."""


@dataclass(frozen=True)
class PreferenceLoss:
    """The losses of the pairs, or of the single answers, of a micro-batch, summed, and the sums that are reported: the
    first five of `PREFERENCE_FIGURES`, without gradients."""

    loss: Tensor
    figures: Tensor


PREFERENCE_FIGURES = ("chosen_reward", "rejected_reward", "correct", "chosen", "rejected", "log_ratio", "mismatched")
"""Summed rewards of the chosen answers, or of the desirable ones, and of the others; number of pairs in which the
chosen answer has the higher reward; numbers of both kinds of answers, which pairs have equally many of; with `kto`
summed log-ratios of the mismatched answers, and their number."""


def preference_series(spec: PreferenceSpec | None, prefix: str, figures: Sequence[float]) -> dict[str, float]:
    """Return the metrics of answers by name from the sums of `PREFERENCE_FIGURES`; none without answers."""
    if spec is None or not figures:
        return {}
    chosen, rejected, correct, num_chosen, num_rejected, log_ratio, num_mismatched = figures
    names = ("desirable", "undesirable") if spec.loss == "kto" else ("chosen", "rejected")
    means = {name: reward / count for name, reward, count in zip(names, (chosen, rejected), (num_chosen, num_rejected),
             strict=True) if count}  # fmt: skip
    found = {f"{prefix}/{name}_reward": mean for name, mean in means.items()}
    if len(means) == 2:
        found[f"{prefix}/reward_margin"] = means[names[0]] - means[names[1]]
    if spec.loss != "kto" and num_chosen:
        found[f"{prefix}/reward_accuracy"] = correct / num_chosen
    if num_mismatched:
        found[f"{prefix}/reference_point"] = max(0.0, log_ratio / num_mismatched)
    return found


def pair_loss(
    spec: PreferenceSpec, batch: MicroBatch, log_probs_BS: Tensor, reference_BP2: Tensor | None
) -> PreferenceLoss:
    """Return the losses of the pairs of a micro-batch. `log_probs_BS`: of each target; `reference_BP2`: summed over
    each answer, by the reference, which `dpo` needs."""
    lengths_BP2 = num_targets(batch)
    is_pair_BP = (lengths_BP2 > 0).all(-1)
    lengths_BP2 = lengths_BP2.clamp(min=1).to(log_probs_BS.dtype)
    sums_BP2 = sum_sides(log_probs_BS, batch)
    if spec.loss == "dpo":
        assert reference_BP2 is not None
        losses_BP, rewards_BP2 = dpo_losses(sums_BP2, reference_BP2, lengths_BP2, spec)
    else:
        means_BP2 = (sums_BP2 / lengths_BP2).where(is_pair_BP[..., None], -1.0)
        losses_BP, rewards_BP2 = orpo_losses(means_BP2, spec.beta)
    rewards_BP2 = rewards_BP2.detach().where(is_pair_BP[..., None], 0.0)
    correct = (rewards_BP2[..., 0] > rewards_BP2[..., 1]).sum().float()
    pairs = is_pair_BP.sum().float()
    figures = torch.cat([rewards_BP2.sum((0, 1)).float(), torch.stack([correct, pairs, pairs])])
    return PreferenceLoss(losses_BP.where(is_pair_BP, 0.0).sum(), figures)


def dpo_losses(
    sums_BP2: Tensor, reference_BP2: Tensor, lengths_BP2: Tensor, spec: PreferenceSpec
) -> tuple[Tensor, Tensor]:
    """Return (loss, [B, P], and rewards, [B, P, 2]) of pairs by direct preference optimisation.

    The reward of an answer y is beta log(pi(y) / pi_ref(y)), and the loss -log sigma(r_chosen - r_rejected) (Rafailov
    et al. 2023, equation 7). With label smoothing e it is -(1 - e) log sigma(d) - e log sigma(-d) (Mitchell 2023, "A
    note on DPO with noisy preferences"). Normalised, the log-probabilities are means over the tokens of the answer.
    """
    ratios_BP2 = sums_BP2 - reference_BP2
    if spec.length_normalised:
        ratios_BP2 = ratios_BP2 / lengths_BP2
    rewards_BP2 = spec.beta * ratios_BP2
    margins_BP = rewards_BP2[..., 0] - rewards_BP2[..., 1]
    losses_BP = -(1.0 - spec.label_smoothing) * functional.logsigmoid(margins_BP)
    if spec.label_smoothing:
        losses_BP = losses_BP - spec.label_smoothing * functional.logsigmoid(-margins_BP)
    return losses_BP, rewards_BP2


def orpo_losses(means_BP2: Tensor, weight: float) -> tuple[Tensor, Tensor]:
    """Return (loss, [B, P], and rewards, [B, P, 2]) of pairs by odds ratio preference optimisation.

    With log P(y) the mean log-probability of the tokens of an answer, and odds(y) = P(y) / (1 - P(y)), the loss is
    -log P(y_chosen) - weight log sigma(log(odds(y_chosen) / odds(y_rejected))) (Hong et al. 2024, equations 3 to 7).
    The reward is weight log P(y).
    """
    bounded_BP2 = means_BP2.clamp(max=MOST_PROBABLE)
    odds_BP2 = bounded_BP2 - torch.log(-torch.expm1(bounded_BP2))
    penalties_BP = functional.logsigmoid(odds_BP2[..., 0] - odds_BP2[..., 1])
    return -means_BP2[..., 0] - weight * penalties_BP, weight * means_BP2


def count_answers(spec: PreferenceSpec, batch: MicroBatch) -> Tensor:
    """Return the number of pairs of a micro-batch, or of single answers, a scalar on its device."""
    is_answer_BP2 = num_targets(batch) > 0
    return (is_answer_BP2 if spec.loss == "kto" else is_answer_BP2.all(-1)).sum()


def sum_sides(values_BS: Tensor, batch: MicroBatch) -> Tensor:
    """Return the sum of a value of each token over each answer, [B, P, 2]."""
    assert batch.documents_BS is not None, "answers are packed as documents"
    zeros = values_BS.new_zeros(len(values_BS), _num_places(batch))
    return zeros.scatter_add(1, batch.documents_BS.long(), values_BS).unflatten(1, (-1, 2))


def batch_reference(batch: MicroBatch) -> Tensor | None:
    """Return the sums by the reference that a micro-batch has, [B, P, 2], None if it has none."""
    if batch.reference_BA is None:
        return None
    return functional.pad(batch.reference_BA, (0, _num_places(batch) - batch.reference_BA.shape[1])).unflatten(
        1, (-1, 2)
    )


def _num_places(batch: MicroBatch) -> int:
    """Return a number of documents that no row exceeds, an even one: there are at most as many as tokens."""
    length: int = batch.tokens_BS.shape[1]
    return length + 2 - length % 2


def num_targets(batch: MicroBatch) -> Tensor:
    """Return the number of targets of each answer, [B, P, 2]."""
    return sum_sides((batch.targets_BS != IGNORED).long(), batch)
