"""Are the verified fixes right however the program is built? ``python benchmarks/structures.py
[FIRST LAST]``

Each program (its seed from FIRST to LAST - 1, by default 0 to 59) has one to three expressions that
are singular, or out of range, at values of its second step, in a random structure: written inline,
in functions that are given the same tensor, in methods, modules, closures, lambdas, loops,
comprehensions, under a second name, differentiated, checkpointed, under vmap. The twin has the same
structure with the right form of each expression; in float64 it is the truth. Each verified fix, and
the cure, is written in and compared with it, as by ``judge.py``.

Exit status: how many of these are not right, at most 99.
"""

from __future__ import annotations

import ast
import random
import re
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import judge
import torch
from torch import Tensor

import nanlab

# What a program computes of T, and its right form, by the value that is singular for it.
EXPRESSIONS = {
    0.0: [
        ("torch.sin(T) / T", "torch.sinc(T / torch.pi)"),
        ("(1 - torch.cos(T)) / T**2", "0.5 * torch.sinc(T / (2 * torch.pi)) ** 2"),
        ("(torch.exp(T) - 1) / T", "series(T, lambda s: torch.expm1(s) / s, 1, 1/2, 1/6, 1/24)"),
        ("torch.log1p(T) / T", "series(T, lambda s: torch.log1p(s) / s, 1, -1/2, 1/3, -1/4)"),
        ("T / torch.tanh(T)", "series(T, lambda s: s / torch.tanh(s), 1, 0, 1/3, 0, -1/45)"),
        ("torch.sinh(T) / T", "series(T, lambda s: torch.sinh(s) / s, 1, 0, 1/6, 0, 1/120)"),
        ("T**2 / T", "1 * T"),
        ("T**2 * torch.log(T**2)", "T**2 * torch.log(torch.where(T == 0, 1, T) ** 2)"),
        ("T**3 / T**2", "1 * T"),
        ("torch.atan(T) / T", "series(T, lambda s: torch.atan(s) / s, 1, 0, -1/3, 0, 1/5)"),
        ("T / (torch.exp(T) - 1)", "series(T, lambda s: s / torch.expm1(s), 1, -1/2, 1/12, 0)"),
        ("1 / torch.tanh(T) - 1 / T", "series(T, lambda s: 1 / torch.tanh(s) - 1 / s, 0, 1/3, 0)"),
        ("torch.exp(-1 / T**2)", "torch.exp(-1 / torch.where(T == 0, 1e-2, T) ** 2)"),
        ("torch.where(T == 0, 1.0, torch.sin(T) / T)", "torch.sinc(T / torch.pi)"),
        ("torch.special.xlogy(T**2, T**2)", "T**2 * torch.log(torch.where(T == 0, 1, T) ** 2)"),
    ],
    200.0: [
        ("T.exp() / (1 + T.exp())", "torch.sigmoid(T)"),
        ("torch.log(1 + torch.exp(T))", "F.softplus(T)"),
        ("torch.log(torch.exp(T).sum())", "torch.logsumexp(T, 0)"),
        ("torch.log(torch.sigmoid(-T))", "F.logsigmoid(-T)"),
        ("torch.log(torch.cosh(T))", "T + F.softplus(-2 * T) - 0.6931471805599453"),
        ("(T.exp() - (-T).exp()) / (T.exp() + (-T).exp())", "torch.tanh(T)"),
        ("torch.log(T.exp() + 3 * (0.5 * T).exp())", "torch.logaddexp(T, 0.5 * T + math.log(3))"),
    ],
}
VALUES = {0.0: "[0.5, 0.0, 0.75]", 200.0: "[0.5, 200.0, -0.75]"}
SERIES = """
def series(t, f, *coefficients):
    near = t.abs() < 1e-2
    powers = sum(c * t**i for i, c in enumerate(coefficients))
    return torch.where(near, powers, f(torch.where(near, 1.0, t)))
"""
PROGRAM = """import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def scaled(a, b):
    return a * b

{functions}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))
        self.register_buffer("c", torch.tensor([1.0, 0.75, 0.5]))

    def lift(self, x):
        return (x + self.b) * self.w
{methods}
    def forward(self, x):
{body}
        return {loss}


def build():
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.0)

    def step(i):
        x = torch.tensor({bad} if i == 1 else [0.5, 0.25, 0.75]).to(net.w.dtype)
        loss = net(x)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step
"""


@dataclass(frozen=True)
class Part:
    """How one expression is computed: {e} of {x} as y{i}, from the tensor {u}."""

    body: str
    function: str = ""
    method: str = ""


STRUCTURES = [
    Part("y{i} = {e:u}"),
    Part("y{i} = f{i}({u})", "def f{i}({x}):\n    return {e:x}"),
    Part("y{i} = f{i}({u})", "def f{i}({x}):\n    v = {x} * 1.0\n    return {e:v} + 0.125 * v"),
    Part(
        "y{i} = f{i}({u}, 0.5)",
        "def f{i}({x}, c):\n    part = {e:x}\n    return part + c * {x}.tanh()",
    ),
    Part("y{i} = self.m{i}({u})", method="def m{i}(self, {x}):\n    return ({e:x}) * 0.5 + {x}"),
    Part("f{i} = lambda {x}: {e:x}\ny{i} = f{i}({u})"),
    Part("v{i} = {u}\ny{i} = {e:alias} + 0.1 * {u}.tanh()"),
    Part("y{i} = 0.0\nfor c in (0.5, 0.25):\n    y{i} = y{i} + c * ({e:u})"),
    Part(
        "y{i} = f{i}({u})",
        "def g{i}({x}):\n    return {e:x}\n\n\ndef f{i}(q):\n    return g{i}(q) + 0.3 * q.tanh()",
    ),
    Part(
        "y{i} = f{i}({x}={u})", "def f{i}(*, {x}, power=2):\n    return {e:x} + {x}.tanh()**power"
    ),
    Part("q{i} = {u} + 0.0\nq{i} = {e:own}\ny{i} = q{i} * 1.5"),
    Part(
        "y{i}, r{i} = f{i}({u})\ny{i} = y{i} + r{i}", "def f{i}({x}):\n    return {e:x}, {x}.tanh()"
    ),
    Part("y{i} = f{i}({u}) + f{i}({u} * 0.5)", "def f{i}({x}):\n    return {e:x}"),
    Part("n{i} = {n:u}\nd{i} = {d:u}\ny{i} = n{i} / d{i}"),
    Part(
        "y{i} = f{i}({n:u}, {u})", "def f{i}(value, {x}):\n    return value / ({d:x}) + {x}.tanh()"
    ),
    Part(
        "y{i} = f{i}({u}) * 0.5",
        "def g{i}(k):\n    return lambda {x}: k * ({e:x})\n\n\nf{i} = g{i}(2.0)",
    ),
    Part(
        "y{i} = part{i}({u})",
        "class Part{i}(nn.Module):\n    def forward(self, {x}):\n        return {e:x}\n\n\n"
        "part{i} = Part{i}()",
    ),
    Part(
        "y{i} = Part{i}.of({u})",
        "class Part{i}:\n    @staticmethod\n    def of({x}):\n        return {e:x} + {x}.tanh()",
    ),
    Part("y{i} = torch.stack([{e:s} for s in {u}])"),
    Part("y{i} = torch.stack([f{i}(s) for s in {u}.unbind()])", "def f{i}({x}):\n    return {e:x}"),
    Part("y{i} = torch.vmap(f{i})({u}[:, None]).reshape(-1)", "def f{i}({x}):\n    return {e:x}"),
    Part("y{i} = torch.zeros_like({u})\ny{i}[:] = {e:u}"),
    Part("y{i} = {u}.tanh()\nfor k in range(2):\n    y{i} = y{i} + 0.5 * ({e:u}) * (k + 1)"),
    Part("y{i} = 0.5 * (v{i} := {u}) + ({e:alias})"),
    Part("self.kept{i} = {u}\ny{i} = {e:kept}"),
    Part("parts{i} = dict(a={u}, b=0.5 * {u})\ny{i} = ({e:item}) + parts{i}['b'].tanh()"),
    Part("a{i}, b{i} = {u}, {u} * 0.5\ny{i} = ({e:first}) + ({e:second})"),
    Part("y{i} = ({e:u}) if self.training else {u}"),
    Part("if {u}.sum() > -1e9:\n    y{i} = {e:u}\nelse:\n    y{i} = {u} * 1.0"),
    Part("with torch.enable_grad():\n    y{i} = {e:u}"),
    Part("y{i} = checkpoint(f{i}, {u}, use_reentrant=False)", "def f{i}({x}):\n    return {e:x}"),
    Part("v{i} = {u}.view(3, 1)\ny{i} = ({e:alias}).reshape(-1)"),
    Part("v{i} = {u}[[2, 0, 1]]\ny{i} = {e:alias}"),
    Part("v{i} = {u}[:, None] * self.c\ny{i} = ({e:alias}).mean(1)"),
    Part("y{i} = ({e:u}).sum() * self.c"),
    Part(
        "v{i} = {e:u}\n"
        "(g{i},) = torch.autograd.grad(v{i}.sum(), {u}, create_graph=True)\ny{i} = v{i} + 0.1 * g{i}"
    ),
    Part(
        "y{i} = f{i}({u})",
        "def f{i}({x}):\n    if {x}.numel() == 0:\n        return {x}\n    return {e:x}",
    ),
    Part(
        "y{i} = f{i}({u})",
        "def f{i}({x}):\n    {x} = {x} + 0.0\n    out = {e:x}\n    out = out * 2\n    return out - {x}",
    ),
    Part(
        "y{i} = sum(f{i}({u}))",
        "def f{i}({x}):\n    for c in (0.5, 0.25):\n        yield c * ({e:x})",
    ),
]
MAKERS = ["x * self.w + self.b", "self.lift(x)", "(x * self.w).clone()", "scaled(x, self.w)"]


def program(seed: int) -> tuple[str, str]:
    """The text of a program, and of its twin."""
    choose = random.Random(seed)
    special = choose.choice([0.0, 0.0, 200.0])
    picks = [choose.choice(EXPRESSIONS[special]) for _ in range(choose.choice([1, 1, 2, 2, 3]))]
    shared, x = choose.random() < 0.6, choose.choice(["t", "x", "z"])
    body, functions, methods, loss = [], [], [], []
    for i in range(len(picks)):
        u, part = f"u{i}" if i and not shared else "u", choose.choice(STRUCTURES)
        if i == 0 or not shared:
            body.append(f"{u} = {choose.choice(MAKERS)}")
        names = {"u": u, "x": x, "v": "v", "s": "s", "alias": f"v{i}", "own": f"q{i}"}
        names |= {"kept": f"self.kept{i}", "item": f"parts{i}['a']"}
        names |= {"first": f"a{i}", "second": f"b{i}"}

        def filled(text: str, i: int = i, names: dict[str, str] = names) -> str:
            text = re.sub(r"\{([end]):(\w+)\}", lambda m: f"<{i}|{m[1]}|{names[m[2]]}>", text)
            return text.format(i=i, u=names["u"], x=names["x"])

        body += filled(part.body).splitlines()
        functions += [filled(part.function)] * bool(part.function)
        methods += [filled(part.method)] * bool(part.method)
        loss.append(f"{choose.choice([1.0, 0.5, -0.25, 2.0])} * (y{i} * self.c).sum()")
    if choose.random() < 0.4:
        body.append("side = u.tanh().sum()")
        loss.append("0.1 * side")
    choose.shuffle(loss)

    def written(which: int) -> str:
        def expression(found: re.Match[str]) -> str:
            text, part = picks[int(found[1])][which], found[2]
            if part != "e":
                text = _sides(text)[part == "d"]
            text = re.sub(r"\bT\b", found[3], text)
            return f"({text})" if which else text

        text = PROGRAM.format(
            functions="\n\n".join(["", *([SERIES] * which), *functions, ""]),
            methods="\n".join(["", *(_indented(m, 4) + "\n" for m in methods)]),
            body=_indented("\n".join(body), 8),
            loss=" + ".join(loss),
            bad=VALUES[special],
        )
        return re.sub(r"<(\d+)\|(\w)\|([^>]+)>", expression, text)

    return written(0), written(1)


def _sides(text: str) -> tuple[str, str]:
    """Numerator and divisor of an expression; what is no quotient is divided by one."""
    tree = ast.parse(text, mode="eval").body
    if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Div):
        return ast.unparse(tree.left), ast.unparse(tree.right)
    return text, "1.0"


def _indented(text: str, by: int) -> str:
    return "\n".join(" " * by + row for row in text.splitlines())


def _at_fault(module: ModuleType, double: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss and gradients of the second step, of which float32 has no numbers below its range."""
    net, step = module.build()
    net.to(torch.float64 if double else torch.float32)
    for i in range(2):
        loss = step(i)
    gradients = {
        name: torch.zeros(3).double() if parameter.grad is None else parameter.grad.double()
        for name, parameter in net.named_parameters()
    }
    tiny = torch.finfo(torch.float32).tiny
    return loss.detach().double(), {n: g * (g.abs() > tiny) for n, g in gradients.items()}


def judged(seed: int, folder: Path) -> list[tuple[object, judge.Verdict]]:
    """The verified fixes and the cure of a program, each with what it is when written in."""
    texts = program(seed)
    path, twin = folder / f"structure{seed}.py", folder / f"twin{seed}.py"
    for file, text in zip((path, twin), texts, strict=True):
        file.write_text(text)
    loss, truth = _at_fault(judge.load(twin), double=True)
    module = judge.load(path)
    net, step = module.build()
    with nanlab.watch(net, on_fault="record") as trace:
        for i in range(2):
            step(i)
    fixes = [f for f in (trace.culprit.fixes if trace.culprit else []) if f.verdict == "verified"]
    cure = trace.cure
    found: list[tuple[object, judge.Verdict]] = []
    for fix in [*fixes, *([cure] if cure is not None and cure.verdict == "verified" else [])]:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                mended = judge.load(judge.written(path, fix.edits, Path(scratch)))
                meta = {"loss_truth": float(loss)}
                found.append((fix, judge.compare(*_at_fault(mended), truth, meta)))
            except Exception as error:
                found.append((fix, ("raises", f"{type(error).__name__}: {error}")))
    return found


def main(seeds: range) -> int:
    """Print what is not right, and how many programs have a right fix or cure."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    verdicts: Counter[str] = Counter()
    right = 0
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            found = judged(seed, Path(folder))
        verdicts.update(verdict for _, (verdict, _) in found)
        right += any(verdict == "right" for _, (verdict, _) in found)
        for fix, (verdict, how) in found:
            if verdict != "right":
                print(f"{seed}: {verdict}: {getattr(fix, 'title', 'cure')}: {how}")
                print(fix.diff())  # type: ignore[attr-defined]
        if not found:
            print(f"{seed}: nothing is verified")
    print(f"{right} of {len(seeds)} programs with a right fix or cure; {dict(verdicts)}")
    return min(99, sum(n for verdict, n in verdicts.items() if verdict != "right"))


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:3]]
    sys.exit(main(range(*given) if given else range(60)))
