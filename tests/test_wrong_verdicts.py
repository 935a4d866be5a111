"""Fixes that the failing step alone cannot tell from right ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nanlab

LENGTHS = """
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(0)
rnn, score = torch.nn.GRU(3, 4, batch_first=True), torch.nn.Linear(4, 1)
x = torch.randn(3, 5, 3)
h, _ = rnn(pack_padded_sequence(x, torch.tensor([2, 1, 5]), True, enforce_sorted=False))
h, lengths = pad_packed_sequence(h, batch_first=True)
mask = torch.arange(5)[None] < (lengths - 1)[:, None]
weights = score(h).squeeze(-1).masked_fill(~mask, float("-inf")).softmax(-1)
(weights[..., None] * h).pow(2).sum().backward()
"""


def culprit_of(tmp_path: Path, text: str) -> Any:
    """The culprit of a program."""
    path = tmp_path / "program.py"
    path.write_text(text)
    with nanlab.watch(on_fault="record") as trace:
        exec(compile(text, str(path), "exec"), {"__name__": "program"})
    assert trace.culprit is not None
    return trace.culprit


def verdicts(tmp_path: Path, text: str) -> dict[str, str]:
    """The verdict on each fix, by what it writes."""
    return {fix.code: fix.verdict for fix in culprit_of(tmp_path, text).fixes}


def test_lengths_that_torch_writes_unseen_are_what_they_were(tmp_path: Path) -> None:
    first = verdicts(tmp_path, LENGTHS)
    assert "verified" in first.values()
    assert all(verdicts(tmp_path, LENGTHS) == first for _ in range(3))
