"""What is mended in one term of a statement is mended in its siblings, which fail another time."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import nanlab
from nanlab.trace import Trace

PROGRAM = """import torch
from torch import nn
torch.manual_seed(0)
net = nn.Linear(20, 1).to(torch.{dtype})
x = torch.randn(32, 20).to(torch.{dtype}) * {scale}
y = (x[:, 0] > 0).to(torch.{dtype})
net.weight.data[0, 0] = 1.0
p = torch.sigmoid(net(x).squeeze(-1))
loss = {loss}
loss.backward()
"""
BY_FUNCTION = "-(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()"
BY_METHOD = "-(y * p.log() + (1.0 - y) * (1.0 - p).log()).mean()"


def watched(tmp_path: Path, dtype: str, scale: float, loss: str) -> Trace:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(dtype=dtype, scale=scale, loss=loss))
    with nanlab.watch(on_fault="record") as trace:
        runpy.run_path(str(path))
    return trace


@pytest.mark.parametrize("loss", [BY_FUNCTION, BY_METHOD])
@pytest.mark.parametrize(("dtype", "scale"), [("float16", 5.0), ("bfloat16", 6.0)])
def test_the_form_that_mends_all_of_them_is_first(
    tmp_path: Path, dtype: str, scale: float, loss: str
) -> None:
    trace = watched(tmp_path, dtype, scale, loss)
    assert trace.culprit is not None and trace.culprit.cause == "log-of-zero"
    first = trace.culprit.fixes[0]
    assert first.verified and "sigmoid(" in first.code and "log(" not in first.code
    assert trace.cure is not None and trace.cure.fixes[0].code == first.code


def test_the_loss_of_the_logits_is_offered(tmp_path: Path) -> None:
    trace = watched(tmp_path, "float16", 5.0, BY_FUNCTION)
    assert trace.culprit is not None
    known = [fix for fix in trace.culprit.fixes if "binary_cross_entropy_with" in fix.code]
    assert known and known[0].verified
