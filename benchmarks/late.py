"""Loops as people write them, under guard: is a late fault told, and a healthy run left alone?

    python benchmarks/late.py [NAME ...] [--steps 400] [--late 300] [--healthy 2000]

Each program of ``benchmarks/loops`` goes bad near step ``--late``; with ``--repaired`` it does not. The
first line of each names the causes that are true of its fault; the line of the fault ends in
``# FAULT``. Each program runs bare, which tells the step and the weights with which it begins;
then as ``python -m nanlab run --guard`` and in a cell under ``%%nanwatch --guard``; and repaired, for
``--healthy`` steps, bare and under guard. Exit status: how many runs are not told right.

A run is right where guard names step, line and cause, its replay is identical or said not to be,
and the weights have the bits with which the step began; a healthy one where nothing is told and
output and weights have the bits of the bare one.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

FOLDER = Path(__file__).parent / "loops"
WAYS = ("script", "cell")


class Updates:
    """Updates that a run took, and its weights where they first had a bad gradient, else at its
    end."""

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()
        self.bad, self.weights = False, [torch.empty(0)]
        self.parameters: dict[int, torch.Tensor] = {}
        self.hook = register_optimizer_step_pre_hook(self.before)

    def before(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        found = [p for group in optimizer.param_groups for p in group["params"]]
        self.parameters |= {id(p): p for p in found}
        if self.bad:
            return
        # its gradients are made inside of the step: bad ones are seen in the weights of the next
        with_closure = isinstance(optimizer, torch.optim.LBFGS)
        looked_at = [p if with_closure else p.grad for p in found]
        if all(bool(t.isfinite().all()) for t in looked_at if t is not None):
            self.counts[id(found[0])] += 1
            self.weights = self.now() if with_closure else self.weights
        else:
            self.bad = True
            self.counts[id(found[0])] -= with_closure
            self.weights = self.weights if with_closure else self.now()

    @property
    def count(self) -> int:
        """Training steps: of several optimizers in turn those of the one that steps least."""
        return min(self.counts.values())

    def now(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.parameters.values()]

    def end(self) -> list[torch.Tensor]:
        self.hook.remove()
        return self.weights if self.bad else self.now()


def in_a_cell(source: str) -> None:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext nanlab", silent=True)
    with capture_output():
        shell.run_cell(f"%%nanwatch --guard\n{source}", store_history=True)


def one(name: str, way: str, arguments: list[str], out: Path) -> dict[str, Any]:
    """What a run in this process says, and its weights in a file."""
    import nanlab
    from nanlab.__main__ import main

    path = FOLDER / f"{name}.py"
    sys.argv = [str(path), *arguments]
    updates, text, status = Updates(), io.StringIO(), 0
    with redirect_stdout(text):
        if way == "bare":
            runpy.run_path(str(path), run_name="__main__")
        elif way == "script":
            status = main(["run", "--guard", str(path), *arguments])
        else:
            in_a_cell(path.read_text())
    torch.save(updates.end(), out)
    said: dict[str, Any] = {"status": status, "text": text.getvalue(), "count": updates.count}
    trace = nanlab.last
    if trace is not None and trace.guarded is not None:
        culprit = trace.culprit
        said |= {
            "step": trace.guarded.step,
            "identical": trace.guarded.identical,
            "reason": str(trace.guarded),
            "line": culprit and culprit.line,
            "cause": culprit and culprit.cause,
            "culprit_step": culprit and culprit.step,
            "fixes": culprit and [f.verdict for f in culprit.fixes],
        }
    return said


def run(name: str, way: str, arguments: list[str], out: Path) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", name, way, str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, IndexError):
        return {"status": -1, "text": done.stderr[-2000:]}


def same(a: Path, b: Path) -> bool:
    if not (a.exists() and b.exists()):
        return False
    one, other = torch.load(a), torch.load(b)
    return len(one) == len(other) and all(
        torch.equal(x, y) for x, y in zip(one, other, strict=True)
    )


def judge(name: str, options: argparse.Namespace, folder: Path) -> int:
    source = (FOLDER / f"{name}.py").read_text().splitlines()
    causes = source[0].rstrip('"').split(". ")[-1].split()
    line = next(i for i, text in enumerate(source, 1) if text.endswith("# FAULT"))
    arguments = [f"--steps={options.steps}", f"--late={options.late}"]
    files = {way: folder / way for way in ("bare", *WAYS, "healthy", "guarded")}
    bare, wrong = run(name, "bare", arguments, files["bare"]), 0
    for way in WAYS:
        said = run(name, way, arguments, files[way])
        told = said.get("identical") is False or (
            said.get("cause") in causes and said.get("line") == line + (way == "cell")
        )
        checks = {
            "told": told and (way == "cell" or said["status"] == 3),
            "step": said.get("step") == bare["count"],
            "weights": same(files["bare"], files[way]),
        }
        wrong += not all(checks.values())
        failed = [check for check, held in checks.items() if not held]
        print(
            f"{name}, {way}: step {said.get('step')} of {bare['count']},"
            f" line {said.get('line')} of {line}, {said.get('cause')}, {said.get('reason')},"
            f" fixes {said.get('fixes')}: {'WRONG ' + ', '.join(failed) if failed else 'right'}",
            flush=True,
        )
        if failed:
            print(said["text"][-1500:])
    if options.healthy:
        arguments = [f"--steps={options.healthy}", f"--late={options.late}", "--repaired"]
        bare = run(name, "bare", arguments, files["healthy"])
        said = run(name, "script", arguments, files["guarded"])
        quiet = said["status"] == 0 and "step" not in said and said["text"] == bare["text"]
        right = quiet and same(files["healthy"], files["guarded"])
        wrong += not right
        print(f"{name}, repaired: {said.get('count')} updates: {'nothing' if right else 'WRONG'}")
        if not right:
            print(said)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--late", type=int, default=300)
    parser.add_argument("--healthy", type=int, default=2000, help="steps of the repaired; 0: none")
    options = parser.parse_args()
    wrong = 0
    for path in sorted(FOLDER.glob("*.py")):
        if not options.names or path.stem in options.names:
            with tempfile.TemporaryDirectory() as folder:
                wrong += judge(path.stem, options, Path(folder))
    return min(wrong, 99)


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    if sys.argv[1:2] == ["--one"]:
        name, way, out, *arguments = sys.argv[2:]
        answer = one(name, way, arguments, Path(out))
        print(json.dumps(answer))
        sys.exit()
    sys.exit(main())
