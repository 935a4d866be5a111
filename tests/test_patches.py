"""What a fix writes is complete: ``patch`` and ``git apply`` take its diff, and the file runs."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

import nanlab
from nanlab.__main__ import main
from nanlab.program.imports import Rows, computing, imported

# how a file begins, and the line below which nanlab is imported
HEADS = [
    ("import torch, torch.nn as nn\n", [1]),
    (
        '"""Of\nit."""\nfrom __future__ import annotations\nimport torch\nfrom torch import (\n'
        "    nn,\n    optim,\n)\n",
        [8],
    ),
    ("import torch\nfrom torch import nn\nimport nanlab\n", []),
    ("import torch\nfrom torch import nn\ndef f():\n    import nanlab\nimport os\n", [2]),
]
BODY = """
torch.manual_seed(0)
model = nn.Linear(3, 2)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.zeros(4, 2)
for i in range(2):
    r = x / (x * x).sum(1, keepdim=True)
    out = model(torch.ones(4, 3))
    loss = (out * r).sum() + ((out - out).sum() ** 0.5)
    opt.zero_grad(); loss.backward(); opt.step()
assert all(bool(p.isfinite().all()) for p in model.parameters())"""


@pytest.mark.parametrize(("head", "below"), HEADS)
def test_a_cure_imports_once_what_it_names_and_is_applied_by_tools(
    head: str, below: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # of some files nothing ends the last line
    program, text = tmp_path / "program.py", head + BODY + "\n" * (below != [1])
    program.write_text(text)
    assert main(["run", "--save", "out", "program.py"]) == 3
    cure = nanlab.load("out/nanlab.nanlab").cure
    assert cure is not None and sum("nanlab." in edit.text for edit in cure.edits) == 2
    assert [edit.last for edit in cure.edits if edit.imports] == below
    (tmp_path / "cure.diff").write_text(cure.diff())
    for tool in (["git", "apply", "cure.diff"], ["patch", "-s", "-p1", "-i", "cure.diff"]):
        if shutil.which(tool[0]) is None:
            continue
        program.write_text(text)
        subprocess.run(tool, check=True)
        new = program.read_text()
        assert new.endswith("\n") == text.endswith("\n")
        assert ("\n" + new).count("\nimport nanlab\n") == 1
        runpy.run_path("program.py")


@pytest.mark.parametrize("given", [True, False])
def test_a_cell_imports_what_its_notebook_does_not_know(
    given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell = SimpleNamespace(user_ns={"torch": None} | ({"nanlab": None} if given else {}))
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    text = "from math import pi\nx = torch.zeros(3)\ny = x.sqrt()\n"
    edits = [Rows("In[3]", 3, 3, "y = nanlab.safe.sqrt(x)")]
    found = [*imported(edits, lambda file: text)]
    new = Rows("In[3]", 1, 1, "from math import pi\nimport nanlab")
    assert found == ([] if given else [new])
    assert computing([*edits, new], lambda file: text) == edits
