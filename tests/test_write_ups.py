"""The NaN hunts that practitioners wrote up: the cause, the line, and the cure that each of them
arrived at, tried out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixing import holds
from torch import Tensor, nn
from torch.nn import functional as F

import nanlab
from nanlab.rules import Finding, Fix


def seeded(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def watched(program: Callable[[], object]) -> tuple[nanlab.trace.Trace, Finding]:
    with nanlab.watch(on_fault="record") as trace:
        program()
    found = trace.culprit or next((f for f in trace.findings if f.severity == "error"), None)
    assert found is not None
    return trace, found


def offered(finding: Finding, *, verified: bool) -> str:
    return "\n".join(f.code for f in finding.fixes if holds(f) or not verified)


# -- programs; the faulty line ends in "# here"
# ------------------------------------------------------------


def a_custom_layer_before_log_softmax() -> None:
    """LogSoftmaxBackward0 is where it is seen; the root of the custom layer is where it is born."""
    x = seeded(4, 6).requires_grad_()
    energy = (x * torch.tensor([[1.0], [1.0], [0.0], [1.0]])).square().sum(1, keepdim=True)
    scale = torch.sqrt(energy)  # here
    F.cross_entropy(x * scale, torch.tensor([0, 1, 2, 3])).backward()


def an_angle_between_equal_vectors() -> None:
    x = F.normalize(torch.ones(3, 4) * torch.tensor([[1.0], [1.0], [-1.0]]), dim=1).requires_grad_()
    cosine = (x[:1] * x[1:]).sum(1)
    torch.acos(cosine).sum().backward()  # here


def cosine_similarity_by_hand_with_an_empty_row() -> None:
    x, y = seeded(4, 8), seeded(4, 8, seed=1)
    x[2] = 0
    w = torch.ones(8, requires_grad=True)
    cosine = (x * w * y).sum(1) / ((x * w).norm(dim=1) * y.norm(dim=1))  # here
    cosine.sum().backward()


def generalised_mean_pooling_of_negative_features() -> None:
    p = torch.tensor(3.3, requires_grad=True)
    x = seeded(2, 4, 5, 5)
    (x**p).mean((2, 3)).sum().backward()  # here


def generalised_mean_pooling_of_a_dead_channel() -> None:
    x = torch.zeros(2, 4, 5, 5, requires_grad=True)
    pooled = (x**3.0).mean((2, 3)) ** (1 / 3.0)  # here
    pooled.sum().backward()


def roots_then_cosine_similarity_in_half() -> None:
    p = (seeded(3, 8).abs() * 1e-9).requires_grad_()
    q = seeded(3, 8, seed=1).abs().requires_grad_()
    q = torch.sqrt(q.half() + 1e-8)
    F.cosine_similarity(torch.sqrt(p.half() + 1e-8), q, dim=-1).sum().backward()  # here


def a_value_repaired_after_the_operation() -> None:
    x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    logarithm = torch.log(x)  # here
    torch.nan_to_num(logarithm).sum().backward()


def a_value_masked_after_the_operation() -> None:
    x = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
    root = torch.sqrt(x)  # here
    torch.where(x > 0, root, 0.0).sum().backward()


def ranking_loss_of_embeddings_one_of_which_is_zero() -> None:
    a, b = seeded(4, 8).requires_grad_(), seeded(4, 8, seed=1)
    mask = torch.tensor([[1.0], [1.0], [0.0], [1.0]])
    left = (a * mask) / (a * mask).norm(dim=1, keepdim=True)  # here
    F.cross_entropy(left @ F.normalize(b, dim=1).T * 20, torch.arange(4)).backward()


def a_norm_that_clipping_spread_to_all() -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    net(seeded(2, 3)).sum().mul(1e25).backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # here
    opt.step()


def scores_of_embeddings_without_normalisation_in_half() -> None:
    a, b = (seeded(4, 64) * 60).requires_grad_(), seeded(4, 64, seed=1) * 60
    scores = a.half() @ a.half().T / 0.07  # here
    F.cross_entropy(scores.float() + 0 * b.sum(), torch.arange(4).roll(1)).backward()


def softmax_without_the_maximum() -> None:
    x = (seeded(3, 5) * 60).requires_grad_()
    power = torch.exp(x)  # here
    (power / power.sum(1, keepdim=True))[:, 0].sum().backward()


def log_of_summed_exponentials() -> None:
    x = (seeded(3, 5) * 60).requires_grad_()
    torch.log(torch.exp(x).sum(1)).sum().backward()  # here


def a_division_by_zero_in_the_loss() -> None:
    x = seeded(4, 3).requires_grad_()
    weight = torch.zeros(4)
    loss = (x.square().sum(1) * weight).sum() / weight.sum()  # here
    loss.backward()


def cross_entropy_by_hand_of_half_probabilities() -> None:
    x = torch.tensor([[30.0, -5.0, 0.0], [1.0, 2.0, 3.0]]).requires_grad_()
    p = torch.softmax(x.half(), -1)
    loss = -torch.log(p)[:, 1].float().mean()  # here
    loss.backward()


def binary_cross_entropy_by_hand_of_half_probabilities() -> None:
    x, y = torch.tensor([-30.0, 12.0, 0.5]).requires_grad_(), torch.tensor([1.0, 0.0, 1.0])
    p = torch.sigmoid(x.half())
    loss = -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).float().mean()  # here
    loss.backward()


def binary_cross_entropy_of_half_probabilities() -> None:
    x, y = torch.tensor([-30.0, 12.0, 0.5]).requires_grad_(), torch.tensor([1.0, 0.0, 1.0])
    p = torch.sigmoid(x.half())
    F.binary_cross_entropy(p, y.half()).backward()  # here


def attention_over_a_sentence_of_padding() -> None:
    scores, padding = seeded(2, 4).requires_grad_(), torch.tensor([[True] * 4, [False] * 4])
    weights = torch.softmax(scores.masked_fill(padding, float("-inf")), -1)  # here
    (weights * seeded(2, 4, seed=1)).sum().backward()


class SharpSoftplus(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.softplus(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        power = torch.exp(x)  # here
        return grad * power / (1 + power)


def a_backward_written_by_hand() -> None:
    x = torch.tensor([-1.0, 0.5, 200.0], requires_grad=True)
    SharpSoftplus.apply(x).sum().backward()


def adam_on_half_parameters() -> None:
    w = torch.ones(3, dtype=torch.float16, requires_grad=True)
    opt = torch.optim.Adam([w], lr=0.1)
    (w * torch.tensor([0.0, 1.0, 2.0]).half()).sum().backward()
    opt.step()  # here


def a_loss_scale_beyond_half_precision() -> None:
    net = nn.Linear(4, 2)
    half = net(torch.ones(3, 4)).half()
    loss = half.float().mean()  # here
    (loss * 2.0**24).backward()


# program, cause, the cure of the write-up as it stands in the code of a verified fix
CURED = [
    (
        a_custom_layer_before_log_softmax,
        {"sqrt-at-zero"},
        ["nanlab.safe.sqrt(energy)", "torch.sqrt(energy + "],
    ),
    (
        an_angle_between_equal_vectors,
        {"inverse-function-at-edge"},
        ["nanlab.safe.acos(cosine)", "cosine.clamp(-1 + "],
    ),
    (
        cosine_similarity_by_hand_with_an_empty_row,
        {"norm-at-zero", "div-by-zero"},
        ["nanlab.safe.div("],
    ),
    (generalised_mean_pooling_of_negative_features, {"pow-negative-base"}, ["x.clamp_min("]),
    (generalised_mean_pooling_of_a_dead_channel, {"pow-fraction-at-zero"}, [".clamp_min("]),
    (
        roots_then_cosine_similarity_in_half,
        {"norm-at-zero", "eps-underflow"},
        ["torch.sqrt((p.half() + 1e-8) + "],
    ),
    (
        a_value_repaired_after_the_operation,
        {"repair-forward-only"},
        ["nanlab.safe.log(x)", "torch.log(x + "],
    ),
    (
        a_value_masked_after_the_operation,
        {"where-grad-trap"},
        ["torch.sqrt(torch.where(x > 0, x, 1))"],
    ),
    (
        ranking_loss_of_embeddings_one_of_which_is_zero,
        {"norm-at-zero", "div-by-zero"},
        ["nanlab.safe.div(a * mask,"],
    ),
    (
        scores_of_embeddings_without_normalisation_in_half,
        {"dtype-overflow"},
        ["normalize(a.half(), dim=-1)", "a.half().float() @"],
    ),
    (softmax_without_the_maximum, {"exp-overflow"}, ["torch.softmax(x, 1)"]),
    (log_of_summed_exponentials, {"exp-overflow"}, ["torch.logsumexp(x, 1)"]),
    (a_division_by_zero_in_the_loss, {"div-by-zero"}, ["nanlab.safe.div("]),
    (
        cross_entropy_by_hand_of_half_probabilities,
        {"dtype-underflow", "log-of-zero"},
        ["torch.log_softmax(x.half(), -1)"],
    ),
    (
        binary_cross_entropy_by_hand_of_half_probabilities,
        {"dtype-underflow", "log-of-zero"},
        ["logsigmoid(x.half())", "logsigmoid(-x.half())"],
    ),
    (
        binary_cross_entropy_of_half_probabilities,
        {"dtype-overflow", "dtype-underflow", "log-of-zero"},
        ["binary_cross_entropy_with_logits(x.half(), y.half())"],
    ),
    (
        attention_over_a_sentence_of_padding,
        {"softmax-all-masked"},
        ["nanlab.safe.softmax(", "masked_fill(padding, torch.finfo(scores.dtype).min)"],
    ),
    (a_backward_written_by_hand, {"custom-backward"}, ["power = torch.exp(x.clamp(max="]),
    (adam_on_half_parameters, {"optimizer-eps-underflow"}, ["eps=1e-4"]),
    (a_loss_scale_beyond_half_precision, {"loss-scale-overflow"}, ["GradScaler(init_scale="]),
]


# what no line of the failing step cures, or stands in a backward written by hand
ADVISED = {"custom-backward", "optimizer-eps-underflow", "loss-scale-overflow"}


@pytest.mark.examples(every=3)
@pytest.mark.parametrize(
    ("program", "causes", "cures"), CURED, ids=[case[0].__name__ for case in CURED]
)
def test_the_cure_of_the_write_up_is_among_the_verified_fixes(
    program: Callable[[], None], causes: set[str], cures: list[str]
) -> None:
    _, finding = watched(program)
    assert finding.cause in causes
    assert finding.source.endswith("# here")
    codes = offered(finding, verified=finding.cause not in ADVISED)
    assert all(cure in codes for cure in cures), codes


def rewritten(program: Callable[[], None], fix: Fix) -> Callable[[], None]:
    """The program with the edits of a fix in place."""
    lines = Path(__file__).read_text().splitlines()
    for edit in sorted(fix.edits, key=lambda e: -e.first):
        lines[edit.first - 1 : edit.last] = edit.rows()
    names: dict[str, Any] = {"__name__": "rewritten", "__file__": __file__}
    exec(compile("\n".join(lines), "rewritten", "exec"), names)
    found: Callable[[], None] = names[program.__name__]
    return found


@pytest.mark.examples(every=3)
@pytest.mark.parametrize("program", [case[0] for case in CURED])
def test_a_verified_line_put_into_the_program_leaves_nothing_to_find(
    program: Callable[[], None],
) -> None:
    _, finding = watched(program)
    for fix in finding.fixes:
        if fix.verified and fix.edits:
            with nanlab.watch(on_fault="record") as cured:
                rewritten(program, fix)()
            assert cured.culprit is None, (fix, str(cured.culprit))


def test_nanlab_has_nothing_to_say_of_itself() -> None:
    notes = [note for program, *_ in CURED for note in watched(program)[0].notes]
    assert not notes


# -- what is a matter of the training loop: no operation to try it on
# --------------------------------------------------


def test_a_spread_clipping_norm_is_told_with_error_if_nonfinite_and_a_norm_in_float64() -> None:
    _, finding = watched(a_norm_that_clipping_spread_to_all)
    assert finding.cause == "clip-nonfinite-norm" and finding.source.endswith("# here")
    assert "error_if_nonfinite=True" in offered(finding, verified=False)
    assert "grads = [p.grad.double() for p in net.parameters()" in offered(finding, verified=False)


def test_clipping_before_unscaling_is_told_with_unscale_first() -> None:
    net = nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)

    def program() -> None:
        for _ in range(3):
            opt.zero_grad()
            scaler.scale(net(seeded(8, 4)).square().mean()).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()

    with nanlab.watch(net, on_fault="record") as trace:
        program()
    finding = next(f for f in trace.findings if f.cause == "scaler-misuse")
    fix = next(f for f in finding.fixes if "unscale_(" in f.code)
    assert fix.code.index("unscale_") < fix.code.index("clip_grad")
    assert fix.verdict == "untried" and fix.why


def test_parameters_that_were_bad_from_the_start_are_told_and_it_is_they_that_are_repaired() -> (
    None
):
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    with torch.no_grad():
        net[0].weight[1, 2] = torch.nan
    with nanlab.watch(net, on_fault="record") as trace:
        net(torch.ones(2, 3)).mean().backward()
    assert trace.culprit is not None and trace.culprit.cause == "poisoned-parameter"
    assert all("state.nan_to_num_(" in f.code for f in trace.culprit.fixes if holds(f))


@pytest.mark.examples(every=3)
@pytest.mark.parametrize(
    "program", [case[0] for case in CURED if case[0] is not adam_on_half_parameters]
)
def test_remedies_that_do_not_cure_are_not_offered(program: Callable[[], None]) -> None:
    """A larger eps of Adam for a bad loss, less dropout, temperature 1, and repair of the value
    alone."""
    _, finding = watched(program)
    told = " ".join(f"{f.title} {f.code}" for f in finding.fixes).lower()
    assert not any(word in told for word in ("adam(", "dropout", "temperature", "nan_to_num"))
