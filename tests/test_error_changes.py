"""The line to change for an exception: named, rewritten in the program's own words, and the program
then runs."""

from __future__ import annotations

import linecache
import textwrap
from pathlib import Path
from typing import Any

import pytest

import nanlab

PROGRAMS = {
    "no_grad": """
        net = nn.Linear(3, 1)
        with torch.no_grad():  # change
            out = net(torch.randn(4, 3))
        out.mean().backward()
    """,
    "frozen": """
        net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        for p in net.parameters():
            p.requires_grad_(False)  # change
        net(torch.randn(2, 3)).mean().backward()
    """,
    "width": """
        net = nn.Sequential(nn.Flatten(), nn.Linear(128, 10))  # change
        net(torch.randn(2, 4, 16))
    """,
    "double": """
        net = nn.Linear(3, 1)
        x = torch.rand(4, 3, dtype=torch.float64)  # change
        net(x)
    """,
    "target": """
        net = nn.Linear(3, 4)
        labels = torch.tensor([0.0, 1.0, 2.0])  # change
        F.cross_entropy(net(torch.randn(3, 3)), labels)
    """,
    "tokens": """
        table = nn.Embedding(10, 4)  # change
        ids = torch.tensor([1, 12])
        table(ids)
    """,
    "classes": """
        head = nn.Linear(4, 3)  # change
        F.cross_entropy(head(torch.randn(2, 4)), torch.tensor([0, 3]))
    """,
    "several": """
        net = nn.Linear(3, 2)
        loss = F.mse_loss(net(torch.randn(4, 3)), torch.zeros(4, 2), reduction="none")  # change
        loss.backward()
    """,
    "numpy": """
        net = nn.Linear(2, 1)
        net(torch.ones(1, 2)).numpy()  # change
    """,
}


def run(path: Path, text: str) -> None:
    path.write_text(text)
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": "__main__"}
    head = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
    exec(head, names)
    exec(compile(text, str(path), "exec"), names)


@pytest.mark.parametrize("name", PROGRAMS)
def test_line_to_change_is_named_and_as_rewritten_lets_the_program_run(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / "program.py"
    text = textwrap.dedent(PROGRAMS[name]).strip() + "\n"
    wanted = next(i for i, line in enumerate(text.splitlines(), 1) if "# change" in line)
    with pytest.raises(Exception, match=r".") as caught, nanlab.watch(on_fault="record"):
        run(path, text)
    told = nanlab.explain(caught.value)
    assert told is not None and told.change is not None
    assert told.change[:2] == (str(path), wanted)
    (edit,) = told.fixes[0].edits
    lines = text.splitlines()
    lines[edit.first - 1 : edit.last] = edit.rows()
    run(path, "\n".join(lines) + "\n")


def test_line_that_raised_is_said_alone_where_no_other_is_known(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as caught, nanlab.watch(on_fault="record"):
        run(tmp_path / "program.py", "torch.stack([torch.zeros(3), torch.zeros(4)])\n")
    told = nanlab.explain(caught.value)
    assert told is not None and told.change is None
    assert "change" not in str(told)
