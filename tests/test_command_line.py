"""``python -m nanlab run`` and ``show``: a script, unchanged, under a watch or a guard."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from nanlab.__main__ import main

ENGINE = """
def train_step(model, opt, x, i):
    opt.zero_grad()
    out = model(x)
    if i == 12:
        out = out * 0
    loss = out.pow(2).sum(1).sqrt().mean()
    loss.backward()
    opt.step()
"""
TRAIN = """
import sys
import torch
from torch import nn
from training_engine import train_step

if __name__ == "__main__":
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    opt = torch.optim.Adam(model.parameters())
    for i in range(int(sys.argv[1])):
        train_step(model, opt, torch.randn(16, 8), i)
    print("done", *sys.argv[1:])
    sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, untried: None) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "training_engine", raising=False)
    (tmp_path / "training_engine.py").write_text(ENGINE)
    (tmp_path / "training_script.py").write_text(TRAIN)
    return tmp_path


@pytest.mark.parametrize("guard", [["--guard"], []], ids=["guard", "watch"])
@pytest.mark.parametrize(
    "program", [["training_script.py"], ["-m", "training_script"]], ids=["script", "module"]
)
def test_a_fault_ends_with_status_3_one_line_on_stderr_and_files(
    project: Path, capsys: pytest.CaptureFixture[str], guard: list[str], program: list[str]
) -> None:
    assert main(["run", *guard, "--save", "out", *program, "30"]) == 3
    told = capsys.readouterr()
    assert "done" not in told.out
    (line,) = told.err.splitlines()
    assert (
        line.startswith("nanlab: the derivative of sqrt")
        and "training_engine.py:7" in line
        and "step 12" in line
    )
    assert {p.suffix for p in (project / "out").iterdir()} >= {".txt", ".html"}


@pytest.mark.parametrize("guard", [["--guard"], []], ids=["guard", "watch"])
def test_a_fault_whose_files_cannot_be_written_is_told_all_the_same(
    project: Path, capsys: pytest.CaptureFixture[str], guard: list[str]
) -> None:
    (project / "out").write_text("a file")
    assert main(["run", *guard, "--save", "out", "training_script.py", "30"]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("nanlab: the derivative of sqrt")
    assert "the report could not be written to" in line and "File exists" in line


class Terminal(io.StringIO):
    """Keeps what was to be read at each flush."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def isatty(self) -> bool:
        return True

    def flush(self) -> None:
        self.read.append(self.getvalue())


def test_at_a_terminal_the_cause_is_read_before_fixes_are_tried(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    assert main(["run", "--guard", "training_script.py", "30"]) == 3
    first, *_, last = terminal.read
    assert "training_engine.py:7" in first and "fix" not in first and "\n" not in first
    assert last.startswith(first + "; fix") and last.count("\n") == 1


@pytest.mark.parametrize("guard", [["--guard"], []], ids=["guard", "watch"])
def test_a_healthy_script_ends_with_its_own_status_and_output(
    project: Path, capsys: pytest.CaptureFixture[str], guard: list[str]
) -> None:
    before = sys.argv, sys.path[:], sys.modules["__main__"]
    with pytest.raises(SystemExit) as left:
        main(["run", *guard, "training_script.py", "5", "7", "--guard"])
    assert left.value.code == 7
    assert capsys.readouterr() == ("done 5 7 --guard\n", "")
    assert before == (sys.argv, sys.path[:], sys.modules["__main__"])


def test_an_exception_of_the_script_is_shown_as_python_shows_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "raises.py").write_text("def f():\n    raise ValueError('mine')\nf()\n")
    assert main(["run", "--guard", "raises.py"]) == 1
    told = capsys.readouterr().err
    assert told.endswith("ValueError: mine\n") and "raises.py" in told and "nanlab" not in told


def test_a_file_that_is_not_there_is_one_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "nothing.py"]) == 2
    assert capsys.readouterr().err.startswith("nanlab: cannot read nothing.py")
    assert main(["run", "-m", "no.such_module"]) == 2


def test_an_exception_goes_to_the_hook_of_the_script_and_a_wrong_syntax_has_no_frames(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # put back
    (project / "wrong.py").write_text("for i in range(3)\n    pass\n")
    assert main(["run", "wrong.py"]) == 1
    assert "Traceback" not in (told := capsys.readouterr().err) and "SyntaxError" in told
    (project / "hook.py").write_text(
        "import sys\nsys.excepthook = lambda *error: print('mine:', error[1])\n1 / 0\n"
    )
    assert main(["run", "hook.py"]) == 1
    assert capsys.readouterr().out == "mine: division by zero\n"


def test_an_interrupt_shows_the_lines_of_the_script_only(project: Path) -> None:
    (project / "stuck.py").write_text("def f():\n    raise KeyboardInterrupt\nf()\n")
    shown = [
        subprocess.run(
            [sys.executable, *how, "stuck.py"], capture_output=True, text=True, check=False
        )
        for how in ([], ["-m", "nanlab", "run"])
    ]
    own, ours = [(one.returncode, one.stderr.replace(str(project) + "/", "")) for one in shown]
    assert ours == own


CHECKED = """
import math, os, sys
import torch
from torch import nn

os.chdir("elsewhere")
print(sys.argv)
torch.manual_seed(0)
model = nn.Linear(3, 1)
opt = torch.optim.SGD(model.parameters(), 0.1)
for i in range(6):
    opt.zero_grad()
    loss = torch.log((model(torch.randn(2, 3)) * (i != 3)).square()).sum()  # HERE
    if not math.isfinite(loss.item()):
        print(f"Loss is {loss.item()}, stopping training")
        sys.exit(1)
    loss.backward()
    opt.step()
"""


@pytest.mark.parametrize("guard", [["--guard"], []], ids=["guard", "watch"])
def test_a_script_that_ends_itself_at_a_bad_loss_is_told_why_and_where_though_it_changes_folder(
    project: Path,
    capsys: pytest.CaptureFixture[str],
    guard: list[str],
) -> None:
    (project / "checked.py").write_text(CHECKED)
    (project / "elsewhere").mkdir()
    assert main(["run", *guard, "--save", "out", "checked.py", "--guard", "--", "-x"]) == 3
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "['checked.py', '--guard', '--', '-x']",
        "Loss is -inf, stopping training",
    ]
    (line,) = told.err.splitlines()
    assert "log of 2 zeros" in line and "step 3" in line and "out/nanlab.html" in line
    assert (project / "out" / "nanlab.html").exists()


THREADED = """
import threading
import torch
from training_engine import train_step

def work():
    model = torch.nn.Linear(8, 4)
    train_step(model, torch.optim.SGD(model.parameters()), torch.ones(2, 8), 0)

thread = threading.Thread(target=work)
thread.start()
thread.join()
print("over")
"""


@pytest.mark.parametrize("guard", [["--guard"], []], ids=["guard", "watch"])
def test_a_script_that_trains_in_a_thread_is_told_that_nothing_was_checked(
    project: Path, capsys: pytest.CaptureFixture[str], guard: list[str]
) -> None:
    (project / "threaded.py").write_text(THREADED)
    assert main(["run", *guard, "threaded.py"]) == 0
    told = capsys.readouterr()
    assert told.out == "over\n" and "nothing was checked" in told.err


def test_stdin_is_a_program_too(project: Path) -> None:
    command = [sys.executable, "-m", "nanlab", "run", "--guard", "-", "30"]
    source = TRAIN.replace("sys.argv[2]", "sys.argv[2]")
    done = subprocess.run(
        command, input=source, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 3
    assert "training_engine.py:7" in done.stderr
    assert len(done.stderr.splitlines()) == 1
