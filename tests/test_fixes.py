"""Fixes: one operation run again with a change, and the user's line written so."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fixing import holds

import nanlab
from nanlab.analysis.fixes import attempt, rewrite
from nanlab.analysis.fixes._inlining import log_sum_exp_of, logarithm_of, loss_of_logits, softmax_of
from nanlab.analysis.fixes._masking import corrections, double_where, finite_mask
from nanlab.analysis.fixes._rewriting import binary, called, power
from nanlab.analysis.fixes._trial import MOST_ELEMENTS, sampled
from nanlab.rules import Fix, remedies


def fixes_of(run: Callable[[], object]) -> list[Fix]:
    with nanlab.watch(on_fault="record") as trace:
        run()
    assert trace.culprit is not None
    return trace.culprit.fixes


@pytest.mark.parametrize(
    ("line", "form", "expected"),
    [
        ("d = torch.sqrt(d2)", "nanlab.safe.sqrt({x})", "d = nanlab.safe.sqrt(d2)"),
        ("d = d2.sqrt() * 2  # why", "nanlab.safe.sqrt({x})", "d = nanlab.safe.sqrt(d2) * 2"),
        ("d = d2.sqrt() + f('#')", "nanlab.safe.sqrt({x})", "d = nanlab.safe.sqrt(d2) + f('#')"),
        ("d = sqrt(a + b)", "torch.sqrt({X} + 1e-6)", "d = torch.sqrt((a + b) + 1e-6)"),
        ("d = self.net.sqrt()", "nanlab.safe.sqrt({x})", "d = nanlab.safe.sqrt(self.net)"),
        ("d = torch.sqrt(torch.sqrt(é))", "f({x})", "d = f(f(é))"),
    ],
)
def test_a_call_is_written_otherwise_and_the_rest_of_its_line_stays(
    line: str, form: str, expected: str
) -> None:
    found = rewrite(line, 1, [called("sqrt")], form)
    assert found is not None and found.text == expected


def test_infix_operations_are_written_otherwise() -> None:
    quotient = rewrite("a /= b", 1, [binary(ast.Div)], "nanlab.safe.div({x}, {y})")
    assert quotient is not None and quotient.text == "a = nanlab.safe.div(a, b)"
    root = rewrite("y = x ** 0.3", 1, [power], "{X}.clamp_min(1e-6) ** {Y}")
    assert root is not None and root.text == "y = x.clamp_min(1e-6) ** 0.3"
    # by a plain number: not the culprit
    assert rewrite("y = x / 2", 1, [binary(ast.Div)], "f({x}, {y})") is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("y = x.pow(p).mean(d).pow(q)", "y = (x.float() ** p).mean(d).float() ** q"),
        ("y = x.pow(p) ** q", "y = (x.float() ** p).float() ** q"),
        ("y = -x.pow(p)[0]", "y = -(x.float() ** p)[0]"),
        (
            "y = f(x.pow(2), ax.pow(2) + x.pow(2))",
            "y = f(x.float() ** 2, (ax.float() ** 2) + (x.float() ** 2))",
        ),
        ("y = a ** b * c", "y = a.float() ** b * c"),
    ],
)
def test_a_method_written_as_an_infix_operation_keeps_its_place_in_the_expression(
    line: str, expected: str
) -> None:
    found = rewrite(line, 1, [power], "{X}.float() ** {Y}")
    assert found is not None and found.text == expected


def test_an_expression_over_several_lines_comes_back_in_one_piece() -> None:
    text = "def f(x):\n    y = torch.log(\n        x,\n    )\n    return y\n"
    found = rewrite(text, 2, [called("log")], "nanlab.safe.log({x})")
    assert found is not None and (found.first, found.last, found.text) == (
        2,
        4,
        "y = nanlab.safe.log(x)",
    )


def test_a_line_that_does_not_parse_is_left_alone() -> None:
    assert rewrite("%time y = torch.log(x)", 1, [called("log")], "f({x})") is None


def test_a_trial_tells_value_gradient_and_distortion() -> None:
    x = torch.tensor([0.0, 4.0])
    failed = attempt(lambda t: t.sqrt() + 1e-3, torch.sqrt, [x])
    assert not failed.finite and "gradient" in failed.why
    cured = attempt(lambda t: (t + 0.04).sqrt(), torch.sqrt, [x])
    assert cured.finite
    assert cured.distortion == pytest.approx(math.sqrt(4.04) / 2 - 1, rel=1e-4)
    # incoming 0.5, derivative 1 / (2 sqrt(0.04))
    assert cured.gradient_max == pytest.approx(0.5 / (2 * 0.2))


def test_a_value_next_to_overflow_is_no_cure() -> None:
    x = torch.tensor([100.0, 1.0])
    assert not attempt(nanlab.safe.exp, torch.exp, [x]).finite


def test_verified_fixes_come_first_and_the_least_distorting_of_them() -> None:
    x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    fixes = fixes_of(lambda: (x.sqrt() * 1.0).sum().backward())
    ranks = [{True: 0, None: 1, False: 2}[f.verified] for f in fixes]
    assert ranks == sorted(ranks) and ranks[0] == 0
    cost = [f.distortion for f in fixes if holds(f)]
    assert cost == sorted(cost)
    assert any("nanlab.safe.sqrt(" in f.code for f in fixes if holds(f))
    assert any(f.verdict == "fails" and f.why for f in fixes)  # an epsilon after the root


def test_repairing_the_value_alone_is_never_offered() -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)

    def run() -> None:
        logarithm = torch.log(x)
        torch.nan_to_num(logarithm).sum().backward()

    fixes = fixes_of(run)
    assert fixes and not any("nan_to_num" in f.code for f in fixes)


def test_fixes_of_huge_operands_are_tried_on_a_sample_that_holds_what_failed() -> None:
    x = torch.rand(1000, 1000)
    x[3, 5] = 0.0
    (sample,), gradient = sampled([x], torch.ones_like(x), x == 0)
    assert gradient is not None and sample.numel() == gradient.numel() <= 2 * MOST_ELEMENTS
    assert int((sample == 0).sum()) == 1
    x.requires_grad_()
    with nanlab.watch(on_fault="record") as trace:
        x.log().sum().backward()
    assert trace.culprit is not None and any(holds(f) for f in trace.culprit.fixes)


def test_what_is_not_tried_in_time_is_said_to_be_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remedies.Clock, "spent", lambda clock: True)
    x = torch.zeros(3, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        x.log().sum().backward()
    found = trace.culprit.fixes if trace.culprit is not None else []
    assert any("used up" in f.why for f in found)
    assert not any(f.verdict in ("verified", "finite") for f in found)


def test_no_fix_is_tried_before_somebody_reads_the_fixes(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    judged = remedies._judged

    def note(*args: Any) -> Fix:
        tried.append(args[2].title)
        return judged(*args)

    monkeypatch.setattr(remedies, "_judged", note)
    x = torch.zeros(3, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        x.log().sum().backward()
    culprit = trace.culprit
    assert culprit is not None and culprit.cause == "log-of-zero" and not tried
    assert culprit.fixes and len(tried) == len(culprit.fixes)


def test_a_larger_adam_eps_is_not_offered_for_a_bad_loss() -> None:
    w = torch.nn.Parameter(torch.zeros(3))
    opt = torch.optim.Adam([w])

    def step() -> None:
        (w / w.norm()).sum().backward()
        opt.step()

    assert not any("eps=" in f.code and "Adam" in f.code for f in fixes_of(step))


def test_logarithm_of_a_half_probability_is_led_back_to_its_logits() -> None:
    z = torch.tensor([-20.0, 20.0, 0.5], requires_grad=True)
    fixes = fixes_of(lambda: torch.log(torch.sigmoid(z.half())).float().sum().backward())
    verified = [f.code for f in fixes if holds(f)]
    assert any("torch.nn.functional.logsigmoid(z.half())" in code for code in verified)
    assert any("torch.sigmoid(z.half().float())" in code for code in verified)
    assert [holds(f) for f in fixes if f.title.startswith("compute this operation in float32")] == [
        False
    ]


def text_of(*lines: str) -> str:
    return "def f(x, y, z, m):\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("lines", "kind", "expected"),
    [
        (["return torch.log(torch.softmax(z, -1))"], "softmax", "return torch.log_softmax(z, -1)"),
        (
            ["p = z.softmax(dim=1)", "return p.log()[y]"],
            "softmax",
            "return torch.log_softmax(z, dim=1)[y]",
        ),
        (
            ["p = torch.softmax(z, 1)", "return -(p[y] + 1e-8).log()"],
            "softmax",
            "return -torch.log_softmax(z, 1)[y]",
        ),
        (
            ["p = torch.softmax(z, 1)", "return torch.log(p.gather(1, y).clamp_min(1e-9))"],
            "softmax",
            "return torch.log_softmax(z, 1).gather(1, y)",
        ),
        (
            ["p = torch.sigmoid(z)", "return y * torch.log(p) + (1 - y) * torch.log(1 - p)"],
            "sigmoid",
            (
                "return y * torch.nn.functional.logsigmoid(z) + (1 - y) *"
                " torch.nn.functional.logsigmoid(-(z))"
            ),
        ),
        (
            ["z = torch.softmax(z, -1)", "return (y * torch.log(z)).sum() + z"],
            "softmax",
            "log_z = torch.log_softmax(z, -1); z = log_z.exp()\nreturn (y * log_z).sum() + z",
        ),
    ],
)
def test_logarithm_of_a_probability_is_written_from_the_logits(
    lines: list[str], kind: str, expected: str
) -> None:
    found = logarithm_of(text_of(*lines), 1 + len(lines), kind)
    assert found is not None and found.text == expected


def test_rewritten_logarithms_have_the_same_value() -> None:
    z, y = (
        torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
        torch.tensor([[0], [2], [3]]),
    )
    program = text_of("z = torch.softmax(z, -1)", "return torch.log(z).gather(1, y) * z.sum()")
    found = logarithm_of(program, 3, "softmax")
    assert found is not None
    names: dict[str, object] = {"torch": torch}
    exec(program, names)
    before = names["f"](None, y, z, None)  # type: ignore[operator]
    exec(text_of(*found.text.splitlines()), names)
    assert torch.allclose(before, names["f"](None, y, z, None))  # type: ignore[operator]


@pytest.mark.parametrize(
    "lines",
    [
        # z is another by then
        ["z = z + 1", "p = torch.sigmoid(z)", "z = 0", "return torch.log(p)[0]", "p = 1"],
        ["p = g(z)", "return torch.log(p)"],
    ],
)
def test_a_logarithm_whose_logits_cannot_be_written_there_is_left_alone_or_kept_apart(
    lines: list[str],
) -> None:
    at = 1 + next(i for i, row in enumerate(lines, 1) if "log" in row)
    found = logarithm_of(text_of(*lines), at, "sigmoid")
    assert found is None or found.text.startswith(
        "log_p = torch.nn.functional.logsigmoid(z); p = log_p.exp()"
    )


@pytest.mark.parametrize(
    ("lines", "line", "expected"),
    [
        (
            ["return torch.where(m, torch.sqrt(x), 0.0)"],
            2,
            "return torch.where(m, torch.sqrt(torch.where(m, x, 1.0)), 0.0)",
        ),
        (
            ["r = x.sqrt()", "return torch.where(x > 0, r, y)"],
            2,
            "r = torch.where(x > 0, x, 1.0).sqrt()",
        ),
        (
            ["r = torch.sqrt(x)", "return torch.where(m, y, r)"],
            2,
            "r = torch.sqrt(torch.where(m, 1.0, x))",
        ),
        (["return m * torch.sqrt(x)"], 2, "return m * torch.sqrt(torch.where(m != 0, x, 1.0))"),
        (["r = torch.sqrt(x)", "r[x == 0] = 0"], 2, "r = torch.sqrt(torch.where(x == 0, 1.0, x))"),
        (
            ["return torch.sqrt(x).masked_fill(m, 0)"],
            2,
            "return torch.sqrt(torch.where(m, 1.0, x)).masked_fill(m, 0)",
        ),
    ],
)
def test_the_programs_own_mask_is_put_on_the_argument_too(
    lines: list[str], line: int, expected: str
) -> None:
    found = double_where(text_of(*lines), line, [called("sqrt")], 0, "1.0")
    assert found is not None and found.text == expected


def test_a_mask_made_only_after_the_operation_is_not_put_before_it() -> None:
    text = text_of("r = torch.sqrt(x)", "k = r > 0", "return torch.where(k, r, 0.0)")
    assert double_where(text, 2, [called("sqrt")], 0, "1.0") is None


def test_quotients_of_exponentials_masks_and_corrections_are_written_otherwise() -> None:
    soft = softmax_of(text_of("e = torch.exp(z)", "return e / e.sum(1, keepdim=True)"), 2)
    assert soft is not None and soft.text == "return torch.softmax(z, 1)" and soft.first == 3
    steps = text_of("e = torch.exp(z)", "s = e.sum(-1)", "return torch.log(s)")
    total = log_sum_exp_of(steps, 2)
    assert total is not None and total.text == "return torch.logsumexp(z, -1)" and total.first == 4
    loss = loss_of_logits(
        text_of("p = torch.sigmoid(z)", "return F.binary_cross_entropy(p, y, weight=m)"), 3
    )
    fused = "return torch.nn.functional.binary_cross_entropy_with_logits(z, y, weight=m)"
    assert loss is not None and loss.text == fused
    mask = finite_mask(
        text_of('z = z.masked_fill(m, float("-inf"))', "return torch.softmax(z, -1)"), 3
    )
    assert mask is not None and mask.text == "z = z.masked_fill(m, torch.finfo(z.dtype).min)"
    both = corrections(text_of("a = x / (1 - 0.9**y)", "b = z / (1 - 0.99**y)"), 2)
    assert (
        both is not None
        and both.text == "a = x / (1 - 0.9**y or 1.0)\nb = z / (1 - 0.99**y or 1.0)"
    )


@pytest.mark.parametrize(("foreach", "fused"), [(False, False), (True, False), (False, True)])
def test_a_larger_eps_is_tried_on_the_state_of_the_optimizer(foreach: bool, fused: bool) -> None:
    w = torch.ones(3, dtype=torch.float32 if fused else torch.float16, requires_grad=True)
    opt = torch.optim.AdamW([w], lr=0.1, eps=0.0 if fused else 1e-8, foreach=foreach, fused=fused)

    def step() -> None:
        (w * torch.tensor([0.0, 1.0, 2.0]).to(w.dtype)).sum().backward()
        opt.step()

    verified = [f.code for f in fixes_of(step) if holds(f)]
    wanted = f"torch.optim.AdamW(parameters, lr=..., eps={'1e-8' if fused else '1e-4'})"
    assert any(wanted in code for code in verified)


def test_a_cast_to_float8_is_tried_without_a_note() -> None:
    x = torch.tensor([1.0, 1e6, 3.0], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        x.to(torch.float8_e5m2).float().sum().backward()
    assert trace.culprit is not None and any(holds(f) for f in trace.culprit.fixes)
    assert not trace.notes


def test_what_is_tried_again_prints_no_warning_of_its_own(
    capfd: pytest.CaptureFixture[str],
) -> None:
    x = torch.ones(1, requires_grad=True)
    with pytest.warns(UserWarning, match="degrees of freedom"):
        fixes = fixes_of(lambda: torch.std(x).backward())
    assert any(holds(f) for f in fixes)
    assert "degrees of freedom" not in capfd.readouterr().err


def test_trying_fixes_leaves_the_random_state_as_it_was() -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    before = torch.get_rng_state()
    assert fixes_of(lambda: torch.sqrt(x).sum().backward())
    assert torch.equal(before, torch.get_rng_state())


def test_a_gradient_that_overflows_in_half_is_tried_with_a_smaller_loss() -> None:
    w = torch.ones(4, 1, dtype=torch.float16, requires_grad=True)
    bias = torch.zeros(1, dtype=torch.float16, requires_grad=True)
    x = torch.full((100, 4), 0.5, dtype=torch.float16)
    # 100000 for the bias
    fixes = fixes_of(lambda: (torch.addmm(bias, x, w).float() * 1000).sum().backward())
    assert [f.code.split("   #")[0] for f in fixes if holds(f)] == ["(loss * 0.0625).backward()"]


def test_a_cast_whose_gradient_overflows_without_a_loss_scale_is_not_told_of_one() -> None:
    half = torch.tensor([6e4], dtype=torch.float16, requires_grad=True)
    fixes = fixes_of(lambda: (half.float() * 3e4 * 2.0**4).sum().backward())
    assert any(holds(f) for f in fixes) and not any(
        "loss_scale" in f.code or "Scaler" in f.code for f in fixes
    )


def test_fixes_are_tried_with_autograd_also_where_the_watch_stops_inside_an_operation() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 1e-3), torch.amp.GradScaler("cpu")
    with nanlab.watch(model, on_fault="stop") as trace:
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                p = torch.softmax(model(torch.tensor([[30.0, -30.0, 60.0, -60.0]])) * 20, -1)
                loss = -torch.log(p.half()).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            # the culprit is judged in here, in the operation that updates the scale
            scaler.update()
    assert trace.culprit is not None
    safe = next(fix for fix in trace.culprit.fixes if "nanlab.safe.log" in fix.code)
    assert safe.verdict != "untried"
