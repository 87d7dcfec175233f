"""Attention inside documents by the kernel that takes where they begin, instead of a mask."""

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from trainer.models.attention import attend, document_cu_seqlens, document_mask

DOCUMENTS = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0, 0, 1], [0, 1, 2, 3, 4, 4, 4, 4]])
BOUNDS = [0, 3, 5, 8, 15, 16, 17, 18, 19, 20]


def heads(count: int, seed: int, size: int = 8) -> Tensor:
    return torch.empty(*DOCUMENTS.shape, count, size).normal_(generator=torch.Generator().manual_seed(seed))


def test_bounds_are_where_documents_begin_and_the_end() -> None:
    bounds = document_cu_seqlens(DOCUMENTS)
    assert bounds.dtype == torch.int32
    assert bounds.tolist() == BOUNDS + [24] * 7  # filled up to 16 documents
    assert document_cu_seqlens(torch.zeros(1, 5)).tolist() == [0, 5]


def test_the_mask_keeps_attention_inside_the_bounds() -> None:
    query, key, value = (heads(2, seed) for seed in (1, 2, 3))
    mask = document_mask(DOCUMENTS, query)
    assert mask is not None and mask.dtype == torch.bool
    mixed = attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask).transpose(1, 2)
    rows = [x.flatten(0, 1) for x in (query, key, value)]
    for begin, end in zip([*BOUNDS], [*BOUNDS[1:], 24], strict=True):
        alone = functional.scaled_dot_product_attention(
            *(x[begin:end].transpose(0, 1)[None] for x in rows), is_causal=True
        )
        torch.testing.assert_close(mixed.flatten(0, 1)[begin:end], alone[0].transpose(0, 1))


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("size", [8, 20])
def test_the_kernel_takes_what_it_is_given(size: int, window: int | None) -> None:
    """Shapes and gradients' shapes alone: the numbers need the GPU."""
    with FakeTensorMode():
        query = torch.empty(3, 4, 8, size, dtype=torch.bfloat16, requires_grad=True)
        key = torch.empty(3, 2, 8, size, dtype=torch.bfloat16, requires_grad=True)
        mixed = attend(query, key, key, torch.empty(17, dtype=torch.int32), window)
        assert mixed.shape == query.shape
        mixed.sum().backward()
        assert query.grad is not None and query.grad.shape == query.shape


def test_a_window_compiles_to_one_graph() -> None:
    query, key = (heads(count, 1).transpose(1, 2).bfloat16() for count in (4, 2))
    compiled = torch.compile(attend, backend="eager", fullgraph=True)
    assert torch.equal(compiled(query, key, key, None, 3), attend(query, key, key, None, 3))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("size", [8, 20])
def test_the_kernel_computes_what_the_mask_does(size: int, is_packed: bool, window: int | None) -> None:
    arguments = [heads(count, seed, size).transpose(1, 2) for count, seed in ((4, 1), (2, 2), (2, 3))]
    expected = [each.clone().requires_grad_() for each in arguments]
    found = [each.to("cuda", torch.bfloat16).requires_grad_() for each in arguments]
    for each in (expected, found):
        documents = DOCUMENTS.to(each[0].device) if is_packed else None
        mixed = attend(*each, document_mask(documents, each[0]), window)
        mixed.float().square().sum().backward()
        each.append(mixed)
    for mine, theirs in zip(found[:3], expected[:3], strict=True):
        torch.testing.assert_close(mine.grad.float().cpu(), theirs.grad, rtol=0.05, atol=0.05)
    torch.testing.assert_close(found[3].float().cpu(), expected[3], rtol=0.05, atol=0.05)
