"""A watch that stops outside of a notebook says so: on stderr, and to pytest."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import nanlab

PROGRAM = """
import torch, nanlab
w = torch.zeros(3, requires_grad=True)
opt = torch.optim.SGD([w], 0.1)
with nanlab.watch():
    w.sqrt().sum().backward()
    opt.step()
print("after the block", bool(w.isfinite().all()))
"""


def test_a_watch_that_stops_prints_culprit_place_and_first_fix(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # other tests of the process may have left a shell of IPython
    announcing = sys.modules["nanlab.capture.watching"]
    monkeypatch.setattr(announcing, "in_notebook", lambda: False)
    w = torch.zeros(3, requires_grad=True)
    opt = torch.optim.SGD([w], 0.1)
    with nanlab.watch() as trace:
        w.sqrt().sum().backward()
        opt.step()
    told = capsys.readouterr().err
    assert trace.culprit is not None
    assert f"nanlab: {trace.culprit.title}" in told and Path(__file__).name in told
    assert "w.sqrt().sum().backward()" in told and trace.culprit.fixes[0].code in told


def test_a_watch_that_records_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    w = torch.zeros(3, requires_grad=True)
    with nanlab.watch(on_fault="record"):
        w.sqrt().sum().backward()
    assert capsys.readouterr().err == ""


@pytest.mark.examples(every=2)
@pytest.mark.parametrize("how", ["-c", "redirected stdin"])
def test_a_program_that_is_no_file_shows_its_source(tmp_path: Path, how: str) -> None:
    (tmp_path / "p.py").write_text(PROGRAM)
    with (tmp_path / "p.py").open() as file:
        command = [sys.executable, *(["-c", PROGRAM] if how == "-c" else ["-"])]
        done = subprocess.run(
            command, stdin=file, capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0 and done.stdout == "after the block True\n"
    assert "w.sqrt().sum().backward()" in done.stderr


def test_under_pytest_a_test_fails_in_which_a_watch_stopped_unnoticed(tmp_path: Path) -> None:
    body = "".join(f"    {line}\n" for line in PROGRAM.splitlines()[2:-1])
    looks = (
        body.replace("nanlab.watch():", "nanlab.watch() as trace:")
        + "    assert trace.culprit.cause\n"
    )
    (tmp_path / "test_it.py").write_text(
        f"import torch, nanlab\ndef test_train():\n{body}\ndef test_looks():\n{looks}"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert "1 failed, 1 passed" in done.stdout and "FAILED test_it.py::test_train" in done.stdout
    assert "nanlab stopped the program: the derivative of sqrt" in done.stdout
