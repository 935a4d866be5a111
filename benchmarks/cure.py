"""How long the diagnosis takes: from the end of a watched step to the culprit, its tried fixes and
the cure.

    python benchmarks/cure.py [--only MLP transformer] [--output benchmarks/results/cure-cpu.md]

Each model of benchmarks/models.py is trained for two steps whose loss has a root at 0 (one fault),
or a root and an inverse cosine at its edge (two). The rows ``in_a_long_file`` have the same losses
in a file of 4,000 lines. The clock is the process's own processor time.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import runpy
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from models import MODELS
from torch import Tensor, nn

import nanlab
from nanlab.analysis.verdict import Judge

STEPS = 2
INPUTS: dict[str, Callable[[], Tensor]] = {
    "MLP": lambda: torch.randn(64, 64),
    "transformer": lambda: torch.randn(8, 64, 256),
    "CNN": lambda: torch.randn(16, 3, 32, 32),
    "LSTM": lambda: torch.randn(16, 40, 32),
    "GPT-2": lambda: torch.randint(0, 2000, (4, 128)),
}


def one_fault(out: Tensor) -> Tensor:
    """A distance of each row to itself."""
    away = out - out.detach()
    distance = away.square().sum(-1).sqrt()
    return distance.mean() + out.square().mean()


def two_faults(out: Tensor) -> Tensor:
    """The distance, and an angle."""
    away = out - out.detach()
    distance = away.square().sum(-1).sqrt()
    angle = torch.acos(1 - (away * 2).sum(-1) ** 2)
    return distance.mean() + angle.mean() + out.square().mean()


def in_a_long_file(loss_of: Callable[[Tensor], Tensor], folder: Path) -> Callable[[Tensor], Tensor]:
    """The same loss, in a file with the functions of a large project behind it."""
    head, text = "import torch\nfrom torch import Tensor\n\n\n", inspect.getsource(loss_of)
    rest = (text.replace(loss_of.__name__, f"loss_{i}") for i in range(4000 // text.count("\n")))
    path = folder / f"{loss_of.__name__}_in_a_long_file.py"
    path.write_text(head + text + "\n\n" + "\n\n".join(rest))
    names = runpy.run_path(str(path))
    found: Callable[[Tensor], Tensor] = names[loss_of.__name__]
    found.__name__ += "_in_a_long_file"
    return found


def watched(name: str, loss_of: Callable[[Tensor], Tensor]) -> nanlab.Trace:
    """A model's run with these losses."""
    model: nn.Module = MODELS[name]()[0]
    x = INPUTS[name]()
    optimizer = torch.optim.AdamW(model.parameters())
    with nanlab.watch(model, on_fault="record") as trace:
        for _ in range(STEPS):
            optimizer.zero_grad()
            out = model(x)
            loss_of(getattr(out, "logits", out)).backward()
            optimizer.step()
    return trace


def row(name: str, loss_of: Callable[[Tensor], Tensor]) -> tuple[str, ...]:
    """Seconds to the culprit, its fixes and the cure, and how many times edits were judged."""
    judged, real = 0, Judge.judge

    def judge(self: Judge, edits: object) -> object:
        nonlocal judged
        judged += 1
        return real(self, edits)  # type: ignore[arg-type]

    trace = watched(name, loss_of)
    times = [time.process_time()]
    Judge.judge = judge  # type: ignore[method-assign,assignment]
    try:
        culprit = trace.culprit
        times.append(time.process_time())
        fixes = list(culprit.fixes) if culprit is not None else []
        times.append(time.process_time())
        cure = trace.cure
        times.append(time.process_time())
    finally:
        Judge.judge = real  # type: ignore[method-assign]
    spent = [f"{after - before:.2f}" for before, after in itertools.pairwise(times)]
    first = fixes[0].verdict if fixes else "none"
    cured = cure.verdict if cure is not None else "none"
    return name, loss_of.__name__, *spent, f"{times[-1] - times[0]:.2f}", str(judged), first, cured


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=list(MODELS))
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    _ = watched("MLP", one_fault).cure  # compiles and imports, once
    head = ("model", "loss", "culprit s", "fixes s", "cure s", "all s", "judged", "first", "cure")
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    print("\n".join(lines))
    losses = [one_fault, two_faults]
    folder = Path(tempfile.mkdtemp())
    for name in arguments.only:
        long = [in_a_long_file(each, folder) for each in losses] if name == "MLP" else []
        for loss_of in (*losses, *long):
            lines.append(f"| {' | '.join(row(name, loss_of))} |")
            print(lines[-1], flush=True)
    if arguments.output is not None:
        arguments.output.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
