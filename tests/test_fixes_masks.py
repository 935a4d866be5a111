"""Fixes of masks, and what a fix must not claim: constants that half precision cannot hold, lines
that fail twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fixing import holds
from torch import nn

import nanlab
from nanlab.rules import Finding


class Masked(nn.Module):
    """Scores hidden by a constant that is kept as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor(-1e9))
        self.lin = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.lin(x) + hidden * self.low, -1)


def hide_one(net: nn.Module) -> None:
    net(torch.ones(2, 3).half(), torch.tensor([0.0, 1.0, 0.0]).half())[:, 0].sum().backward()


def culprit_of(trace: nanlab.Trace) -> Finding:
    assert trace.culprit is not None
    return trace.culprit


def test_a_buffer_that_hides_scores_is_not_filled_with_zeros() -> None:
    with nanlab.watch(on_fault="record") as trace:
        hide_one(Masked().half())
    finding = culprit_of(trace)
    assert finding.cause == "mask-overflow"  # the cast that made it was watched
    assert not any("nan_to_num" in fix.code for fix in finding.fixes if holds(fix))


def test_a_finite_mask_is_one_that_half_precision_holds_with_room_to_spare() -> None:
    net = Masked().half()
    with nanlab.watch(net, on_fault="record") as trace:
        hide_one(net)
    finding = culprit_of(trace)
    assert finding.cause == "zero-times-inf"
    assert any(
        holds(fix) and "hidden * self.low.clamp(-1000, 1000)" in fix.code for fix in finding.fixes
    )


def test_a_fix_of_one_operation_is_doubted_where_another_on_its_line_fails_of_the_same_zero() -> (
    None
):
    w, a, v = torch.ones((), requires_grad=True), torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])
    with nanlab.watch(on_fault="record") as trace:
        (torch.log(w * v) + (w * a) ** 2 / (w * v)).sum().backward()
    finding = culprit_of(trace)
    assert finding.cause == "log-of-zero" and finding.fixes
    assert not any(fix.verified for fix in finding.fixes)


def test_an_eps_of_zero_is_replaced_where_it_is_written() -> None:
    w = torch.ones((), requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        nn.functional.normalize(
            w * torch.tensor([[0.0, 0.0], [1.0, 2.0]]), dim=-1, eps=0.0
        ).sum().backward()
    codes = [fix.code for fix in culprit_of(trace).fixes if holds(fix)]
    assert any("dim=-1, eps=1e-" in code and "eps=0.0" not in code for code in codes)


def test_the_angle_between_unit_vectors_is_no_norm_at_zero() -> None:
    a = torch.tensor([[1.0, 0.0], [1.0, 2.0]])
    w = torch.ones((), requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        torch.acos(
            (nn.functional.normalize(w * a, dim=-1) * nn.functional.normalize(a, dim=-1)).sum(-1)
        ).sum().backward()
    finding = culprit_of(trace)
    assert (finding.cause, finding.op, finding.phase) == (
        "inverse-function-at-edge",
        "acos",
        "backward",
    )


@pytest.mark.parametrize("line", ['m * float("-inf")', "-torch.inf * m", "m.half() * -torch.inf"])
def test_a_mask_times_an_infinity_is_told_and_given_a_finite_number(
    line: str, tmp_path: Path
) -> None:
    names = {"torch": torch, "w": torch.ones((), requires_grad=True), "m": torch.ones(2, 2).triu(1)}
    file = tmp_path / "masked.py"
    file.write_text(
        f"scores = w * torch.ones(2, 2)\nbias = {line}\ntorch.softmax(scores + bias, -1)[:,"
        " 0].sum().backward()\n"
    )
    with nanlab.watch(on_fault="record") as trace:
        exec(compile(file.read_text(), str(file), "exec"), names)
    finding = culprit_of(trace)
    assert (finding.cause, finding.op, finding.line) == ("zero-times-inf", "mul", 2)
    assert "3 elements of 4 became NaN" in finding.title
    assert any(holds(fix) and fix.code.endswith(("* -10000", "* -1000")) for fix in finding.fixes)


class Attention(torch.nn.Module):
    """Mean of attended tokens; one sequence is padding throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.qkv = torch.nn.Embedding(50, 16), torch.nn.Linear(16, 48)
        self.head = torch.nn.Linear(16, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = ids != 0
        q, k, v = self.qkv(self.emb(ids)).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
        scores = scores.masked_fill(~mask[:, None, :], float("-inf"))
        h = scores.softmax(-1) @ v
        return self.head((h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def test_what_has_no_value_in_a_step_too_large_for_exact_numbers_holds_no_fix_back() -> None:
    torch.manual_seed(0)
    net, ids = Attention(), torch.randint(1, 50, (8, 10))
    ids[:, 7:], ids[2] = 0, 0
    with nanlab.watch(net, on_fault="record") as trace:
        torch.nn.functional.cross_entropy(net(ids), torch.randint(0, 3, (8,))).backward()
    assert trace.culprit is not None and trace.culprit.cause == "softmax-all-masked"
    assert trace.cure is not None and trace.cure.verified, trace.cure
    assert "finfo(scores.dtype).min" in trace.cure.code and "safe.div" in trace.cure.code


@pytest.mark.parametrize(("tokens", "width"), [(4, 2), (48, 32)])  # small enough for exact numbers
@pytest.mark.parametrize("used", [True, False])
def test_a_mask_of_floats_stays_what_it_is_next_to_the_step(
    tokens: int, width: int, used: bool
) -> None:
    """A mask of 1e-8 would not hide anything: that is no neighbour of one of 0."""
    torch.manual_seed(0)
    query, value = nn.Linear(width, width), nn.Linear(width, width)
    x, y = torch.randn(3, tokens, width), torch.randn(3, tokens, width)
    mask = torch.ones(3, tokens)
    mask[2, tokens // 2 :] = 0
    mask[1] = 0
    with nanlab.watch(nn.ModuleList([query, value]), on_fault="record") as trace:
        s = query(x) @ x.transpose(1, 2)
        s = s.masked_fill(mask[:, None, :] == 0, float("-inf"))
        a = torch.softmax(s, -1)
        off = a @ value(x) - y
        loss = ((off if used else off[mask > 0]) ** 2).mean()
        loss.backward()
    fixes = culprit_of(trace).fixes
    assert [fix.code for fix in fixes if fix.verdict == "verified"][:2] == [
        "s = s.masked_fill(mask[:, None, :] == 0, torch.finfo(s.dtype).min)",
        "a = nanlab.safe.softmax(s, -1)",
    ]
    # what hides some tokens of another row is not to be undone
    assert not any("isinf()" in fix.code for fix in fixes if fix.verdict == "verified")


@pytest.mark.parametrize(
    ("line", "fix", "cause"),
    [
        ("h = s + (1 - m) * -1e9", "h = s + ((1 - m) * -1000)", "mask-overflow"),
        ("h = s + LOW * (1 - m)", "h = s + (-1000 * (1 - m))", "mask-overflow"),
        ("h = s - 1e9 * (1 - m)", "h = s - 1000 * (1 - m)", "dtype-overflow"),
        ("h = torch.where(m > 0, s, -1e9)", "h = torch.where(m > 0, s, -1000)", "dtype-overflow"),
    ],
)
def test_a_constant_that_hides_scores_becomes_one_that_half_precision_holds(
    line: str, fix: str, cause: str, tmp_path: Path
) -> None:
    s = torch.randn(2, 3, generator=torch.manual_seed(0)).half().requires_grad_()
    m = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]).half()  # the second row is not used
    code = f"LOW = -1e9\n{line}\np = torch.softmax(h, -1)\n(p[:, 0] * m[:, 0]).sum().backward()\n"
    (path := tmp_path / "program.py").write_text(code)
    with nanlab.watch(on_fault="record") as trace:
        exec(compile(code, str(path), "exec"), {"torch": torch, "s": s, "m": m})
    finding = culprit_of(trace)
    assert finding.cause == cause
    assert fix in [each.code for each in finding.fixes if each.verdict == "verified"]


def test_a_product_of_matrices_is_not_computed_twice_for_its_dtype() -> None:
    x, hidden = torch.randn(2, 3, 4, requires_grad=True), torch.ones(2, 1, 3, dtype=torch.bool)
    with nanlab.watch(on_fault="record") as trace:
        s = (x @ x.mT).masked_fill(hidden, float("-inf"))
        torch.softmax(s, -1).sum().backward()
    wanted = "s = (inner_x := x @ x.mT).masked_fill(hidden, torch.finfo(inner_x.dtype).min)"
    assert wanted in [fix.code for fix in culprit_of(trace).fixes]


def fixes_of_weighed_logarithms(weights: torch.Tensor) -> list[str]:
    """Titles of the fixes where a third of the logarithms has no value, and the weight 0."""
    rate = torch.tensor([1.5, -0.5, 0.7], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        (rate - weights * torch.log(rate)).sum().backward()
    assert culprit_of(trace).cause == "log-of-negative"
    return [fix.title for fix in culprit_of(trace).fixes]


def test_a_count_that_is_0_by_chance_is_no_mask() -> None:
    titles = fixes_of_weighed_logarithms(torch.tensor([3.0, 0.0, 1.0]))
    assert not any("the mask on the argument" in title or "xlogy" in title for title in titles)


def test_zeros_and_ones_are_a_mask() -> None:
    titles = fixes_of_weighed_logarithms(torch.tensor([1.0, 0.0, 1.0]))
    assert any("the mask on the argument" in title for title in titles)
