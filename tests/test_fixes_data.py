"""Missing values, in targets and inputs: what is left out or filled, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import nanlab

PROGRAM = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, OUT))
opt = torch.optim.SGD(model.parameters(), lr=1e-3)
criterion = nn.CRITERION


def train(x, y):
    opt.zero_grad()
BODY
    loss.backward()
    opt.step()
    return loss
"""
INLINE = "    loss = criterion(model(x), y)"
APART = "    out = model(x)\n    loss = criterion(out, y)"
PRESENT = "compute the loss only where the target is present"


def watched(
    path: Path, body: str, criterion: str = "MSELoss()", bad: str = "y[4, 0]", out: int = 1
) -> tuple[nanlab.Finding, dict[str, Any]]:
    """The finding of the third of three batches, in which one number is missing."""
    text = PROGRAM.replace("BODY", body).replace("CRITERION", criterion).replace("OUT", str(out))
    path.write_text(text)
    names: dict[str, Any] = {"__name__": path.stem}
    exec(compile(text, str(path), "exec"), names)
    torch.manual_seed(1)
    data = [(torch.randn(8, 5), torch.rand(8, out)) for _ in range(3)]
    x, y = data[2]
    exec(f"{bad} = float('nan')", {"x": x, "y": y})
    with nanlab.watch(names["model"], on_fault="record") as trace:
        for x, y in data:
            names["train"](x, y)
    assert trace.culprit is not None
    return trace.culprit, names


@pytest.mark.parametrize(
    ("body", "criterion", "written"),
    [
        (APART, "MSELoss()", "loss = criterion(out[torch.isfinite(y)], y[torch.isfinite(y)])"),
        (INLINE, "HuberLoss(delta=0.1)", "criterion(model(x)[torch.isfinite(y)], y["),
        (APART, "BCEWithLogitsLoss()", "criterion(out[torch.isfinite(y)], y["),
        ("    loss = F.mse_loss(model(x), y)", "MSELoss()", "F.mse_loss(model(x)[torch.isfinite("),
        (
            "    if x.dim() == 1: loss = 0 * x.sum()\n    else: loss = criterion(model(x), y)",
            "MSELoss()",
            "else: loss = criterion(model(x)[torch.isfinite(y)], y[torch.isfinite(y)])",
        ),
    ],
)
def test_a_loss_is_told_to_leave_out_the_targets_that_are_missing_in_the_words_of_its_line(
    body: str, criterion: str, written: str, tmp_path: Path
) -> None:
    found, _ = watched(tmp_path / "present.py", body, criterion)
    assert found.cause == "nan-in-target"
    first, *others = found.fixes
    assert (first.title, first.verdict) == (PRESENT, "finite")
    assert first.why == "1 of 8 targets is left out, and the others weigh more"
    assert written in first.code
    assert "torch.nn.functional" not in first.code
    assert [fix.title for fix in others] == ["leave out sample 4, where `y` is not finite"]


def test_what_counts_fewer_of_the_data_out_comes_first(tmp_path: Path) -> None:
    found, _ = watched(tmp_path / "partial.py", APART, bad="y[4, 1]", out=3)
    assert [fix.why.split(" left out")[0] for fix in found.fixes] == [
        "1 of 24 targets is",
        "1 of 8 samples is",
    ]


def test_a_sum_over_the_targets_that_are_present_is_right(tmp_path: Path) -> None:
    found, _ = watched(tmp_path / "summed.py", APART, "MSELoss(reduction='sum')")
    assert (found.fixes[0].title, found.fixes[0].verdict) == (PRESENT, "verified")


@pytest.mark.parametrize("of", ["y", "torch.log1p(y)"])
def test_a_target_that_is_made_up_is_not_right(of: str, tmp_path: Path) -> None:
    found, _ = watched(tmp_path / "made_up.py", f"    loss = (model(x) - {of}).abs().mean()")
    assert not any(fix.verified and "impute" in fix.title for fix in found.fixes)
    for fix in found.fixes:
        if "impute" in fix.title:
            assert fix.why == "the missing targets are made up, and the model learns them"


def test_a_missing_input_is_filled_or_its_sample_left_out(tmp_path: Path) -> None:
    found, _ = watched(tmp_path / "inputs.py", INLINE, bad="x[4, 2]")
    assert found.cause == "nan-in-input"
    assert [(fix.verdict, fix.title.split(";")[0]) for fix in found.fixes] == [
        ("verified", "replace missing values by 0"),
        ("finite", "leave out sample 4, where `x` is not finite"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "torch.distributions.Categorical(logits=torch.tensor([nan, 0.0]))",
        "torch.multinomial(torch.as_tensor([[0.5, nan]]) / 2, 1)",
        "table = [0.5, nan]; torch.distributions.Bernoulli(torch.tensor(table))",
    ],
)
def test_what_a_program_ends_by_is_no_target_where_no_prediction_meets_it(
    line: str, tmp_path: Path
) -> None:
    path = tmp_path / "ends.py"
    path.write_text(f"import torch\nnan = float('nan')\n{line}\n")
    with pytest.raises((ValueError, RuntimeError)), nanlab.watch(on_fault="record") as trace:
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "ends"})
    assert trace.culprit is not None
    assert trace.culprit.cause == "nan-in-input" and "the input holds" in trace.culprit.title
    codes = [fix.code for fix in trace.culprit.fixes]
    assert not any("tensor(torch.nan_to_num" in code or "loss_fn" in code for code in codes)


def test_a_target_of_a_loss_that_nobody_differentiates_is_one() -> None:
    def validate() -> None:
        error = (model(torch.ones(1, 2)) - y).square().mean()
        if not error.isfinite():
            raise ArithmeticError

    model, y = torch.nn.Linear(2, 1), torch.tensor([[float("nan")]])
    with pytest.raises(ArithmeticError), nanlab.watch(model, on_fault="record") as trace:
        validate()
    assert trace.culprit is not None and trace.culprit.cause == "nan-in-target"
