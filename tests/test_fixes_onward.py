"""A verified fix holds with what stands around its operation: each is put into a small program,
which runs unwatched."""

from __future__ import annotations

import linecache
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from fixing import holds
from torch import nn

import nanlab
from nanlab.fixes.example import Place, guarded
from nanlab.fixes.guards import GUARDS, numbers
from nanlab.rules import Finding, Fix


def written(body: str, folder: Path) -> Path:
    file = folder / f"program{len(list(folder.iterdir()))}.py"
    rows = "".join(f"    {row}\n" for row in body.strip().splitlines())
    file.write_text(f"def step(x, g):\n{rows}")
    linecache.checkcache()
    return file


def run(file: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss and gradient of three numbers, of which the second is 0 and so is its entry of the mask
    ``g``."""
    names: dict[str, Any] = {
        "torch": torch,
        "F": torch.nn.functional,
        "nanlab": nanlab,
        "math": math,
    }
    exec(compile(file.read_text(), str(file), "exec"), names)
    x = torch.tensor([1.0, 0.0, 0.3], requires_grad=True)
    loss = names["step"](x, torch.tensor([1.0, 0.0, 1.0]))
    loss.backward()
    assert x.grad is not None
    return loss.detach(), x.grad


def cures(file: Path, fix: Fix, folder: Path) -> bool:
    rows = file.read_text().splitlines()
    for edit in sorted(fix.edits, key=lambda e: -e.first):
        rows[edit.first - 1 : edit.last] = edit.rows()
    changed = folder / f"changed{len(list(folder.iterdir()))}.py"
    changed.write_text("\n".join(rows) + "\n")
    return all(bool(torch.isfinite(t).all()) for t in run(changed))


def diagnosed(body: str, folder: Path) -> tuple[Path, Finding, list[Fix]]:
    file = written(body, folder)
    with nanlab.watch(on_fault="record") as trace:
        run(file)
    assert trace.culprit is not None
    fixes = [fix for fix in trace.culprit.fixes if fix.edits]
    assert not trace.notes
    return file, trace.culprit, fixes


# A program, and part of the titles of fixes that are to hold.
PROGRAMS = [
    (  # 0/0 under a mask, and a logarithm around it
        (
            "u = x * 0.1\nexact = torch.log(2 * torch.atanh(u) / u)\nreturn torch.where(g > 0,"
            " exact, x**2).sum()"
        ),
        ["nanlab.safe.div"],
    ),
    (  # a scale that is multiplied with, and later divided by
        (
            "scale = 448 / x.detach().abs()\nq = (x.detach() * scale).round() / scale\nreturn (x +"
            " (q - x).detach()).sum()"
        ),
        ["clamp the divisor", "an epsilon of"],
    ),
    (  # 1 - 1/t, which an epsilon makes negative, to a fractional power
        "t = x.detach()\nbeta = (1 - 0.2 / t) ** 1.5\nreturn (beta * x).sum()",
        ["nanlab.safe.div"],
    ),
    (  # a product with a quotient whose own derivative is infinite
        "n = x.abs()\nreturn torch.where(n > 0, (1 / n) * x, x).sum()",
        ["the double where"],
    ),
    (  # the same with two quotients, and the mask on a line below
        "n = x.abs()\ns = (2 - 1 / n) * (x / n)\nreturn torch.where(g > 0, s, x).sum()",
        ["the double where"],
    ),
    (  # a divisor that is nowhere positive
        "r = -torch.relu(x)\nreturn ((torch.exp(r) - 1) / r * x).sum()",
        ["clamp the divisor at -", "taken from the divisor", "nanlab.safe.div"],
    ),
    (  # a logarithm of a quotient, which no mask on the divisor cures
        "p = x.abs()\nm = p + 0.1\nreturn torch.where(p > 0, p * torch.log(p / m), 0.0).sum()",
        ["nanlab.safe.xlogy"],
    ),
    (  # the same number, out of range on another line as well
        "z = x * 1000\na = z.exp()\nreturn (a * x).sum() + z.exp().log().sum()",
        [],
    ),
    (  # a power whose own derivative is infinite at 0, whatever is done about the logarithm
        "q = x**0.3\nr = torch.log(q)\nreturn torch.where(g > 0, r * 2, x * 3).mean()",
        [],
    ),
    (
        "q = torch.atanh(x)\nr = 1 / q\nreturn torch.where(g > 0, r * 2, x * 3).mean()",
        [],
    ),
    ("q = 1 / x\nr = x / q\nreturn torch.where(g > 0, r, x).sum()", []),
    (
        "q = torch.log(x)\nr = x / q\nreturn (r.detach() * x).sum()",
        [],
    ),
    (
        "q = x.abs() ** 2 + 1\nreturn (torch.sqrt(q - 1) * x).sum()",
        ["nanlab.safe.sqrt", "inside the root"],
    ),
    (
        "q = torch.sqrt(x)\nr = 1 / q\nreturn (r.detach() * x).sum()",
        ["nanlab.safe.div", "clamp the divisor"],
    ),
    (
        "d = x * 1\nr = d.pow_(-0.5)\nreturn (r * d).sum()",
        ["nanlab.safe.pow", "clamp the base", "an epsilon of"],
    ),
    (
        "d = x * 1\nd.sqrt_()\nreturn d.sum()",
        ["nanlab.safe.sqrt", "clamp the argument", "inside the root"],
    ),
    (
        "return x.abs().add_(0).sqrt_().sum()",
        ["nanlab.safe.sqrt", "inside the root"],
    ),
    ("return torch.exp(x * 200).mean().log() / 200", ["logsumexp"]),
    ("return torch.exp(x.repeat(2, 1) * 200).mean(0).log().sum()", ["logsumexp"]),
    ("return (x * 200).exp().sum().log()", ["logsumexp"]),
    ("return (torch.complex(x, x) ** 0.5).real.sum()", ["an epsilon of"]),
    ("return torch.exp(torch.complex(x * 100, x)).abs().sum()", ["clamp the real part"]),
]


@pytest.mark.examples(every=3)
@pytest.mark.parametrize(("body", "held"), PROGRAMS)
def test_a_fix_that_holds_cures_the_program(body: str, held: list[str], tmp_path: Path) -> None:
    file, _, found = diagnosed(body, tmp_path)
    finite = [fix for fix in found if holds(fix)]
    for fix in finite:
        assert cures(file, fix, tmp_path), fix
    for title in held:
        assert any(title in fix.title for fix in finite), (title, found)


@pytest.mark.parametrize(
    "body",
    [
        # what follows is a logarithm whose argument no longer is 0, a root that gets no 0, a mask
        # around the logarithm
        "q = (x + 1) / (x * 0 + g)\nreturn torch.log(q + 1.0).sum()",
        "q = (x + 1) / g\nreturn torch.tanh(q).sum()",
        "q = (x + 1) / g\nreturn torch.exp(-q).sum()",
        (
            "q = x.detach() / g\np = torch.where(q > 0, torch.log(q), 0.0)\nreturn (x * p).sum() +"
            " (x * q).sum()"
        ),
    ],
)
def test_a_fix_that_cures_the_program_holds_whatever_follows(body: str, tmp_path: Path) -> None:
    file, _, found = diagnosed(body, tmp_path)
    cured = [fix for fix in found if cures(file, fix, tmp_path)]
    assert cured
    assert all(holds(fix) for fix in cured), cured


@pytest.mark.parametrize(
    "body",
    [
        "for t in d:\n        t.sqrt_()",  # somebody else's tensor
        "d.sqrt_()",  # an argument
        "d[0].sqrt_()",
        "d.w.sqrt_()",
        "t = d\n    t.sqrt_()",  # a second name
        "t = d.view(-1)\n    t.sqrt_()",  # a view
        "d.view(-1).sqrt_()",
    ],
)
def test_a_method_that_writes_to_what_others_see_is_left_alone(body: str) -> None:
    text = f"def f(d):\n    {body}\n"
    place = Place(len(text.splitlines()))
    assert not guarded(text, place, GUARDS, numbers(torch.float32))


def test_a_sum_over_its_count_becomes_a_mean_and_is_not_divided_again(tmp_path: Path) -> None:
    file, _, found = diagnosed(
        "p = (x * 100).half().repeat(1000)\nreturn (p.sum(-1) / p.shape[-1]).float()", tmp_path
    )
    means = [fix for fix in found if "instead of the sum divided" in fix.title]
    assert [fix.code for fix in means] == ["return p.mean(-1).float()"]
    assert holds(means[0]) and cures(file, means[0], tmp_path)
    changed = sorted(tmp_path.glob("changed*"))[-1]
    assert float(run(changed)[0]) == pytest.approx(100 * 1.3 / 3, rel=1e-3)  # half has eleven bits


def test_the_mean_of_something_else_than_the_count_is_not_offered(tmp_path: Path) -> None:
    _, _, found = diagnosed(
        "p = (x * 100).half().repeat(1000)\nreturn (p.sum(-1) / x.shape[-1]).float()", tmp_path
    )
    assert not [fix for fix in found if "mean" in fix.title and fix.verified]


def test_a_number_is_not_cast_to_float32(tmp_path: Path) -> None:
    body = "s = 127.0 / x.detach().half().abs()\nreturn (s.float() * x).sum()"
    _, _, found = diagnosed(body, tmp_path)
    assert not any("127.0.float()" in fix.code for fix in found)


def test_masked_entries_count_for_no_distortion(tmp_path: Path) -> None:
    body = (
        "s = (x.detach() * 1).masked_fill(g == 0, -math.inf).repeat(2, 1) + torch.tensor([[0.0],"
        " [-math.inf]])\nt = s.amax(1, keepdim=True) + x.sum() * 0\nreturn torch.exp(s - t).sum()"
    )
    _, finding, _ = diagnosed(body, tmp_path)
    bounded = [fix for fix in finding.fixes if "-10000" in fix.title]
    assert bounded and all(holds(fix) and (fix.distortion or 0.0) < 1e-6 for fix in bounded)


@pytest.mark.parametrize(
    "body",
    [
        "return (torch.complex(x, x) ** 0.5).real.sum()",
        "return torch.exp(torch.complex(x * 100, x)).abs().sum()",
    ],
)
def test_complex_operands_bring_no_warning_and_no_names_of_errors(
    body: str, tmp_path: Path
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        _, finding, _ = diagnosed(body, tmp_path)
    assert not any("Error" in fix.title for fix in finding.fixes)


def test_a_fix_is_not_judged_by_what_an_update_with_bad_gradients_left() -> None:
    """The generator's loss goes through the critic's parameters after their update: NaN, as it was
    recorded, whatever the fix of the critic's loss is."""
    torch.manual_seed(0)
    critic, maker = nn.Linear(3, 1), nn.Linear(2, 3)
    with torch.no_grad():
        critic.weight.mul_(100)
    optimizer = torch.optim.SGD(critic.parameters(), 0.1)
    real, noise = torch.randn(8, 3) * 8 + 5, torch.randn(8, 2)
    with nanlab.watch(nn.ModuleList([critic, maker]), on_fault="record") as trace:
        right = torch.sigmoid(critic(real))
        wrong = torch.sigmoid(critic(maker(noise).detach()))
        loss = -(torch.log(right) + torch.log(1 - wrong)).mean()
        loss.backward()
        optimizer.step()
        fooled = critic(maker(noise)).mean()
        fooled.backward()
    assert trace.culprit is not None
    first = trace.culprit.fixes[0]
    assert first.verdict == "verified"
    assert "torch.nn.functional.logsigmoid(-wrong_logits)" in first.code


def test_an_isolated_node_stays_isolated_next_to_the_step() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(5, 4)
    x, edges = torch.randn(6, 5), torch.zeros(6, 6)
    for a, b in ((0, 1), (2, 3)):
        edges[a, b] = edges[b, a] = 1.0
    with nanlab.watch(layer, on_fault="record") as trace:
        degree = edges.sum(1)
        scale = torch.diag(degree**-0.5)
        out = scale @ edges @ scale @ layer(x)
        nn.functional.cross_entropy(out, torch.tensor([0, 1, 2, 3, 0, 1])).backward()
    assert trace.culprit is not None
    assert [fix.verdict for fix in trace.culprit.fixes] == ["verified"] * 3
    assert trace.culprit.fixes[0].code == "scale = torch.diag(nanlab.safe.pow(degree, -0.5))"
