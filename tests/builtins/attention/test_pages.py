from __future__ import annotations

import pytest
import torch

from corefw.builtins.attention.pages import block_rows, gather_pages, write_pages


def test_keys_and_values_land_at_their_slots_and_nowhere_else() -> None:
    pages = torch.zeros(4, 2, 8, 6)
    key, value = torch.randn(3, 2, 3), torch.randn(3, 2, 3)
    write_pages(key, value, pages, torch.tensor([9, 31, 16]))
    expected = torch.zeros_like(pages)
    for token, (page, offset) in enumerate([(1, 1), (3, 7), (2, 0)]):
        expected[page, :, offset] = torch.cat((key[token], value[token]), -1)
    assert torch.equal(pages, expected)


def test_negative_slots_are_skipped() -> None:
    pages = torch.zeros(2, 1, 4, 2)
    write_pages(torch.ones(3, 1, 1), torch.ones(3, 1, 1), pages, torch.tensor([-1, 5, -1]))
    assert pages.sum() == 2
    assert pages[1, 0, 1].tolist() == [1, 1]


def test_a_cache_that_cannot_be_written_in_place_is_refused() -> None:
    pages = torch.zeros(2, 4, 3, 2).transpose(1, 2)
    with pytest.raises(RuntimeError, match="view"):
        write_pages(torch.ones(1, 3, 1), torch.ones(1, 3, 1), pages, torch.tensor([1]))


def test_gathering_undoes_the_block_table() -> None:
    pages = torch.randn(6, 3, 4, 10)
    table = torch.tensor([[5, 2], [1, 0]], dtype=torch.int32)
    gathered = gather_pages(pages, block_rows(table, [0, 0], 2, 3), 2, 7)
    assert gathered.shape == (2, 3, 7, 10)
    assert torch.equal(gathered[0], torch.cat((pages[5], pages[2]), 1)[:, :7])
    assert torch.equal(gathered[1, :, :4], pages[1])


def test_columns_beyond_the_table_are_the_null_block() -> None:
    pages = torch.randn(6, 1, 4, 2)
    gathered = gather_pages(pages, block_rows(torch.tensor([[5, 2]]), [1], 3, 1), 1, 12)
    assert torch.equal(gathered[0], torch.cat((pages[2], pages[0], pages[0]), 1))


def test_int8_keeps_each_tokens_keys_and_values_to_within_half_a_step_of_their_own_scale() -> None:
    pages = torch.full((3, 2, 4, 16 + 8), -1, dtype=torch.int8)
    key, value = torch.randn(5, 2, 8) * torch.tensor([1e-3, 1.0, 50.0, 0.0, 1.0])[:, None, None], torch.randn(5, 2, 8)
    write_pages(key, value, pages, torch.tensor([4, 5, 6, 7, 8]))
    gathered = gather_pages(pages, block_rows(torch.tensor([[1, 2]]), [0], 2, 2), 1, 5)
    assert gathered.dtype == torch.float32
    for got, wanted in ((gathered[0, :, :, :8], key), (gathered[0, :, :, 8:], value)):
        steps = wanted.abs().amax(-1, keepdim=True) / 127
        assert ((got.transpose(0, 1) - wanted).abs() <= steps * 0.501).all()


def test_int8_rows_of_other_tokens_stay_as_they_are() -> None:
    pages = torch.full((2, 1, 4, 4 + 8), 7, dtype=torch.int8)
    write_pages(torch.ones(1, 1, 2), torch.ones(1, 1, 2), pages, torch.tensor([5]))
    changed = (pages != 7).any(-1).nonzero().tolist()
    assert changed == [[1, 0, 1]]
