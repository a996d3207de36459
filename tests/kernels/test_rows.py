"""Rows of a value where they lie: what kernels compute from `place` are the value's rows, and heads are not copied."""

import pytest
import torch

from monograph.kernels.rows import find_spaced_rows

WIDE = torch.arange(2 * 3 * 40, dtype=torch.float32).view(2, 3, 40)
VALUES = {
    "dense": (WIDE, False),
    "one row": (WIDE[0, 0], False),
    "one row of several dims": (WIDE[:1, :1], False),
    "a part of rows": (WIDE[..., 8:24], False),
    "heads in a part of rows": (WIDE[..., 8:24].unflatten(-1, (4, 4)), False),
    "every other sequence": (WIDE[:, ::2], False),
    "heads first": (WIDE.unflatten(-1, (4, 10)).transpose(1, 2), True),
    "channels apart": (WIDE.transpose(1, 2), True),
    "no rows": (WIDE[:, :0], False),
}


@pytest.mark.parametrize("name", VALUES)
def test_rows_are_found_where_they_lie(name):
    value, is_copied = VALUES[name]
    rows = find_spaced_rows(value)
    inner, outer_step, step = rows.place
    starts = [row // inner * outer_step + row % inner * step for row in range(rows.rows)]
    begin, columns = rows.values.storage_offset(), value.shape[-1]
    memory = torch.as_strided(rows.values, (rows.values.untyped_storage().nbytes() // 4,), (1,), 0)
    found = [memory[begin + start : begin + start + columns].tolist() for start in starts]
    assert found == value.reshape(-1, columns).tolist()
    assert (rows.values.data_ptr() != value.data_ptr()) == is_copied
