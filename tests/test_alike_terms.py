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


AROUND = """import torch
from torch import nn
import torch.nn.functional as F
torch.manual_seed(0)
encode = nn.Sequential(
    nn.Linear(32, 128), nn.GELU(), nn.Dropout(0.4), nn.Linear(128, 64)
)
opt = torch.optim.SGD(encode.parameters(), lr=0.005)
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
for step in range(24):
    {given} = torch.randn(32, 32) * 2
    with torch.autocast("cpu", dtype=torch.float16):
        left, right = encode({given}), encode({given})
        scores = left @ right.T / {temperature}
        loss = F.cross_entropy(scores, torch.arange(32))
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
"""


@pytest.mark.parametrize(("given", "temperature"), [("x", 0.07), ("batch", 0.07)])
def test_factors_that_grow_are_normalised_by_their_own_names(
    tmp_path: Path, given: str, temperature: float
) -> None:
    path = tmp_path / "program.py"
    path.write_text(AROUND.format(given=given, temperature=temperature))
    with nanlab.watch(on_fault="record") as trace:
        runpy.run_path(str(path))
    found = trace.culprit
    assert found is not None and found.op in ("mm", "matmul", "div")  # as the course goes
    assert "normalize(left, dim=-1)" in found.fixes[0].code
    assert given != "x" or not any("x.float()" in fix.code for fix in found.fixes)


@pytest.mark.parametrize("held", ["nn.Parameter(torch.zeros(4, 8))", "torch.zeros(4, 8) + 0.0"])
def test_what_an_object_was_made_with_is_not_written_for_what_it_holds(
    tmp_path: Path, held: str
) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import torch\nfrom torch import nn\n"
        "class Prototypes(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.points = nn.Parameter({held})\n"
        "net = Prototypes()\n"
        "with torch.no_grad(): net.points[1:] = 1.0\n"
        "loss = net.points.pow(2).sum(1).sqrt().mean()\n"
        "loss.backward()\n"
    )
    with nanlab.watch(on_fault="record") as trace:
        runpy.run_path(str(path))
    assert trace.culprit is not None and trace.culprit.fixes
    assert not any("zeros(" in fix.code for fix in trace.culprit.fixes)


@pytest.mark.parametrize(
    "mean", ["(x ** p).mean(dim=(-2, -1))", "torch.mean(torch.pow(x, p), dim=(-2, -1))"]
)
def test_a_mean_of_powers_is_bounded_before_it_is_taken(tmp_path: Path, mean: str) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        "import torch\n"
        "p = torch.full((1,), 3.0, requires_grad=True)\n"
        "x = torch.rand(4, 2, 6, 6)\n"
        "x[2] = 0\n"
        "x.requires_grad_()\n"
        f"({mean} ** (1.0 / p)).sum().backward()\n"
    )
    with nanlab.watch(on_fault="record") as trace:
        runpy.run_path(str(path))
    assert trace.culprit is not None
    (fix,) = (f for f in trace.culprit.fixes if "x.clamp_min(1e-6) ** p).mean(" in f.code)
    assert fix.verdict in ("verified", "finite")
