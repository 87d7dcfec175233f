"""Kahneman-Tversky optimisation (Ethayarajh et al. 2024): the loss of single answers with a label, from the
log-probabilities of their tokens, and the reference point that their rewards are compared with.

Shape suffixes: B rows, S sequence, D answers of a row, P its numbers of answers, 2 sides: desirable, undesirable.
"""

import torch
from torch import Tensor

from trainer.contract.preference import PreferenceSpec
from trainer.data.batch import MicroBatch
from trainer.data.packing import IGNORED
from trainer.models.preference import PreferenceLoss, num_targets, sum_sides


def kto_loss(
    spec: PreferenceSpec, batch: MicroBatch, log_probs_BS: Tensor, reference_BS: Tensor, reference_point: Tensor
) -> PreferenceLoss:
    """Return the losses of the answers of a micro-batch. `log_probs_BS`: of each target; `reference_BS`: by the
    reference; `reference_point`: a scalar without gradient.

    With r the log of pi(y|x) / pi_ref(y|x), the sum over the tokens of an answer, the loss of a desirable answer is
    lambda_D (1 - sigma(beta (r - z0))), and of an undesirable one lambda_U (1 - sigma(beta (z0 - r))) (equations 7 and
    8, with the constants that make the loss positive). The reward is beta r.
    """
    is_answer_BP2 = num_targets(batch) > 0
    ratios_BP2 = sum_sides(log_probs_BS - reference_BS, batch)
    weights_2 = ratios_BP2.new_tensor([spec.desirable_weight, spec.undesirable_weight])
    signs_2 = ratios_BP2.new_tensor([1.0, -1.0])
    losses_BP2 = weights_2 * torch.sigmoid(-spec.beta * signs_2 * (ratios_BP2 - reference_point))
    rewards_2 = (spec.beta * ratios_BP2.detach()).where(is_answer_BP2, 0.0).sum((0, 1)).float()
    counts_2 = is_answer_BP2.sum((0, 1)).float()
    figures = torch.cat([rewards_2, counts_2.new_zeros(1), counts_2])
    return PreferenceLoss(losses_BP2.where(is_answer_BP2, 0.0).sum(), figures)


def mismatched(batch: MicroBatch) -> MicroBatch:
    """Return rows in which each prompt has the answer of the answer's neighbour before it in the row, the first prompt
    that of the last. Rows with fewer than two answers have no targets.

    The lengths of the prompts and of the answers of a row have the same sum as before, so the rows are as long. A
    prompt is what is before the first target of a document; answers are never without a target, nor rows without the
    numbers of their documents and positions (`trainer.data.packing`).
    """
    documents_BS, positions_BS = batch.documents_BS, batch.positions_BS
    assert documents_BS is not None and positions_BS is not None, "answers are packed as documents"
    num_rows, length = batch.tokens_BS.shape
    places_BS = torch.arange(length, device=documents_BS.device).expand(num_rows, length)
    ordinals_BS = (positions_BS == 0).cumsum(1) - 1  # padding is a document too, the last one
    counted_BS = batch.targets_BS != IGNORED
    starts_BD = places_BS.new_full((num_rows, length), length).scatter_reduce_(1, ordinals_BS, places_BS, "amin")
    firsts_BS = places_BS.where(counted_BS, length)
    answers_BD = starts_BD.new_full((num_rows, length), length).scatter_reduce_(1, ordinals_BS, firsts_BS, "amin")
    counts_B1 = (answers_BD < length).sum(1, keepdim=True)  # answers are the first documents of a row
    sizes_BD = torch.zeros_like(starts_BD).scatter_add_(1, ordinals_BS, torch.ones_like(ordinals_BS))
    is_answer_BD = places_BS < counts_B1
    prompts_BD = (answers_BD + 1 - starts_BD).where(is_answer_BD, sizes_BD)
    before_BD = (places_BS - 1).where(places_BS > 0, (counts_B1 - 1).clamp(min=0)).where(is_answer_BD, places_BS)
    new_sizes_BD = prompts_BD + (sizes_BD - prompts_BD).gather(1, before_BD)
    ends_BD = new_sizes_BD.cumsum(1)
    now_BS = torch.searchsorted(ends_BD, places_BS.contiguous(), right=True)
    offsets_BS = places_BS - (ends_BD - new_sizes_BD).gather(1, now_BS)
    sizes_BS, others_BS = prompts_BD.gather(1, now_BS), before_BD.gather(1, now_BS)
    answer_starts_BS = (starts_BD + prompts_BD).gather(1, others_BS) - sizes_BS + offsets_BS
    sources_BS = (starts_BD.gather(1, now_BS) + offsets_BS).where(offsets_BS < sizes_BS, answer_starts_BS)
    is_counted_BS = (offsets_BS >= sizes_BS - 1) & is_answer_BD.gather(1, now_BS) & (counts_B1 > 1)
    targets_BS = batch.targets_BS.gather(1, answer_starts_BS.where(is_counted_BS, sources_BS))
    return MicroBatch(
        batch.tokens_BS.gather(1, sources_BS), targets_BS.where(is_counted_BS, IGNORED), now_BS.int(), offsets_BS
    )  # fmt: skip


def reference_point(sums_2: Tensor) -> Tensor:
    """Return the reference point z0, a scalar, from `log_ratio_sums` over all ranks: the estimate of the divergence of
    the model from the reference, at least 0 (section 4.1); 0 without mismatched answers."""
    return (sums_2[0] / sums_2[1].clamp(min=1.0)).clamp(min=0.0)


def log_ratio_sums(batch: MicroBatch, log_probs_BS: Tensor, reference_BS: Tensor) -> Tensor:
    """Return (sum of log pi(y'|x) / pi_ref(y'|x) over the answers of a `mismatched` batch, their number), [2]."""
    return torch.stack([(log_probs_BS - reference_BS).sum().float(), (num_targets(batch) > 0).sum().float()])
