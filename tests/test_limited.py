"""A function of the program under `nanlab.safe.limit`: what runs in it, and what is refused."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path

import pytest
import torch

import nanlab
from nanlab.findings.rule import Edit
from nanlab.program.functions import Functions
from nanlab.program.limited import DECORATOR, under_limit
from nanlab.rules.remedies import judge_of

HEAD = """
    import torch
    from torch import nn
    from torch.nn import functional as F

    w = nn.Parameter(torch.tensor([0.0, 1.0]))
"""


def verdict(folder: Path, body: str, name: str = "ratio") -> tuple[str, str]:
    """What becomes of a step with a function under the decorator; the step's loss is ``loss()``."""
    path = folder / "program.py"
    (folder / "helpers_of_ratio.py").write_text("def sine(x):\n    return x.sin()\n")
    path.write_text(textwrap.dedent(HEAD) + textwrap.dedent(body))
    spec = importlib.util.spec_from_file_location("program", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with nanlab.watch(nn_of(module.w), on_fault="record") as trace:
        module.loss().backward()
    rows = path.read_text().splitlines()
    line = next(i for i, row in enumerate(rows, 1) if row.strip().startswith(f"def {name}("))
    edit = Edit(str(path), line, line, f"{DECORATOR}\n{rows[line - 1].strip()}", rows[line - 1])
    judge = judge_of(trace, 0)
    assert not isinstance(judge, str)
    found = judge.judge([edit])
    return found.verdict, found.why


def nn_of(parameter: torch.nn.Parameter) -> torch.nn.ParameterList:
    return torch.nn.ParameterList([parameter])


RIGHT = {
    "an expression": """
        def ratio(x):
            return torch.sin(x) / x

        def loss():
            return ratio(w).sum()
        """,
    "helpers, and lists of its own": """
        def top(x):
            return torch.sin(x)

        def ratio(x):
            parts = []
            for i in range(2):
                parts.append(top(x)[i] / x[i])
            return torch.stack(parts)

        def loss():
            return ratio(w).sum()
        """,
    "runs that follow each other": """
        def ratio(x):
            return torch.sin(x) / x

        def loss():
            return ratio(ratio(w)).sum()
        """,
    "runs of a loop, of several results": """
        def ratio(x, y):
            r = 1 / x
            return x + 0, y + r * torch.sin(x)

        def loss():
            x, y = w, w * 0
            for _ in range(3):
                x, y = ratio(x, y)
            return y.sum()
        """,
    "two runs apart": """
        def ratio(x):
            return torch.sin(x) / x

        def loss():
            a = ratio(w)
            b = 2 * w
            return (a + ratio(b)).sum()
        """,
    "several results": """
        def ratio(x):
            s = torch.sin(x)
            return s / x, (s * s) / x

        def loss():
            a, b = ratio(w)
            return (a + b).sum()
        """,
    "a function that it is given": """
        def sine(x):
            return torch.sin(x)

        def ratio(fn, x):
            return fn(x) / x

        def loss():
            return ratio(sine, w).sum()
        """,
    "a helper that others call, too": """
        def top(x):
            return torch.sin(x)

        def ratio(x):
            return top(x) / x

        def loss():
            y = 2 * w
            other = top(y)
            return (ratio(w) + other).sum()
        """,
    "a derivative": """
        def ratio(x):
            y = torch.cos(x)
            slope = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
            return slope / x

        def loss():
            return ratio(w).sum()
        """,
    "a decision that stays": """
        def ratio(x):
            y = x.detach()
            if (y < 3).all() and y.sum().item() > 0.5:
                x = x * 2
            return torch.sin(x) / x * (y + 1)

        def loss():
            return ratio(w).sum()
        """,
    "its operand, of which a part has no gradient": """
        def ratio(x):
            return torch.sin(x) / x + x.detach()

        def loss():
            return ratio(w).sum()
        """,
    "a layer": """
        layer = nn.Linear(2, 2, bias=False)
        with torch.no_grad():
            layer.weight.copy_(torch.eye(2))

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.layer = layer

            def ratio(self, x):
                return self.layer(torch.sin(x) / x)

        net = Net()

        def loss():
            return net.ratio(w).sum()
        """,
}
REFUSED = {
    "draws random numbers": """
        def ratio(x):
            return torch.sin(x) / x + 0 * torch.randn(2)

        def loss():
            return ratio(w).sum()
        """,
    "writes a tensor of others": """
        seen = torch.zeros(2)

        def ratio(x):
            seen.add_(x.detach())
            return torch.sin(x) / x

        def loss():
            return ratio(w).sum()
        """,
    "several runs of the function": """
        def ratio(x, k):
            y = torch.sin(x) / x
            return torch.cos(y) if k else torch.tanh(y)

        def loss():
            return ratio(ratio(ratio(ratio(w, 0), 1), 0), 1).sum()
        """,
    "several runs of the function follow each other": """
        def ratio(x, k):  # together they are w, but the derivative of the first alone is infinite
            y = x.sqrt()
            return y**4 if k else y

        def loss():
            return ratio(ratio(w, 0), 1).sum()
        """,
    "runs a part of ratio, too": """
        def top(x):
            return torch.sin(x)

        def ratio(x):
            return top(x) / x

        def loss():
            y = 2 * w
            return ratio(top(y)).sum()
        """,
    "calls what may do more": """
        names = {"torch": torch}
        exec(compile("def sine(x): return torch.sin(x)", "/elsewhere/other.py", "exec"), names)
        sine = names["sine"]

        def ratio(x):
            y = sine(x)
            return y / x

        def loss():
            return ratio(w).sum()
        """,
    "ratio calls what may": """
        import helpers_of_ratio

        def ratio(x):
            return helpers_of_ratio.sine(x) / x

        def loss():
            return ratio(w).sum()
        """,
    "does more than compute": """
        log = []

        def ratio(x):
            log.append(x)
            return torch.sin(x) / x

        def loss():
            return ratio(w).sum()
        """,
    "ratio computes itself ran": """
        def other(x):
            return x / x

        def ratio(x):
            if len(x) > 2:
                return other(x) + 1

        def loss():
            return other(w).sum()
        """,
    "decides by a number": """
        def ratio(x):
            if (x == 0).any():
                x = x * 2
            return torch.sin(x) / x + x

        def loss():
            return ratio(w).sum()
        """,
    "decides by a number that is another": """
        def ratio(x, kind):
            y = torch.sin(x) / x
            while (kind >= 7).all():
                y, kind = y * y.detach(), kind - 1
            return y + x

        def loss():
            return ratio(w, torch.full((2,), 7.0)).sum()
        """,
    "complex numbers": """
        def ratio(x):
            return torch.sin(x) / x.to(torch.complex64)

        def loss():
            return ratio(w).real.sum()
        """,
}


@pytest.mark.parametrize("body", RIGHT.values(), ids=RIGHT)
def test_a_function_is_tried_under_its_limit(body: str, tmp_path: Path) -> None:
    assert verdict(tmp_path, body) == ("verified", "")


@pytest.mark.parametrize(("why", "body"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_told_is_not_tried(
    why: str, body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    found, reason = verdict(tmp_path, body)
    assert found == "untried"
    assert why in reason


def test_the_innermost_function_comes_first_and_its_callers_after() -> None:
    text = textwrap.dedent("""
        def inner(x):
            return x / x

        def outer(x):
            return inner(x) + 1

        def step(x):
            outer(x).backward()
        """)
    assert [f.name for f in under_limit(text, 3)] == ["inner", "outer"]


TWO_LAWS = """
class First:
    def one(self, n):
        return n + 1
    def other(self, n):
        return n - 1
    def forward(self, flag):
        law = self.one if flag else self.other
        return law(3)


class Second:
    def one(self, n):
        return 2 * n
    def third(self, n):
        return n
    def forward(self, flag):
        law = self.one if flag else self.third
        return law(3)
"""


def test_a_name_for_methods_of_a_class_stands_for_no_methods_of_another() -> None:
    functions = Functions.of(TWO_LAWS)
    first, second = (f for f in functions.all if f.name == "forward")
    within = {f.lineno for f in functions.behind(first)[0]}
    assert within == {first.lineno, *(f.lineno for f in functions.all[:2])}
    assert second.lineno not in within
