"""What a fix makes a function return is read elsewhere, too: the fix says so."""

from __future__ import annotations

from pathlib import Path

import pytest

import nanlab

MODULE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(2, 3)

    def forward(self, x):
        return self.scores(x).softmax(-1)

def loss_of(p, y):
    return -p[torch.arange(len(y)), y].log().mean()

ELSEWHERE

def train(net):
    x = torch.ones(2, 2)
    x[1] *= 1000.0
    loss = loss_of(net(x), net.scores(x).argmin(-1))
    loss.backward()

torch.manual_seed(0)
net = Net()
train(net)
"""
FUNCTION = """
import torch

def shares(x):
    return x.softmax(-1)

def loss_of(p, y):
    return -p[torch.arange(len(y)), y].log().mean()

ELSEWHERE

def train(x):
    loss = loss_of(shares(x), x.argmin(-1))
    loss.backward()

train(torch.tensor([[1.0, 2.0], [0.0, 1000.0]], requires_grad=True))
"""


def titles(program: str, elsewhere: str, tmp_path: Path) -> list[str]:
    """Titles of the fixes that replace the softmax in the function around it."""
    (path := tmp_path / "program.py").write_text(program.replace("ELSEWHERE", elsewhere))
    with nanlab.watch(on_fault="record") as trace:
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "program"})
    assert trace.culprit is not None and trace.culprit.cause == "log-of-zero"
    return [fix.title for fix in trace.culprit.fixes if fix.verified and len(fix.edits) > 1]


@pytest.mark.parametrize(
    ("program", "elsewhere"),
    [
        (MODULE, "def confident(net, x):\n    return net(x).amax(-1) > 0.5"),
        (
            MODULE,
            "def confident(model, x):\n    return model(x).amax(-1) > 0.5\n\n"
            "def report(net, x):\n    return confident(net, x)",
        ),
        (FUNCTION, "def confident(x):\n    return shares(x).amax(-1) > 0.5"),
    ],
)
def test_a_reader_that_the_step_did_not_run_is_named(
    program: str, elsewhere: str, tmp_path: Path
) -> None:
    line = program[: program.index("ELSEWHERE")].count("\n") + 2
    found = titles(program, elsewhere, tmp_path)
    assert found and all(f"line {line} reads what it changes" in title for title in found)


@pytest.mark.parametrize("program", [MODULE, FUNCTION])
def test_without_another_reader_nothing_is_said(program: str, tmp_path: Path) -> None:
    found = titles(program, "def unrelated(x):\n    return torch.relu(x)", tmp_path)
    assert found and not any("reads what it changes" in title for title in found)
