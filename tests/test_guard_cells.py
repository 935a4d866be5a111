"""``%%nanwatch --guard``: the cell is an ordinary one, its step that fails is run again under a
watch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import nanlab
from nanlab.trace.history import Guarded

SETUP = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
opt = torch.optim.Adam(model.parameters())
data = [torch.randn(16, 8) for _ in range(30)]

def length(out, fails):
    return (out * 0 if fails else out).pow(2).sum(1).sqrt().mean()
"""
STEP = """
    opt.zero_grad()
    loss = length(model(x), i == 25)
    loss.backward()
    opt.step()
"""


@pytest.fixture
def shell(untried: None) -> Iterator[InteractiveShell]:
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext nanlab", silent=True)
    shell.run_cell(SETUP)
    yield shell
    shell.run_cell("%unload_ext nanlab", silent=True)
    InteractiveShell.clear_instance()


def run(shell: InteractiveShell, cell: str) -> tuple[Any, str]:
    nanlab.last = None
    with capture_output() as shown:
        result = shell.run_cell(cell, store_history=True)
    return result, shown.stdout + shown.stderr + "".join(str(each.data) for each in shown.outputs)


def check(shell: InteractiveShell, step: int = 25) -> None:
    trace = nanlab.last
    assert trace is not None and trace.guarded == Guarded(step, True)
    assert (
        trace.culprit is not None
        and trace.culprit.cause == "sqrt-at-zero"
        and trace.culprit.step == step
    )
    assert all(bool(p.isfinite().all()) for p in shell.user_ns["model"].parameters())


def test_a_for_loop_of_a_cell_stops_at_the_fault_with_its_variables_as_they_are(
    shell: InteractiveShell,
) -> None:
    result, shown = run(shell, "%%nanwatch --guard model\nfor i, x in enumerate(data):" + STEP)
    check(shell)
    assert isinstance(result.error_in_exec, nanlab.capture.FaultFound)
    assert shell.user_ns["i"] == 25 and shell.user_ns["x"] is shell.user_ns["data"][25]
    assert "is infinite" in shown and "step 25" in shown
    assert not [name for name in shell.user_ns if "nanlab_" in name]


@pytest.mark.parametrize("armed", ["", "%nanwatch --guard model\n"], ids=["plain", "armed before"])
def test_a_guarded_cell_that_is_run_from_python_has_its_loop_guarded(
    shell: InteractiveShell, armed: str
) -> None:
    shell.run_cell(armed)
    loop = "for i, x in enumerate(data):" + STEP
    with capture_output(), pytest.raises(nanlab.capture.FaultFound):
        shell.run_cell_magic("nanwatch", "--guard model -o tr", loop)
    check(shell)
    assert shell.user_ns["tr"] is nanlab.last


def test_a_while_loop_carries_its_own_counter(shell: InteractiveShell) -> None:
    cell = "%%nanwatch --guard model\ni = 0\nwhile i < 30:\n    x = data[i]" + STEP + "    i += 1\n"
    run(shell, cell)
    check(shell)
    assert shell.user_ns["i"] == 25


def test_nested_loops_are_replayed_from_the_innermost_turn(shell: InteractiveShell) -> None:
    body = STEP.replace("\n    ", "\n        ").replace("i == 25", "epoch == 1 and i == 2")
    run(
        shell,
        "%%nanwatch --guard model\nfor epoch in range(2):\n    for i, x in enumerate(data):" + body,
    )
    check(shell, 32)


def test_a_loop_inside_of_a_function_of_an_earlier_cell_is_guarded(shell: InteractiveShell) -> None:
    body = STEP.replace("\n    ", "\n        ")
    run(shell, "def fit(data):\n    for i, x in enumerate(data):" + body)
    before = shell.user_ns["fit"].__code__
    run(shell, "%%nanwatch --guard model\nfit(data)")
    check(shell)
    assert shell.user_ns["fit"].__code__ is before


def test_a_loop_around_a_function_that_goes_backward_is_guarded(shell: InteractiveShell) -> None:
    run(shell, "def train_step(i, x):" + STEP)
    run(shell, "%%nanwatch --guard model\nfor i, x in enumerate(data):\n    train_step(i, x)")
    check(shell)


def test_a_method_of_a_class_of_an_earlier_cell_is_guarded(shell: InteractiveShell) -> None:
    body = STEP.replace("\n    ", "\n            ").replace("length(", "self.length(")
    source = (
        "class Trainer:\n    length = staticmethod(length)\n    def fit(self):\n        for i, x in"
        " enumerate(data):"
    )
    run(shell, source + body + "\ntrainer = Trainer()")
    run(shell, "%%nanwatch --guard model\ntrainer.fit()")
    check(shell)


def test_a_function_defined_in_a_guarded_cell_runs_later_as_it_would(
    shell: InteractiveShell,
) -> None:
    body = STEP.replace("\n    ", "\n        ").replace("i == 25", "False")
    run(
        shell,
        "%%nanwatch --guard model\ndef fit():\n    for i, x in enumerate(data):" + body + "\nfit()",
    )
    assert nanlab.last is None
    result, _ = run(shell, "fit()")
    assert result.success


def test_a_healthy_guarded_cell_says_how_many_steps_it_took(shell: InteractiveShell) -> None:
    healthy = STEP.replace("i == 25", "False")
    result, shown = run(shell, "%%nanwatch --guard model\nfor i, x in enumerate(data):" + healthy)
    assert result.success and nanlab.last is None
    assert "guarded: 30 steps, loss and gradients finite in each" in shown


def test_a_guarded_cell_names_a_bad_gradient_that_no_optimizer_step_used(
    shell: InteractiveShell,
) -> None:
    run(shell, "other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1)")
    step = STEP.replace("opt.step()", "other.step()").replace("i == 25", "i == 29")
    _, shown = run(shell, "%%nanwatch --guard model\nfor i, x in enumerate(data):" + step)
    assert "is not finite, but no optimizer step used it" in shown


def test_what_a_guard_could_not_replay_is_said_once(shell: InteractiveShell) -> None:
    step = STEP.replace("\n    ", "\n").replace("i == 25", "True")
    _, shown = run(shell, "%%nanwatch --guard model\nx = data[0]" + step)
    assert "could not be replayed" in shown and "note:" not in shown and "nl-note" not in shown
    assert "nanlab stopped the program in step 0" in shown


def test_a_guarded_cell_says_how_many_steps_a_loss_scaler_skipped(shell: InteractiveShell) -> None:
    run(shell, "scaler = torch.amp.GradScaler('cpu', init_scale=2.0**10)")
    step = """
    opt.zero_grad()
    loss = length(model(x), False)
    scaler.scale((loss.half() * 1000).float() if i in (7, 20) else loss).backward()
    scaler.step(opt)
    scaler.update()"""
    result, shown = run(shell, "%%nanwatch --guard model\nfor i, x in enumerate(data):" + step)
    assert result.success and nanlab.last is None
    assert "finite in each but 2 that the loss scaler skipped" in shown


def test_an_armed_guard_covers_following_cells(shell: InteractiveShell) -> None:
    run(shell, "%nanwatch --guard model")
    run(shell, "for i, x in enumerate(data):" + STEP)
    check(shell)
    run(shell, "%nanwatch off")


def test_a_snapshot_keeps_the_weights_from_a_fault_of_the_optimizer(
    shell: InteractiveShell,
) -> None:
    body = STEP.replace("i == 25", "False").replace(
        "opt.step()",
        "opt.param_groups[0]['lr'] = float('inf') if i == 20 else 1e-3\n    opt.step()",
    )
    run(shell, "%%nanwatch --guard --snapshot 8 model\nfor i, x in enumerate(data):" + body)
    trace = nanlab.last
    assert trace is not None and trace.guarded == Guarded(20, True)
    assert all(bool(p.isfinite().all()) for p in shell.user_ns["model"].parameters())


def test_a_cell_that_raises_keeps_its_exception_and_leaves_no_hooks(
    shell: InteractiveShell,
) -> None:
    import sys

    result, _ = run(
        shell, "%%nanwatch --guard model\nfor i, x in enumerate(data):\n    1 / (3 - i)" + STEP
    )
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    assert not sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks


@pytest.mark.parametrize(
    "options", ["--steps 3", "--on-fault record", "--shadow float32", "--keep 5"]
)
def test_options_that_need_a_recording_are_refused(shell: InteractiveShell, options: str) -> None:
    _, shown = run(shell, f"%%nanwatch --guard {options} model\nx = 1")
    assert "has no effect with --guard" in shown


def test_a_user_module_that_the_cell_calls_is_guarded(
    shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = STEP.replace("\n    ", "\n        ")
    (tmp_path / "users_engine.py").write_text(
        "def length(out, fails):\n    return (out * 0 if fails else"
        " out).pow(2).sum(1).sqrt().mean()\n\ndef fit(model, opt, data):\n    for i, x in"
        " enumerate(data):" + body
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run(shell, "import users_engine")
    run(shell, "%%nanwatch --guard model\nusers_engine.fit(model, opt, data)")
    check(shell)
    assert nanlab.last is not None and nanlab.last.culprit is not None
    assert Path(nanlab.last.culprit.file).name == "users_engine.py"


REFUSED = """
    opt.zero_grad()
    loss = model(x).abs().mul(i != 25).log().mean()
    {}
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize(
    "refusal",
    [
        "assert loss.isfinite(), 'the loss is bad'",
        "if loss.isnan() or loss.isinf(): raise ValueError(f'loss is {loss.item()}')",
    ],
)
def test_a_loss_that_the_cell_itself_refuses_is_told_below_its_exception(
    shell: InteractiveShell, refusal: str
) -> None:
    cell = "%%nanwatch --guard model\nfor i, x in enumerate(data):" + REFUSED.format(refusal)
    result, shown = run(shell, cell)
    assert type(result.error_in_exec) in (AssertionError, ValueError)
    trace = nanlab.last
    assert trace is not None and trace.guarded == Guarded(25, True)
    assert trace.culprit is not None
    assert (trace.culprit.cause, trace.culprit.step) == ("log-of-zero", 25)
    assert "log of" in shown and shell.user_ns["i"] == 25
    assert all(p.grad is None for p in shell.user_ns["model"].parameters())


def test_an_exception_that_has_nothing_to_do_with_values_is_not_explained_by_them(
    shell: InteractiveShell,
) -> None:
    refusal = "if i == 9: raise ValueError('no such file')"
    cell = "%%nanwatch --guard model\nfor i, x in enumerate(data):" + REFUSED.format(refusal)
    result, _ = run(shell, cell)
    assert str(result.error_in_exec) == "no such file" and nanlab.last is None
    run(shell, "opt.zero_grad()")
    refusal = "assert i != 9, 'infinite patience'"
    run(shell, "%%nanwatch --guard model\nfor i, x in enumerate(data):" + REFUSED.format(refusal))
    assert nanlab.last is None
