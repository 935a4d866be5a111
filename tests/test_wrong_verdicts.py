"""Fixes that the failing step alone cannot tell from right ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nanlab
from nanlab.fixes.match import rewritings

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


@pytest.mark.examples(every=0)
def test_lengths_that_torch_writes_unseen_are_what_they_were(tmp_path: Path) -> None:
    first = verdicts(tmp_path, LENGTHS)
    assert "verified" in first.values()
    assert all(verdicts(tmp_path, LENGTHS) == first for _ in range(3))


LARGE = """
import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
model = nn.Sequential(nn.TransformerEncoder(layer, 3), nn.Linear(32, 5))
logits = model(torch.randn(8, 12, 32)).mean(1) * 0
unit = logits / logits.norm(dim=-1, keepdim=True)
loss = nn.functional.cross_entropy(unit, torch.randint(0, 5, (8,)))
loss.backward()
"""


def test_what_leaves_a_large_model_without_any_gradient_is_not_verified(tmp_path: Path) -> None:
    found = culprit_of(tmp_path, LARGE).fixes
    assert {fix.verdict for fix in found} == {"finite"}
    assert "no parameter gets a gradient" in found[0].why


EMPTY_ROW = """
import torch

torch.manual_seed(0)
s = torch.nn.Parameter(torch.randn(4, 4))
mask = ~torch.eye(4, dtype=torch.bool)
mask[2] = False
positive = torch.where(mask, s.exp(), 0.0).sum(1)
loss = -(positive.log() - s.exp().sum(1).log()).mean()
loss.backward()
"""


@pytest.mark.parametrize(
    "sums", ["torch.where(mask, s.exp(), 0.0)", "s.exp().masked_fill(~mask, 0)"]
)
def test_a_loss_of_a_number_that_stands_for_an_infinity_is_finite_alone(
    tmp_path: Path, sums: str
) -> None:
    text = EMPTY_ROW.replace("torch.where(mask, s.exp(), 0.0)", sums)
    fixes = culprit_of(tmp_path, text).fixes
    far = [fix for fix in fixes if "e+30" in fix.code]
    assert all(fix.verdict == "finite" for fix in far)
    assert fixes[0].verified
    assert not any("e+30" in fix.why for fix in fixes)


DEAD = """
import torch

torch.manual_seed(0)
hidden, head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 4)
torch.nn.init.zeros_(head.weight)
torch.nn.init.zeros_(head.bias)
q = head(hidden(torch.randn(5, 3)).relu())
unit = q / q.norm(dim=-1, keepdim=True)
loss = (LOSS - 1).pow(2).mean()
loss.backward()
"""


@pytest.mark.parametrize("loss", ["(unit[:, :2] * unit[:, 2:])", "unit.prod(-1)"])
def test_a_fix_with_which_no_parameter_gets_a_gradient_is_not_verified(
    tmp_path: Path, loss: str
) -> None:
    fixes = culprit_of(tmp_path, DEAD.replace("LOSS", loss)).fixes
    assert any(fix.verdict == "finite" for fix in fixes)
    assert not any(fix.verified and fix.gradient_max == 0 for fix in fixes)


LAST_BATCH = """
import torch

torch.manual_seed(0)
net, x = torch.nn.Linear(3, 2), torch.randn(9, 3)
for i in range(0, 9, 4):
    h = net(x[i : i + 4])
    loss = (NORMALISED * torch.tensor([1.0, -2.0])).exp().mean()
    net.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in net.parameters():
            p -= 0.1 * p.grad
"""


@pytest.mark.parametrize("of", ["h / (1 + h.std(0))", "h / (1 + h.var(0))"])
def test_what_changes_the_step_before_which_was_healthy_is_not_verified(
    tmp_path: Path, of: str
) -> None:
    fixes = culprit_of(tmp_path, LAST_BATCH.replace("NORMALISED", of)).fixes
    biased = [fix for fix in fixes if "correction=0" in fix.code]
    assert biased
    assert not any(fix.verified for fix in biased)
    assert any("healthy values of step 1" in fix.why for fix in biased)


@pytest.mark.parametrize("log", ["torch.log(above / below)", "(above / below).log2()"])
def test_no_exponential_is_written_where_its_logarithm_is_taken(log: str) -> None:
    text = f"above = x.diagonal().exp()\nbelow = x.exp().sum(1)\nloss = -{log}.mean()\n"
    made = [r.text for r in rewritings(text, 1)]
    assert made
    assert not any("torch.exp" in each for each in made)


SHARES = """
import torch

torch.manual_seed(0)
score = torch.nn.Parameter(torch.randn(4, 5))
score.data[1, 2] = 120.0
weight = torch.exp(score)
share = weight / WHOLE
loss = (share * torch.arange(5.0)).sum(1).pow(2).mean()
loss.backward()
"""


@pytest.mark.parametrize("whole", ["weight.sum(1, keepdim=True)", "weight.sum(-1)[:, None]"])
def test_largest_number_of_a_dtype_is_not_right_in_a_sum(tmp_path: Path, whole: str) -> None:
    fixes = culprit_of(tmp_path, SHARES.replace("WHOLE", whole)).fixes
    assert fixes[0].verified
    assert not any(fix.verified for fix in fixes if "safe.exp" in fix.code)


def test_largest_number_of_a_dtype_may_be_divided_by(tmp_path: Path) -> None:
    text = SHARES.replace("120.0", "-120.0").replace(
        "share = weight / WHOLE", "share = 1 / (1 + torch.exp(-score))"
    )
    fixes = culprit_of(tmp_path, text).fixes
    assert any(fix.verified for fix in fixes if "safe.exp" in fix.code)


FUNCTIONAL = """
import torch
from torch.func import grad_and_value, vmap

torch.manual_seed(0)


def loss_of(w, x, y):
    mean, var = (x @ w).unbind(-1)
    var = var.relu()
    return (0.5 * var.log() + 0.5 * (y - mean) ** 2 / var).mean()


w, x = torch.randn(2, 3, 2), torch.randn(8, 3)
y = x[:, 0]
for _ in range(2):
    GRADIENTS
    w = w - 0.1 * g
"""


@pytest.mark.parametrize(
    "gradients",
    [
        "g, loss = vmap(grad_and_value(loss_of), (0, None, None))(w, x, y)",
        "g, loss = grad_and_value(lambda w, x, y: loss_of(w.sum(0), x, y))(w, x, y)",
    ],
)
def test_a_value_that_is_infinite_still_is_not_called_finite(
    tmp_path: Path, gradients: str
) -> None:
    path = tmp_path / "program.py"
    path.write_text(text := FUNCTIONAL.replace("GRADIENTS", gradients))
    with nanlab.watch() as trace:
        exec(compile(text, str(path), "exec"), {"__name__": "program"})
    fixes = [fix for finding in trace.findings for fix in finding.fixes]
    assert fixes
    assert not any("inf" in fix.why for fix in fixes if fix.verdict == "finite")


LOST = """
import torch

torch.manual_seed(0)
layer = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for i in range(STEPS):
    optimizer.zero_grad()
    loss = LOSS
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("steps", [3, 5])  # the first is folded away
@pytest.mark.parametrize(
    ("loss", "comes_back"),
    [
        ("(layer(torch.randn(3, 4).half()) * 1e-5).pow(2).mean()", False),
        ("(layer(torch.randn(3, 4).half()) / 1e5).pow(2).sum()", False),
        ("(layer(torch.randn(3, 4).half()) * 1e4).mul(1e-8).sum()", True),
    ],
)
def test_a_fix_that_brings_no_lost_gradient_back_is_not_verified(
    tmp_path: Path, loss: str, comes_back: bool, steps: int
) -> None:
    found = culprit_of(tmp_path, LOST.replace("LOSS", loss).replace("STEPS", str(steps)))
    assert found.cause == "dtype-underflow"
    tried = [fix for fix in found.fixes if fix.edits]
    assert any(fix.verified for fix in tried) is comes_back
    for fix in tried:
        revived = [bool(g.any()) for g in nanlab.last.replay(fix).gradients.values()]
        assert not fix.verified or any(revived)
