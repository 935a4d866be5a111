"""``nanlab.diff`` names the first line where two runs part, though calls were added or dropped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import nanlab
from nanlab.views.results import difference_html

PROGRAM = """\
import torch

def build(seed=0):
    torch.manual_seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    x = torch.linspace(-1, 1, 20).reshape(5, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        out = net(x)
        out = out.sigmoid()
        loss = out.pow(2).mean()
        loss.backward()
        optimizer.step()

    return net, step
"""


def run(path: Path, old: str = "", new: str = "", seed: int = 0, steps: int = 2) -> nanlab.Trace:
    """The program with some text replaced, watched."""
    assert old in PROGRAM
    path.write_text(PROGRAM.replace(old, new) if old else PROGRAM)
    scope: dict[str, Any] = {"__name__": "program"}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    net, step = scope["build"](seed)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(steps):
            step()
    return trace


def test_two_runs_of_one_program_do_not_part(tmp_path: Path) -> None:
    found = nanlab.diff(run(tmp_path / "a.py"), run(tmp_path / "b.py"))
    assert found.same
    assert found.place == "" and found.step is None and not len(found.table)
    assert found.compared > 40
    assert "do not part" in repr(found) and "do not part" in difference_html(found)


def test_of_two_seeds_the_first_line_that_reads_other_weights_is_named(tmp_path: Path) -> None:
    a, b = run(tmp_path / "a.py"), run(tmp_path / "b.py", seed=1)
    found = nanlab.diff(a, b)
    assert found.place.endswith("a.py:11")
    assert (found.step, found.op) == (0, "t") or "0.weight" in found.what
    assert "differs already" in found.what


@pytest.mark.parametrize(
    ("old", "new", "line", "op"),
    [
        ("out = out.sigmoid()", "out = out.tanh()", 12, "sigmoid"),
        ("out.pow(2)", "out.pow(3)", 13, "pow"),
        ("out = net(x)\n", "out = net(x)\n        out = out + 0.25\n", 11, "add"),
        ("        out = out.sigmoid()\n", "", 12, "sigmoid"),
        ("lr=0.1", "lr=0.2", 15, "add_"),
    ],
)
def test_a_changed_line_is_named_though_calls_were_added_or_dropped(
    tmp_path: Path, old: str, new: str, line: int, op: str
) -> None:
    found = nanlab.diff(run(tmp_path / "a.py"), run(tmp_path / "b.py", old, new))
    assert (found.step, found.op) == (0, op)
    if op == "add":  # the line that b alone has
        assert found.place.endswith("b.py:12") and found.position_a is None
        assert found.added > 0
    else:
        assert found.place.endswith(f"a.py:{line}")


def test_a_line_that_computes_the_same_is_no_parting_of_values(tmp_path: Path) -> None:
    a = run(tmp_path / "a.py")
    b = run(tmp_path / "b.py", "out = net(x)\n", "out = net(x)\n        noted = out * 1.0\n")
    found = nanlab.diff(a, b)
    assert found.op == "mul" and found.position_a is None
    assert set(found.table.what) == {"only in b"}  # nothing that both have differs


def test_rounding_is_no_parting_and_overflow_in_another_dtype_is(tmp_path: Path) -> None:
    def step(dtype: torch.dtype, factor: float) -> nanlab.Trace:
        w = torch.nn.Parameter(torch.linspace(0.1, 1, 10).to(dtype))
        with nanlab.watch(on_fault="record") as trace:
            y = w * factor
            y.exp().sum().backward()
        return trace

    near = nanlab.diff(step(torch.float32, 1.0), step(torch.float64, 1.0))
    assert near.same and "a computes in float32, b in float64" in near.notes
    far = nanlab.diff(step(torch.float16, 12.0), step(torch.float32, 12.0))
    assert far.op == "exp" and "infinite elements in a and 0 in b" in far.what
    assert far.table.dtype_a[0] == "float16" and far.table.dtype_b[0] == "float32"


def trained(dtype: torch.dtype | None, scale: float = 1.0) -> nanlab.Trace:
    """Two steps under autocast, the loss in float32; scores that grow with ``scale``."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(2):
            x, y = torch.randn(8, 8), torch.randint(0, 3, (8,))
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                out = net(x)
                scores = (out * scale ** (i + 1)) @ out.T
                loss = torch.nn.functional.cross_entropy(out, y)
            optimizer.zero_grad()
            (loss + 10 * scores.float().mean() / scale ** (i + 1)).backward()
            optimizer.step()
    return trace


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounding_of_an_operand_reaches_what_is_computed_from_it(dtype: torch.dtype) -> None:
    found = nanlab.diff(trained(None), trained(dtype))
    assert set(found.table.what) <= {"only in a", "only in b"}
    assert "no result that both have is another" in found.what


def test_overflow_is_told_among_the_rounding_of_a_narrow_dtype() -> None:
    found = nanlab.diff(trained(None, 250.0), trained(torch.float16, 250.0))
    assert (found.step, found.op) == (1, "mul") and "0 infinite elements in a" in found.what


def test_a_first_infinity_is_noted_where_the_runs_part_earlier() -> None:
    found = nanlab.diff(trained(None, 150.0), trained(torch.float16, 250.0))
    assert (found.step, found.op) == (0, "mul")
    assert any("(mul): 0 infinite elements in a" in note for note in found.notes)


def test_numbers_that_differ_are_shown_so(tmp_path: Path) -> None:
    def step(factor: float) -> nanlab.Trace:
        w = torch.nn.Parameter(torch.full((4,), 1376.21, dtype=torch.float64))
        with nanlab.watch() as trace:
            (w * factor).sum().backward()
        return trace

    what = nanlab.diff(step(1.0), step(1.0 + 1e-9)).what
    shown = what.removeprefix("max is ").removesuffix(" in b").split(" in a and ")
    assert len(shown) == 2 and shown[0] != shown[1], what


OTHER = """
import sys; sys.path.insert(0, sys.argv[1])
from pathlib import Path
from test_difference import run
run(Path(sys.argv[2]) / "b.py", "out.sigmoid()", "out.tanh()").save(sys.argv[2] + "/b.nanlab")
"""


def test_a_capsule_of_another_process_is_held_against_a_trace(tmp_path: Path) -> None:
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", OTHER, here, str(tmp_path)], check=True)
    a = run(tmp_path / "a.py")
    found = nanlab.diff(a, tmp_path / "b.nanlab")
    assert found.place.endswith("a.py:12")
    path = a.save(tmp_path / "a.nanlab")
    again = nanlab.diff(str(path), str(tmp_path / "b.nanlab"))
    assert (again.op, again.what, again.position_b) == (found.op, found.what, found.position_b)


def test_long_steps_are_aligned(tmp_path: Path) -> None:
    def step(extra: int) -> nanlab.Trace:
        x = torch.ones(3)
        with nanlab.watch(on_fault="record") as trace:
            for i in range(3000):
                x = x * 1.0001
                if i == extra:
                    x = x + 1
        return trace

    found = nanlab.diff(step(-1), step(2000))
    assert found.op == "add" and found.position_a is None and found.added == 1


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    a = run(tmp_path / "a.py")
    with pytest.raises(nanlab.NanlabError, match="trace or the path of a capsule for b, got int"):
        nanlab.diff(a, 3)
    with pytest.raises(nanlab.CapsuleError):
        nanlab.diff(a, tmp_path / "a.py")
    with nanlab.watch() as empty:
        pass
    with pytest.raises(nanlab.NanlabError, match="no step is at hand in both"):
        nanlab.diff(a, empty)
