"""Are the verified fixes right, and does the cure cure? ``python benchmarks/judge.py [name ...]``

Each program of ``benchmarks/limits`` has a singular expression at the very values that occur, or
one out of range, and loss and gradients there that are known from analysis (``truth()``). Each
verified fix, and the cure, is written into a copy by its edits, and the step of the fault is
compared.

    right     the loss and every gradient within 1 % of the truth; where a gradient has no limit it
              is finite and within its bound; where its limit is infinite it is finite and has its
              sign
    dead      exactly 0 where the truth is not
    wrong     finite, and neither
    fails     something is not finite
    raises    the program as it was rewritten does not run

lNNN: one fault. dNNN: several faults; what counts is the cure. hNNN: none; a culprit is a false
alarm. Exit status: how many verified fixes and cures are not right or alarms false, at most 99.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

FOLDER = Path(__file__).parent / "limits"
WITHIN = 0.01
Verdict = tuple[str, str]  # what it is, and what is off


def programs(names: Sequence[str] = (), folder: Path = FOLDER) -> list[Path]:
    """The programs whose file name holds one of the names; all of them without any."""
    found = sorted(p for p in folder.glob("[ldh][0-9][0-9][0-9]_*.py"))
    return [p for p in found if not names or any(n in p.name for n in names)]


def load(path: Path) -> ModuleType:
    """The program, imported anew."""
    spec = importlib.util.spec_from_file_location(f"limits_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def truth_of(module: ModuleType) -> dict[str, Tensor]:
    """Gradients of the parameters at the fault, from analysis: NaN where there is no limit."""
    torch.set_default_dtype(torch.float64)
    try:
        return {name: g.detach().double() for name, g in module.truth().items()}
    finally:
        torch.set_default_dtype(torch.float32)


def at_fault(module: ModuleType, fixed: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of the step at the fault."""
    model, step = module.build(fixed)
    for i in range(module.META["first_bad_step"] + 1):
        loss = step(i)
    gradients = {
        n: torch.zeros_like(p).double() if p.grad is None else p.grad.detach().double()
        for n, p in model.named_parameters()
    }
    return loss.detach().double(), gradients


def compare(
    loss: Tensor, gradients: dict[str, Tensor], truth: dict[str, Tensor], meta: dict[str, Any]
) -> Verdict:
    """What loss and gradients are, against the truth."""
    parts = {"loss": loss, **gradients}
    bad = [n for n, t in parts.items() if not bool(t.isfinite().all())]
    if bad:
        return "fails", "not finite: " + ", ".join(bad)
    want = meta["loss_truth"]
    if abs(float(loss) - want) > WITHIN * max(abs(want), 1e-3):
        return "wrong", f"loss {float(loss):.4g}, its limit {want:.4g}"
    for name, true in truth.items():
        known = true.isfinite()
        scale = float(true[known].abs().max()) if bool(known.any()) else 0.0
        for g, t in zip(gradients[name].flatten().tolist(), true.flatten().tolist(), strict=True):
            if _is_off(g, t, scale, meta.get("bound")):
                verdict = "dead" if g == 0 else "wrong"
                return verdict, f"gradient of {name} {g:.4g}, its limit {t:.4g}"
    return "right", ""


def _is_off(g: float, t: float, scale: float, bound: float | None) -> bool:
    if t != t:
        return bound is not None and abs(g) > (1 + WITHIN) * bound
    if abs(t) == float("inf"):
        return not g * t > 0  # 0 times infinity is no number
    return abs(g - t) > WITHIN * abs(t) + WITHIN / 10 * scale


def written(path: Path, edits: Sequence[Any], folder: Path) -> Path:
    """A copy of the program with the edits in it."""
    lines = path.read_text().splitlines()
    for first, last, text in sorted(((e.first, e.last, e.text) for e in edits), reverse=True):
        row = lines[first - 1]
        indent = row[: len(row) - len(row.lstrip())]
        lines[first - 1 : last] = [indent + r if r else r for r in text.splitlines()]
    at = next(i for i, row in enumerate(lines) if row.startswith("import torch"))
    copy = folder / path.name
    copy.write_text("\n".join([*lines[:at], "import nanlab", *lines[at:]]) + "\n")
    return copy


def watched(module: ModuleType) -> Any:
    """The trace of the program as it is."""
    import nanlab

    model, step = module.build(False)
    with nanlab.watch(model, on_fault="record") as trace:
        for i in range(module.META["n_steps"]):
            step(i)
    return trace


def judged(path: Path, fix: Any, module: ModuleType) -> Verdict:
    """What the program is with the fix, or the cure, in it."""
    if not getattr(fix, "edits", None):
        return "no edits", ""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            mended = load(written(path, fix.edits, Path(scratch)))
            return compare(*at_fault(mended), truth_of(module), module.META)
        except Exception as error:
            return "raises", f"{type(error).__name__}: {error}"


def main(names: Sequence[str]) -> int:
    """Print the table; the number of verified fixes and cures that are not right, and of false
    alarms."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    verdicts: Counter[str] = Counter()
    rows: dict[str, Counter[str]] = {}
    for path in programs(names):
        module = load(path)
        trace = watched(module)
        if module.META.get("healthy"):
            if trace.culprit is not None:
                verdicts["false alarm"] += 1
                print(f"{path.name}: FALSE ALARM {trace.culprit}")
            continue
        row = rows.setdefault(module.META["kind"], Counter())
        row["programs"] += 1
        cure = getattr(trace, "cure", None)
        fixes = [
            f for f in (trace.culprit.fixes if trace.culprit else []) if f.verdict == "verified"
        ]
        found = [(f, judged(path, f, module)) for f in fixes]
        cured = (
            judged(path, cure, module) if cure is not None and cure.verdict == "verified" else None
        )
        row["culprit"] += trace.culprit is not None
        row["right"] += any(v == "right" for _, (v, _) in found)
        row["first right"] += bool(found) and found[0][1][0] == "right"
        row["cured"] += cured is not None and cured[0] == "right"
        row["verified"] += len(found)
        row["not right"] += sum(v != "right" for _, (v, _) in found)
        if cured is not None:
            found.append((cure, cured))
        for fix, (verdict, how) in found:
            verdicts[verdict] += 1
            if verdict != "right":
                print(f"{path.name}: {verdict}: {getattr(fix, 'title', 'cure')}: {how}")
    heads = ("programs", "culprit", "right", "first right", "cured", "verified", "not right")
    print(f"{'':20}" + "".join(f"{h:>13}" for h in heads))
    for kind, row in rows.items():
        print(f"{kind:20}" + "".join(f"{row[h]:13}" for h in heads))
    print(dict(verdicts))
    return min(99, sum(n for verdict, n in verdicts.items() if verdict != "right"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
