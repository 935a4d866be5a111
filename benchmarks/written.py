"""Is a program with a verified fix in it what the replay said? ``python benchmarks/written.py [FOLDER ...]``

Each verified fix of a culprit, and the cure, is written into a copy of its program by its edits, so
that the step of the fault runs the new lines, and the steps before it the old ones: the weights
that it begins with are the same to the bit. The copy is run for real. Loss and every gradient of
that step have to have the bits of ``trace.replay(fix)``, and a second copy, in which the new lines
run from the first step on, has to be finite in that step.

    same       so it is
    finite     finite, and nothing to compare: the fix stands in no statement of its own, it draws
               random numbers, others for real than by replay, or the program reads another value
               with it and takes another way
    differs    loss or a gradient has other bits
    fails      something is not finite
    raises     the program as it was rewritten does not run

Exit status: how many differ, fail or raise, at most 99.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import re
import sys
import tempfile
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import nanlab

HERE = Path(__file__).parent
FOLDERS = (HERE / "limits", HERE / "unseen", HERE.parent / "tests" / "corpus" / "cases")
FLAG = "new_lines_run"  # of builtins: read by the copies
Outcome = tuple[str, str]  # what it is, and what is off


def programs(folders: Sequence[Path]) -> list[Path]:
    """The faulty programs of these folders; a file stands for itself."""
    found = [f for f in folders if f.is_file()]
    for folder in folders:
        found += sorted(p for p in folder.glob("*.py") if re.match(r"[fldt]\d{3}_", p.name))
    return found


def load(path: Path) -> ModuleType:
    """The program, imported anew."""
    spec = importlib.util.spec_from_file_location(f"written_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Flag:
    """Whether the new lines run; was_read: whether the program has asked."""

    def __init__(self, on: bool) -> None:
        self.on, self.was_read = on, False

    def __bool__(self) -> bool:
        self.was_read = True
        return self.on


def watched(module: ModuleType, steps: int, new_from: int) -> tuple[Any, Any]:
    """The model and the trace of a run in which the new lines run from a step on."""
    model, step = module.build()
    with nanlab.watch(model, on_fault="record") as trace:
        for i in range(steps):
            setattr(builtins, FLAG, Flag(i >= new_from))
            step(i)
    return model, trace


def finite(module: ModuleType, steps: int) -> bool:
    """Whether loss and gradients of the last step are, nothing being watched."""
    setattr(builtins, FLAG, Flag(True))
    model, step = module.build()
    for i in range(steps):
        loss = step(i)
    named = getattr(step, "parameters", {}) if model is None else dict(model.named_parameters())
    tensors = [
        torch.as_tensor(loss).detach(),
        *(p.grad for p in named.values() if p.grad is not None),
    ]
    return all(bool(t.isfinite().all()) for t in tensors)


def written(path: Path, edits: Sequence[Any], folder: Path) -> tuple[Path, bool]:
    """A copy of the program with the edits in it; and whether they run behind the flag."""
    text = path.read_text()
    copy = folder / path.name
    flagged = _with(text, edits, flagged=True)
    if all(_runs_each_step(text, edit.first) for edit in edits) and _is_python(flagged):
        copy.write_text(flagged)
        return copy, True
    copy.write_text(_with(text, edits, flagged=False))
    return copy, False


def _runs_each_step(text: str, line: int) -> bool:
    """Whether a line stands in a function that a step calls, and not where one is made."""
    around = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.lineno < line <= (node.end_lineno or 0)
    ]
    inner = max(around, key=lambda node: node.lineno, default=None)
    return inner is not None and inner.name not in ("build", "__init__")


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _with(text: str, edits: Sequence[Any], flagged: bool) -> str:
    lines = text.splitlines()
    for edit in sorted(edits, key=lambda e: e.first, reverse=True):
        old = lines[edit.first - 1 : edit.last]
        indent = old[0][: len(old[0]) - len(old[0].lstrip())]
        new = edit.text.splitlines()
        if flagged:
            body = textwrap.indent("\n".join(new), "    ")
            before = textwrap.indent(_dedented(old, indent), "    ")
            new = [f"if {FLAG}:", *body.splitlines(), "else:", *before.splitlines()]
        lines[edit.first - 1 : edit.last] = [indent + row if row else row for row in new]
    at = next(i for i, row in enumerate(lines) if row.startswith("import torch"))
    return "\n".join([*lines[:at], "import nanlab", *lines[at:]]) + "\n"


def _dedented(rows: Sequence[str], indent: str) -> str:
    return "\n".join(row.removeprefix(indent) for row in rows)


def outcome(path: Path, trace: Any, fix: Any, step: int) -> Outcome:
    """What the program is with the fix in it."""
    said = trace.replay(fix)
    with tempfile.TemporaryDirectory() as scratch:
        copy, flagged = written(path, fix.edits, Path(scratch))
        try:
            if not finite(load(copy), step + 1):
                return "fails", "loss or a gradient is not finite"
            if (not flagged and step > 0) or "rand" in fix.code:
                return "finite", ""
            _, real = watched(load(copy), step + 1, step)
            if step > 0 and not getattr(builtins, FLAG).was_read:
                return "finite", "the new lines run where the program is built"
            done = real.replay(step=step)
        except Exception as error:
            return "raises", f"{type(error).__name__}: {error}"
    if not done.identical:
        return "finite", "its own step is not replayable"
    if said.looked_at and len(said.ops) != len(done.ops):
        return "finite", "the program takes another way"
    for name, (a, b) in {"loss": (said.loss, done.loss), **_pairs(said, done)}.items():
        if not _same(a, b):
            return "differs", f"{name}: {_shown(a)} by replay, {_shown(b)} for real"
    return "same", ""


def _pairs(said: Any, done: Any) -> dict[str, tuple[Any, Any]]:
    """Gradients by name; a leaf without a name has the number of a storage, another for real."""
    names = said.gradients.keys() | done.gradients.keys()
    named = sorted(name for name in names if not name.startswith("leaf "))
    return {n: (said.gradients.get(n), done.gradients.get(n)) for n in named}


def _same(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return bool(a == b)
    return a.shape == b.shape and bool(torch.equal(a, b))


def _shown(x: Any) -> str:
    if isinstance(x, Tensor) and x.numel():
        return f"{float(x.detach().double().abs().max()):.9g} at most"
    return str(x)


def outcomes(path: Path) -> Iterator[tuple[Any, Outcome]]:
    """Each verified fix of a program, and its cure, with what the program is with it."""
    module = load(path)
    steps = module.META["n_steps"]
    _, trace = watched(module, steps, steps)
    culprit = trace.culprit
    if culprit is None or len(trace.steps) != steps:
        return
    cure = trace.cure
    fixes = [f for f in culprit.fixes if f.verified]
    fixes += [cure] if cure is not None and cure.verified else []
    for fix in fixes:
        if fix.edits and all(Path(e.file).name == path.name for e in fix.edits):
            yield fix, outcome(path, trace, fix, culprit.step)


def main(arguments: Sequence[str]) -> int:
    """Print what is off, and the counts."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    count: Counter[str] = Counter()
    for path in programs([Path(a) for a in arguments] or list(FOLDERS)):
        try:
            for fix, (kind, how) in outcomes(path):
                count[kind] += 1
                if kind != "same":
                    print(f"{path.name}: {kind}: {fix.title}: {how}", flush=True)
        except Exception as error:
            count["not judged"] += 1
            print(f"{path.name}: not judged: {type(error).__name__}: {error}", flush=True)
    print(dict(count))
    return min(99, sum(count[kind] for kind in ("differs", "fails", "raises")))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
