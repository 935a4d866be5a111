"""Each way in which people write a training loop, under guard in a cell and in a script: the step of
the fault is replayed bit for bit and told by its line and its number, or guard says that it could
not be."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from torch.optim.optimizer import register_optimizer_step_post_hook

import nanlab
from nanlab.__main__ import main

BAD = 12  # the step of the fault
SETUP = """
import random
import numpy as np
import torch
from torch import nn

random.seed(0); np.random.seed(0); torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
opt = torch.optim.Adam(model.parameters())
data = [torch.randn(16, 8) for _ in range(40)]

def length(out, fails):
    return (out * 0 if fails else out).pow(2).sum(1).sqrt().mean()  # BAD
"""
PLAIN = """
    opt.zero_grad()
    loss = length(model(x), i == 12)
    loss.backward()
    opt.step()
"""
PROGRAMS = {
    "for": "for i, x in enumerate(data):" + PLAIN,
    "while": "i = 0\nwhile i < 20:\n    x = data[i]" + PLAIN + "    i += 1\n",
    "zip": "for i, x in zip(range(40), data):" + PLAIN,
    "next": """
batches = iter(data)
for i in range(20):
    x = data[i]"""
    + PLAIN,
    "epochs": """
for epoch in range(3):
    for j, x in enumerate(data[:5]):
        opt.zero_grad()
        loss = length(model(x), epoch == 2 and j == 2)
        loss.backward()
        opt.step()
""",
    "function": "def train(model, opt, data):\n    for i, x in enumerate(data):"
    + textwrap.indent(PLAIN, "    ")
    + "\ntrain(model, opt, data)\n",
    "method": "class Trainer:\n    def __init__(self):\n        self.seen = 0\n    def fit(self):\n"
    "        for i, x in enumerate(data):\n            self.seen += 1"
    + textwrap.indent(PLAIN, "        ")
    + "\nTrainer().fit()\n",
    "accumulated": """
for i, x in enumerate(data):
    loss = length(model(x), i == 37) / 3
    loss.backward()
    if i % 3 == 2:
        opt.step()
        opt.zero_grad()
""",
    "clipped and scheduled": """
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 40)
for i, x in enumerate(data):
    opt.zero_grad()
    loss = length(model(x), i == 12)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    scheduler.step()
""",
    "adversarial": """
critic = nn.Linear(4, 1)
opt_critic = torch.optim.Adam(critic.parameters())
for i, x in enumerate(data):
    fake = model(x)
    opt_critic.zero_grad()
    (critic(fake.detach()).mean() - critic(torch.randn(16, 4)).mean()).backward()
    opt_critic.step()
    opt.zero_grad()
    loss = length(fake, i == 12) - critic(fake).mean()
    loss.backward()
    opt.step()
""",
    "critic first": """
critic = nn.Linear(4, 1)
opt_critic = torch.optim.Adam(critic.parameters())
for i, x in enumerate(data):
    for k in range(3):
        opt_critic.zero_grad()
        loss = length(critic(model(x).detach()), i == 12 and k == 1)
        loss.backward()
        opt_critic.step()
    opt.zero_grad()
    critic(model(x)).mean().backward()
    opt.step()
""",
    "critic in turns": """
critic = nn.Linear(4, 1)
opt_critic = torch.optim.Adam(critic.parameters())
for i, x in enumerate(data):
    for k in range(3):
        opt_critic.zero_grad()
        critic(model(x).detach()).pow(2).mean().backward()
        opt_critic.step()
    opt.zero_grad()
    loss = length(model(x), i == 12) + critic(model(x)).mean()
    loss.backward()
    opt.step()
""",
    "recurrent": """
cell, state = nn.GRUCell(8, 16), torch.zeros(16, 16)
head = nn.Linear(16, 4)
opt = torch.optim.SGD([*cell.parameters(), *head.parameters()], 0.1)
for i, x in enumerate(data):
    state = cell(x, state.detach())
    opt.zero_grad()
    loss = length(head(state), i == 12)
    loss.backward()
    opt.step()
""",
    "augmented": """
for i, x in enumerate(data):
    x = x[:, np.random.permutation(8)] * random.choice([-1, 1]) + 0.1 * torch.randn_like(x)"""
    + PLAIN,
    "autocast": """
for i, x in enumerate(data):
    opt.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        out = model(x)
    loss = length(out.float(), i == 12)
    loss.backward()
    opt.step()
""",
    "averaged": """
average = torch.optim.swa_utils.AveragedModel(model)
for i, x in enumerate(data):"""
    + PLAIN
    + "    average.update_parameters(model)\n",
    "loader": """
rows = torch.utils.data.TensorDataset(torch.stack(data).flatten(0, 1))
i = 0
for (x,) in torch.utils.data.DataLoader(rows, 16, shuffle=True):"""
    + PLAIN
    + "    i += 1\n",
    "lbfgs": """
opt = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=3)
for i, x in enumerate(data):
    def closure():
        opt.zero_grad()
        loss = length(model(x), i == 12)
        loss.backward()
        return loss
    opt.step(closure)
""",
    "scaled": """
scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
for i, x in enumerate(data):
    opt.zero_grad()
    loss = length(model(x), i >= 12)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
""",
}
UNREPLAYABLE = {
    "popped": (
        "queue = list(enumerate(data * 3))\nwhile queue:\n    i, x = queue.pop(0)" + PLAIN,
        "queue.pop",
    ),
    "drawn from an iterator": (
        "batches = iter(data)\nfor i in range(20):\n    x = next(batches)" + PLAIN,
        "next(batches)",
    ),
    "yields": (
        "def losses():\n    for i, x in enumerate(data):"
        + textwrap.indent(PLAIN, "    ")
        + "        yield loss.item()\n\nfor value in losses():\n    pass\n",
        "yields",
    ),
    "awaits": (
        "import asyncio\nasync def train():\n    for i, x in enumerate(data):\n"
        "        await asyncio.sleep(0)"
        + textwrap.indent(PLAIN, "    ")
        + "\nimport threading\nfailed = []\ndef drive(coroutine):\n    try:\n"
        "        while True:\n            coroutine.send(None)\n    except StopIteration:\n"
        "        pass\ndrive(train())\n",
        "awaits",
    ),
}


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext nanlab", silent=True)
    yield shell
    shell.run_cell("%unload_ext nanlab", silent=True)
    InteractiveShell.clear_instance()


def told(trace: nanlab.Trace | None) -> str:
    """What guard says of the step, and of its fault where the replay is the step."""
    assert trace is not None and trace.guarded is not None
    if not trace.guarded.identical:
        return str(trace.guarded)
    culprit = trace.culprit
    assert culprit is not None
    return f"{culprit.cause} in step {culprit.step}: {culprit.source.rpartition('#')[2]}"


def in_a_cell(program: str, shell: InteractiveShell) -> str:
    nanlab.last = None
    with capture_output():
        shell.run_cell(SETUP, store_history=True)
        shell.run_cell("%%nanwatch --guard model\n" + program, store_history=True)
    assert all(bool(p.isfinite().all()) for p in shell.user_ns["model"].parameters())
    return told(nanlab.last)


def in_a_script(program: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    nanlab.last, file = None, folder / "program_of_a_user.py"
    weights = "print(all(bool(p.isfinite().all()) for p in model.parameters()))"
    body = textwrap.indent(program, "    ")
    file.write_text(f"{SETUP}\ntry:\n{body}\nfinally:\n    {weights}\n")
    assert main(["run", "--guard", str(file)]) == 3
    assert capsys.readouterr().out == "True\n"
    return told(nanlab.last)


@pytest.mark.examples(every=2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_in_a_cell_the_step_is_replayed_and_told(
    shell: InteractiveShell, untried: None, name: str
) -> None:
    assert in_a_cell(PROGRAMS[name], shell) == f"sqrt-at-zero in step {BAD}:  BAD"


@pytest.mark.parametrize("name", PROGRAMS)
def test_in_a_script_the_step_is_replayed_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], untried: None, name: str
) -> None:
    program = PROGRAMS[name]
    assert in_a_script(program, tmp_path, capsys) == f"sqrt-at-zero in step {BAD}:  BAD"


@pytest.mark.parametrize("name", UNREPLAYABLE)
def test_a_step_that_cannot_be_replayed_is_said_to_be_so_and_why(
    shell: InteractiveShell,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    untried: None,
    name: str,
) -> None:
    program, why = UNREPLAYABLE[name]
    for said in (in_a_cell(program, shell), in_a_script(program, tmp_path, capsys)):
        assert "could not be replayed" in said and why in said and "--detail fault" in said


def healthy(program: str) -> str:
    """The same loop for 2,000 steps, without its fault."""
    program = re.sub(r"\b(epoch|i) [>=]= \d+( and [jk] == \d)?", "False", program)
    program = re.sub(r"range\([24]0\)|i < 20", lambda m: re.sub(r"\d+", "2000", m[0]), program)
    return program.replace("range(3):\n    for j", "range(400):\n    for j")


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_healthy_run_of_2000_steps_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    nanlab.last, file, steps = None, tmp_path / "program_of_a_user.py", Counter[int]()
    file.write_text(healthy(f"{SETUP}\n{PROGRAMS[name]}"))

    def count(optimizer: torch.optim.Optimizer, *_: object) -> None:
        assert all(bool(p.isfinite().all()) for p in optimizer.param_groups[0]["params"])
        steps[id(optimizer)] += 1

    hook = register_optimizer_step_post_hook(count)
    try:
        assert main(["run", "--guard", str(file)]) == 0
    finally:
        hook.remove()
    assert nanlab.last is None and "nanlab" not in capsys.readouterr().err
    assert min(steps.values()) == (666 if name == "accumulated" else 2000)
