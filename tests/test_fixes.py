"""Fixes: another line for the one that failed, tried on the whole step."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fixing import holds

import nanlab
from nanlab.fixes.example import Place, guarded, masked
from nanlab.fixes.guards import FACTS, GUARDS, Guard, numbers
from nanlab.rules import Fix, remedies


def fixes_of(run: Callable[[], object]) -> list[Fix]:
    with nanlab.watch(on_fault="record") as trace:
        run()
    assert trace.culprit is not None
    return trace.culprit.fixes


def written(text: str, *examples: tuple[str, str], line: int = 1) -> list[str]:
    """A statement with what these examples make of it."""
    guards = [Guard("", before, after) for before, after in examples]
    return [c.text for c in guarded(text, Place(line), guards, numbers(torch.float32))]


@pytest.mark.parametrize(
    ("line", "after", "expected"),
    [
        ("d = torch.sqrt(d2)", "nanlab.safe.sqrt($x)", "d = nanlab.safe.sqrt(d2)"),
        ("d = d2.sqrt() + f('#')", "nanlab.safe.sqrt($x)", "d = nanlab.safe.sqrt(d2) + f('#')"),
        ("d = sqrt(a + b)", "torch.sqrt($x + 1e-6)", "d = torch.sqrt((a + b) + 1e-6)"),
        ("d = self.net.sqrt()", "nanlab.safe.sqrt($x)", "d = nanlab.safe.sqrt(self.net)"),
        ("d = a**0.5", "nanlab.safe.sqrt($x)", "d = nanlab.safe.sqrt(a)"),
        ("d = é.sqrt()", "f($x)", "d = f(é)"),
    ],
)
def test_a_call_is_written_otherwise_and_the_rest_of_its_line_stays(
    line: str, after: str, expected: str
) -> None:
    assert written(line, ("sqrt($x)", after)) == [expected]


def test_infix_operations_are_written_otherwise() -> None:
    assert written("a /= b", ("$x / $y", "nanlab.safe.div($x, $y)")) == [
        "a = nanlab.safe.div(a, b)"
    ]
    assert written("y = x ** 0.3", ("$x ** $p", "$x.clamp_min(1e-6) ** $p")) == [
        "y = x.clamp_min(1e-6) ** 0.3"
    ]
    # by a plain number: not the culprit
    assert not written("y = x / 2", ("$x / $y", "f($x, $y)"))
    assert not written("y = x / math.pi", ("$x / $y", "f($x, $y)"))
    # a number has no method
    assert written("y = 127.0 / x", ("$n / $x", "$n.float() / $x.float()")) == [
        "y = 127.0 / x.float()"
    ]


def test_an_expression_over_several_lines_comes_back_in_one_piece() -> None:
    text = "def f(x):\n    y = torch.log(\n        x,\n    )\n    return y\n"
    found = guarded(text, Place(2), [Guard("", "log($x)", "nanlab.safe.log($x)")], {})
    assert [(c.first, c.last, c.text) for c in found] == [(2, 4, "y = nanlab.safe.log(x)")]


def test_of_several_statements_on_a_line_the_one_that_failed_is_rewritten_and_the_others_stay() -> (
    None
):
    line = "a = 1; y = torch.log(x); z = y"
    found = guarded(line, Place(1, (1, 11, 1, 23)), [Guard("", "log($x)", "f($x)")], {})
    assert [c.text for c in found] == ["a = 1; y = f(x); z = y"]


def test_what_stands_before_and_behind_an_augmented_assignment_stays() -> None:
    guard = Guard("", "$x / $y", "f($x, $y)")
    assert [
        c.text for c in guarded("if n: x /= y; z = x", Place(1, (1, 6, 1, 12)), [guard], {})
    ] == ["if n: x = f(x, y); z = x"]


def test_a_line_that_does_not_parse_is_left_alone() -> None:
    assert not written("%time y = torch.log(x)", ("log($x)", "f($x)"))


def test_arguments_that_an_example_does_not_name_stay() -> None:
    examples = ("softmax($x, ...)", "torch.softmax($x.clamp_min(0), ...)")
    assert written("p = x.softmax(dim=-1)", examples) == [
        "p = torch.softmax(x.clamp_min(0), dim=-1)"
    ]
    assert written("p = gumbel(s, tau=t)", ("$f(..., tau=$n)", "$f(..., tau=max($n, 1))")) == [
        "p = gumbel(s, tau=max(t, 1))"
    ]


def test_what_draws_random_numbers_is_not_written_twice() -> None:
    found = written("y = x / torch.rand(3)", ("$x / $y", "$x / ($y + $y)"))
    assert found == ["y = x / ((inner_y := torch.rand(3)) + inner_y)"]


def test_of_several_operations_alike_the_one_that_failed_is_rewritten_and_then_all() -> None:
    line, guard = "y = a.log() + b.log()", Guard("", "log($x)", "f($x)")
    found = guarded(line, Place(1, (1, 14, 1, 21)), [guard], {})
    assert [c.text for c in found] == ["y = a.log() + f(b)", "y = f(a) + f(b)"]


def test_facts_that_guards_ask_for_exist() -> None:
    assert {fact for guard in GUARDS for fact in guard.when.split()} <= FACTS.keys()


def test_verified_fixes_come_first_and_the_least_distorting_of_them() -> None:
    x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    fixes = fixes_of(lambda: (x.sqrt() * 1.0).sum().backward())
    ranks = [{True: 0, None: 1, False: 2}[f.verified] for f in fixes]
    assert ranks == sorted(ranks) and ranks[0] == 0
    cost = [round(f.distortion or 0.0, 6) for f in fixes if holds(f)]
    assert cost == sorted(cost)
    assert any("nanlab.safe.sqrt(" in f.code for f in fixes if holds(f))


def test_repairing_the_value_alone_is_never_offered() -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)

    def run() -> None:
        logarithm = torch.log(x)
        torch.nan_to_num(logarithm).sum().backward()

    fixes = fixes_of(run)
    assert fixes and not any("nan_to_num" in f.code for f in fixes)


def test_what_is_not_tried_for_its_work_is_said_to_be_untried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remedies, "WORK", 0)
    x = torch.zeros(3, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        x.log().sum().backward()
    found = trace.culprit.fixes if trace.culprit is not None else []
    assert any("all the work" in f.why for f in found)
    assert not any(f.verdict in ("verified", "finite") for f in found)


def test_fixes_are_tried_alike_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    def verdicts() -> list[tuple[str, str, str]]:
        x = torch.zeros(3, requires_grad=True)
        with nanlab.watch(on_fault="record") as trace:
            (torch.sin(x) / x).sum().backward()
        assert trace.culprit is not None
        return [(f.title, f.verdict, f.why) for f in trace.culprit.fixes]

    usual, hours = verdicts(), itertools.count(0, 3600)
    for clock in ("process_time", "thread_time", "perf_counter", "monotonic"):
        monkeypatch.setattr(time, clock, lambda: float(next(hours)))
    assert verdicts() == usual
    assert "verified" in {verdict for _, verdict, _ in usual}


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
    assert culprit.fixes and tried


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
    assert any("torch.nn.functional.logsigmoid(z.half())" in f.code for f in fixes if holds(f))
    assert not any(holds(f) for f in fixes if f.title.startswith("compute this operation in fl"))


def text_of(*lines: str) -> str:
    return "def f(x, y, z, m):\n" + "".join(f"    {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("lines", "line", "expected"),
    [
        (
            ["return torch.where(m, torch.sqrt(x), 0.0)"],
            2,
            "return torch.where(m, torch.sqrt(torch.where(m, x, 1)), 0.0)",
        ),
        (
            ["r = x.sqrt()", "return torch.where(x > 0, r, y)"],
            2,
            "r = torch.where(x > 0, x, 1).sqrt()",
        ),
        (
            ["r = torch.sqrt(x)", "return torch.where(m, y, r)"],
            2,
            "r = torch.sqrt(torch.where(m, 1, x))",
        ),
        (["return m * torch.sqrt(x)"], 2, "return m * torch.sqrt(torch.where(m != 0, x, 1))"),
        (["r = torch.sqrt(x)", "r[x == 0] = 0"], 2, "r = torch.sqrt(torch.where(x == 0, 1, x))"),
        (
            ["return torch.sqrt(x).masked_fill(m, 0)"],
            2,
            "return torch.sqrt(torch.where(m, 1, x)).masked_fill(m, 0)",
        ),
    ],
)
def test_the_programs_own_mask_is_put_on_the_argument_too(
    lines: list[str], line: int, expected: str
) -> None:
    assert [c.text for c in masked(text_of(*lines), Place(line))] == [expected]


def test_a_mask_made_only_after_the_operation_is_not_put_before_it() -> None:
    text = text_of("r = torch.sqrt(x)", "k = r > 0", "return torch.where(k, r, 0.0)")
    assert not masked(text, Place(2))


def test_a_factor_is_a_mask_of_a_logarithm_of_its_quotient() -> None:
    text = text_of("return x * torch.log(x / y)")
    expected = "return x * torch.log(torch.where(x != 0, x / y, 1))"
    assert expected in [made.text for made in masked(text, Place(2))]


def test_a_factor_is_no_mask_of_its_own_norm() -> None:
    text = text_of("gn = p.grad.norm()", "trust = wn / gn", "step = trust * p.grad")
    assert not masked(text, Place(2))


@pytest.mark.parametrize(("foreach", "fused"), [(False, False), (True, False), (False, True)])
def test_a_larger_eps_is_tried_on_the_state_of_the_optimizer(foreach: bool, fused: bool) -> None:
    w = torch.ones(3, dtype=torch.float32 if fused else torch.float16, requires_grad=True)
    opt = torch.optim.AdamW([w], lr=0.1, eps=0.0 if fused else 1e-8, foreach=foreach, fused=fused)

    def step() -> None:
        (w * torch.tensor([0.0, 1.0, 2.0]).to(w.dtype)).sum().backward()
        opt.step()

    verified = [f.code for f in fixes_of(step) if holds(f)]
    wanted = f"opt = torch.optim.AdamW([w], lr=0.1, eps={'1e-8' if fused else '1e-4'}"
    assert any(code.startswith(wanted) for code in verified)


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


def test_a_gradient_that_overflows_in_half_needs_a_smaller_loss() -> None:
    w = torch.ones(4, 1, dtype=torch.float16, requires_grad=True)
    bias = torch.zeros(1, dtype=torch.float16, requires_grad=True)
    x = torch.full((100, 4), 0.5, dtype=torch.float16)
    # 100000 for the bias
    fixes = fixes_of(lambda: (torch.addmm(bias, x, w).float() * 1000).sum().backward())
    assert "(loss * 0.0625).backward()" in [f.code.split("   #")[0] for f in fixes]


def test_a_cast_whose_gradient_overflows_without_a_loss_scale_is_not_told_of_one() -> None:
    half = torch.tensor([6e4], dtype=torch.float16, requires_grad=True)
    fixes = fixes_of(lambda: (half.float() * 3e4 * 2.0**4).sum().backward())
    assert fixes and not any("loss_scale" in f.code or "Scaler" in f.code for f in fixes)


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
