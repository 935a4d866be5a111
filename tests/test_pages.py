"""A model in one file or cell, its loss in another: fixes are those of one file."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nanlab
from nanlab.fixes.pages import Pages

MODEL = '''import torch
from torch import nn


class Classifier(nn.Module):
    """Sure of its last class: the softmax of the others is 0."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 3)
        with torch.no_grad():
            self.body.bias.copy_(torch.tensor([0.0, 0.0, 200.0]))

    def forward(self, x):
        return torch.softmax(self.body(x), dim=1)


class Logits(Classifier):
    def forward(self, x):
        return self.body(x)


class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.var = nn.Linear(5, 1), nn.Linear(5, 1)
        with torch.no_grad():
            self.var.bias.fill_(0.0)

    def forward(self, x):
        return self.mean(x), torch.relu(self.var(x))


def shares(x):
    e = torch.exp(x)
    return e / e.sum(1, keepdim=True)
'''
HEAD = """import torch
from {module} import Classifier, Logits, Regression, shares

torch.manual_seed(0)
x = torch.randn(16, 5)


def step():
"""
STEPS = {
    "the softmax that a module ends in": (
        """
    p = net(x)
    loss = -torch.log(p[:, 0]).mean()
    loss.backward()
""",
        "Classifier",
        "return self.body(x)\nloss = -torch.log_softmax(p, 1)[:, 0].mean()",
    ),
    "a variance that a module gives": (
        """
    mean, var = net(x)
    loss = (0.5 * torch.log(var) + (x[:, :1] - mean) ** 2 / (2 * var)).mean()
    loss.backward()
""",
        "Regression",
        "return self.mean(x), self.var(x).relu().clamp_min(1e-3)",
    ),
    "a softmax by hand in a function": (
        """
    logits = net(x)
    loss = -torch.log(shares(logits)[:, 0]).mean()
    loss.backward()
""",
        "Logits",
        "loss = -torch.log_softmax(logits, 1)[:, 0].mean()",
    ),
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))


@pytest.mark.parametrize("what", STEPS)
def test_what_another_file_makes_is_rewritten_there(what: str, folder: Path) -> None:
    body, model, code = STEPS[what]
    name = f"pages_{model.lower()}"
    (folder / f"{name}_model.py").write_text(MODEL)
    head = HEAD.format(module=f"{name}_model")
    (folder / f"{name}.py").write_text(f"{head}    net = {model}(){body}")
    program = importlib.import_module(name)
    with nanlab.watch(on_fault="record") as trace:
        program.step()
    assert trace.cure is not None and trace.cure.verified
    assert trace.cure.code == code
    for edit in trace.cure.edits:
        rows = Path(edit.file).read_text().splitlines()[edit.first - 1 : edit.last]
        assert "\n".join(rows) == edit.old


def test_pages_hold_of_other_files_what_ran_and_know_their_lines() -> None:
    text = "import os\n\n\ndef f(x):\n    return x\n\n\ndef g(x):\n    return -x\n"
    pages = Pages.of("loss.py", "y = g(1)\n", {"loss.py": [1], "model.py": [9]}, lambda _: text)
    assert "def g" in pages.text and "def f" not in pages.text
    assert pages.text.splitlines()[pages.line("model.py", 9) - 1] == "    return -x"
    assert pages.place(pages.line("model.py", 8), pages.line("model.py", 9)) == ("model.py", 8, 9)
    assert pages.place(*[pages.line("loss.py", 1)] * 2) == ("loss.py", 1, 1)
    assert pages.place(pages.line("model.py", 9), pages.line("loss.py", 1)) is None
    assert pages.line("data.py", 1) == 0
