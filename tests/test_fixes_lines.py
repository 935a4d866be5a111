"""A fix in the words of the user's line: of several operations on it, only those of the kind that
failed are written otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fixing import holds
from torch import nn

import nanlab
from nanlab.rules import Finding

Make = Callable[[], tuple[nn.Module | None, Callable[[int], torch.Tensor]]]


def told(make: Make, steps: int) -> Finding:
    torch.manual_seed(0)
    model, step = make()
    with nanlab.watch(model, on_fault="record") as trace:
        for i in range(steps):
            step(i)
    assert trace.culprit is not None
    return trace.culprit


def codes(finding: Finding) -> list[str]:
    return [fix.code for fix in finding.fixes if holds(fix)]


def targets() -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
    """Q-learning: a state without any move left is multiplied by 0 to be rid of it."""
    net = nn.Linear(4, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)

    def step(i: int) -> torch.Tensor:
        done = torch.tensor([0.0, 0.0, float(i == 2)])
        legal = torch.ones(3, 3, dtype=torch.bool).logical_and(done[:, None] == 0)
        best = net(torch.randn(3, 4)).detach().masked_fill(~legal, -math.inf).amax(1)
        gamma = 0.9
        target = 1.0 + gamma * (1 - done) * best
        loss = (net(torch.randn(3, 4))[:, 0] - target).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    return net, step


def moments() -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
    """Adam by hand without an epsilon; the first division on the line is by a number."""
    net = nn.Linear(2, 2)
    m, v = torch.zeros(2, 2), torch.zeros(2, 2)

    def step(i: int) -> torch.Tensor:
        net.zero_grad()
        loss = net(torch.tensor([[1.0, 0.0]])).sum()
        loss.backward()
        with torch.no_grad():
            m.lerp_(net.weight.grad, 0.1)
            v.lerp_(net.weight.grad.square(), 0.001)
            net.weight.sub_(0.1 * (m / (1 - 0.9 ** (i + 1))) / v.sqrt())
        return loss

    return net, step


def ratios() -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
    """Importance weights from probabilities that were kept in half precision."""
    net = nn.Linear(2, 2)
    kept = torch.tensor([0.5, 1e-9]).half()

    def step(i: int) -> torch.Tensor:
        logp = net(torch.ones(1, 2)).log_softmax(1)[0]
        loss = (logp.exp() / kept.float()).mean()
        loss.backward()
        return loss

    return net, step


def test_factor_that_is_a_number_is_left_alone() -> None:
    assert any(
        "gamma * (1 - done)) * best.masked_fill(" in code and "masked_fill(gamma == 0" not in code
        for code in codes(told(targets, 3))
    )


def test_divisor_that_is_a_number_is_left_alone() -> None:
    found = codes(told(moments, 1))
    assert any("v.sqrt().clamp_min(" in code for code in found)
    assert not any(
        "(1 - 0.9 ** (i + 1)).clamp_min" in code or "safe.div(m," in code for code in found
    )


def test_divisor_that_was_made_float_is_no_number() -> None:
    assert any("kept.float().clamp_min(" in code for code in codes(told(ratios, 1)))


def ignored() -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
    """A loss under a short name, of which every target is ignored."""
    net = nn.Linear(2, 3)
    ce = nn.functional.cross_entropy

    def step(i: int) -> torch.Tensor:
        loss = ce(net(torch.ones(4, 2)), torch.full((4,), -100))
        loss.backward()
        return loss

    return net, step


def test_function_that_was_given_a_short_name_is_recognised() -> None:
    assert any(
        "net(torch.ones(4, 2))" in code and 'reduction="sum"' in code
        for code in codes(told(ignored, 1))
    )


def scaled_state(maximum: float) -> Make:
    def make() -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
        net = nn.Linear(2, 2)
        opt = torch.optim.SGD(net.parameters(), lr=1e-3)
        state = torch.ones(1, 2)

        def step(i: int) -> torch.Tensor:
            nonlocal state
            state = maximum * state.detach() + net(torch.ones(1, 2)).tanh()
            loss = (state / (1 + state.detach().abs())).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            return loss

        return net, step

    return make


def test_state_that_is_carried_and_grows_is_told_from_a_mask_that_is_scaled() -> None:
    found = told(scaled_state(900.0), 15)
    assert (found.cause, found.op) == ("dtype-overflow", "mul") and "grew from" in found.title
    assert "carried from step to step" in found.fixes[0].title
    assert not any("mask" in fix.title for fix in found.fixes)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_clipping_is_advised_only_where_the_size_of_a_gradient_matters(optimizer: str) -> None:
    def make() -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
        net = nn.Linear(2, 1)
        opt = getattr(torch.optim, optimizer)(net.parameters(), lr=1e25)

        def step(i: int) -> torch.Tensor:
            loss = net(torch.randn(8, 2)).sub(1.0).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            return loss

        return net, step

    found = told(make, 40)
    assert found.cause == "learning-rate"
    assert any("clip the gradient norm" in fix.title for fix in found.fixes) == (optimizer == "SGD")


def test_negative_rate_is_told_to_stay_above_zero() -> None:
    def make() -> tuple[nn.Module, Callable[[int], torch.Tensor]]:
        net = nn.Linear(2, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.5)
        schedule = torch.optim.lr_scheduler.LambdaLR(opt, lambda t: 1 - t)

        def step(i: int) -> torch.Tensor:
            loss = net(torch.randn(8, 2)).sub(1.0).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            schedule.step()
            return loss

        return net, step

    found = told(make, 60)
    assert found.cause == "learning-rate"
    assert [fix.code for fix in found.fixes] == ['group["lr"] = max(rate, 0.0)']


def test_second_optimizer_that_steps_past_the_scaler_is_sent_through_it() -> None:
    first, second = nn.Linear(3, 1), nn.Linear(3, 1)
    opts = [torch.optim.SGD(net.parameters(), lr=0.01) for net in (first, second)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    torch.manual_seed(0)
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(3):
            x = torch.randn(8, 3)
            opts[0].zero_grad()
            scaler.scale(first(x).square().mean()).backward()
            scaler.step(opts[0])
            opts[1].zero_grad()
            scaler.scale(second(x).square().mean()).backward()
            opts[1].step()
            scaler.update()
    found = trace.culprit
    assert found is not None and found.cause == "scaler-misuse"
    assert (
        "micro-batch" not in found.fixes[0].title and found.fixes[0].code == "scaler.step(opts[1])"
    )


@pytest.mark.parametrize("power", [2, 2.0])
def test_a_square_beside_a_root_keeps_its_base(power: float, tmp_path: Path) -> None:
    """A power of a whole number has a derivative everywhere: a clamp of its base does harm only."""
    w, x = nn.Parameter(torch.zeros(2)), torch.tensor([1.0, -2.0])
    square = f"((w * x + 3) ** {power}).mean()"
    code = f"loss = {square} + (w.abs() ** 0.5).mean()\nloss.backward()\n"
    (path := tmp_path / "program.py").write_text(code)
    with nanlab.watch(on_fault="record") as trace:
        exec(compile(code, str(path), "exec"), {"torch": torch, "w": w, "x": x})
    assert trace.culprit is not None
    found = [fix.code for fix in trace.culprit.fixes if fix.edits]
    assert found
    assert all(square in each for each in found)


ONE_LINE = {
    "behind else": "if not flag: d = w\n    else: d = (w * w).sqrt()",
    "behind elif": "if not flag: d = w\n    elif flag: d = (w * w).sqrt()\n    else: d = w",
    "of an if with an else": "if flag: d = (w * w).sqrt()\n    else: d = w",
    "of a context": "with torch.autocast('cpu', dtype=torch.bfloat16): d = (w * w).sqrt()",
    "of a try": "try: d = (w * w).sqrt()\n    except ValueError: d = w",
    "of a handler": "try: raise ValueError\n    except ValueError: d = (w * w).sqrt()",
    "of a finally": "try: pass\n    finally: d = (w * w).sqrt()",
    "of a case": "match flag:\n        case True: d = (w * w).sqrt()",
    "of two statements": "if not flag: d = w\n    else: q = w * w; d = q.sqrt()",
}


@pytest.mark.parametrize("where", ONE_LINE)
def test_the_one_line_body_of_a_compound_statement_is_rewritten_in_its_line(
    where: str, tmp_path: Path
) -> None:
    path = tmp_path / "one_line.py"
    path.write_text(f"import torch\n\n\ndef step(w, flag):\n    {ONE_LINE[where]}\n    return d\n")
    names: dict[str, Any] = {"__name__": "one_line"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    weights = nn.Parameter(torch.tensor([0.0, 1.0, 2.0]))
    with nanlab.watch(on_fault="record") as trace:
        names["step"](weights, True).sum().backward()
    assert trace.culprit is not None
    (edit,) = trace.culprit.fixes[0].edits
    assert trace.culprit.fixes[0].verified
    head, _, _ = edit.old.strip().partition(":")
    assert edit.text.startswith(f"{head}:")
    assert trace.cure.verified


def test_what_fails_is_told_of_a_product_whose_derivative_makes_calls_unseen(
    tmp_path: Path,
) -> None:
    path = tmp_path / "product.py"
    path.write_text("import torch\n\n\ndef step(w):\n    return torch.prod(w, 1).log().sum()\n")
    names: dict[str, Any] = {"__name__": "product"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    weights = nn.Parameter(torch.tensor([[0.0, 1.0, 2.0], [1.0, 3.0, 0.5]]))
    with nanlab.watch(on_fault="record") as trace:
        names["step"](weights).backward()
    assert trace.culprit is not None
    assert not any("could not tell whether" in fix.why for fix in trace.culprit.fixes)
    assert any(fix.verdict == "finite" for fix in trace.culprit.fixes)


def test_an_operation_of_several_results_that_autograd_keeps_is_written_otherwise(
    tmp_path: Path,
) -> None:
    path = tmp_path / "groups.py"
    path.write_text(
        "import torch.nn.functional as F\n\n\ndef step(x):\n"
        "    return F.group_norm(x, 2, eps=0.0).sum()\n"
    )
    names: dict[str, Any] = {"__name__": "groups"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    weights = nn.Parameter(torch.ones(1, 4, 2))
    with nanlab.watch(on_fault="record") as trace:
        names["step"](weights).backward()
    assert trace.culprit is not None
    assert trace.culprit.fixes[0].verified
    assert "eps=1e-" in trace.culprit.fixes[0].code


def test_what_a_failing_fix_brings_in_is_no_fault_of_the_program(tmp_path: Path) -> None:
    path = tmp_path / "distances.py"
    path.write_text(
        "def step(w, x):\n"
        "    d = ((x[:, None] - w[None]) ** 2).sum(-1).sqrt()\n"
        "    return d.min(1).values.mean() + 0.1 * d.mean()\n"
    )
    names: dict[str, Any] = {"__name__": "distances"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    torch.manual_seed(0)
    code = nn.Embedding(4, 6)
    opt = torch.optim.SGD(code.parameters(), lr=0.1)
    with nanlab.watch(on_fault="record") as trace:
        for i in range(3):
            opt.zero_grad()
            x = code.weight.detach()[:1].repeat(8, 1) if i == 1 else torch.randn(8, 6)
            names["step"](code.weight, x).backward()
            opt.step()
    assert [found.cause for found in trace.findings] == ["sqrt-at-zero"]


def tried(trace: nanlab.Trace) -> list[str]:
    assert trace.culprit is not None
    return [fix.code for fix in trace.culprit.fixes]


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_a_scripted_function_is_offered_no_call_that_cannot_be_compiled(tmp_path: Path) -> None:
    path = tmp_path / "scripted.py"
    path.write_text(
        "import torch\n"
        "@torch.jit.script\n"
        "def entropy(p: torch.Tensor) -> torch.Tensor:\n"
        "    return -(2 * torch.log(p)).sum()\n"
    )
    names: dict[str, Any] = {"__name__": "scripted"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    entropy, w = names["entropy"], nn.Parameter(torch.tensor([0.0, 1.0]))
    with nanlab.watch(on_fault="record") as trace:
        entropy(w).backward()
    assert not any("nanlab." in code for code in tried(trace))
    assert any("torch.log(p + 1e-6)" in code for code in tried(trace))


def test_an_update_that_the_program_computes_itself_is_offered_no_optimizer() -> None:
    w = nn.Parameter(torch.ones(2))
    with nanlab.watch(on_fault="record") as trace:
        for i in range(3):
            (w.relu() * (i < 2)).sum().backward()
            with torch.no_grad():
                assert w.grad is not None
                w += w.grad * (0.1 / w.grad.norm())
            w.grad = None
    assert not any("torch.optim" in code for code in tried(trace))


@pytest.mark.parametrize("none", [0, 0.0])
def test_an_update_that_divides_by_zero_wants_an_eps_not_smaller_gradients(none: float) -> None:
    w = nn.Parameter(torch.ones(3))
    opt = torch.optim.RMSprop([w], lr=1e-3, centered=True, eps=none, alpha=0.5)
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(40):
            opt.zero_grad()
            (w * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
            opt.step()
    assert "eps=1e-8" in tried(trace)[0]
    assert not any("clip_grad_norm_" in code for code in tried(trace))


def test_a_weight_without_direction_is_no_matter_of_what_its_layer_is_given() -> None:
    layer = nn.Linear(3, 4)
    nn.init.zeros_(layer.weight)
    layer = nn.utils.parametrizations.weight_norm(layer)
    with nanlab.watch(layer, on_fault="record") as trace:
        layer(torch.randn(2, 3)).sum().backward()
    (code,) = tried(trace)
    assert "original0" in code
    assert trace.culprit is not None
    assert trace.culprit.title == "weight_norm divides 12 elements of 12 by a norm of zero"


def test_bad_state_of_an_optimizer_is_not_looked_for_in_the_model() -> None:
    net = nn.Linear(2, 2)
    opt = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    opt.step()
    opt.state[net.bias]["exp_avg_sq"][0] = math.nan
    with nanlab.watch(net, on_fault="record") as trace:
        opt.zero_grad()
        net(torch.ones(1, 2)).sum().backward()
        opt.step()
    assert tried(trace) == ["optimizer.state.clear()   # before the first step"]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_square_that_overflows_keeps_the_sign_of_its_base(sign: float) -> None:
    w = nn.Parameter(torch.ones(4))
    with nanlab.watch(on_fault="record") as trace:
        (w - sign * torch.tensor([1.0, 2.0, 3.0, 1e30])).pow(2).mean().backward()
    assert tried(trace)
    assert not any("clamp_min" in code or "1e-6" in code for code in tried(trace))


def test_a_vector_of_zeros_is_not_divided_by_its_largest_element() -> None:
    w = nn.Parameter(torch.ones(3))
    with nanlab.watch(on_fault="record") as trace:
        w.register_hook(lambda g: g / g.norm())
        (w * 0.0).sum().backward()
    assert tried(trace)
    assert not any("amax" in code for code in tried(trace))


def test_features_are_no_samples_where_the_samples_are_reduced() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    data = torch.randn(9, 4)
    spread = torch.ones(4)
    with nanlab.watch(net, on_fault="record") as trace:
        for x in data.split(8):
            spread.lerp_(x.var(0), 0.1)
            net(x / spread.sqrt()).square().mean().backward()
    assert trace.culprit is not None
    assert trace.culprit.samples == []
    assert "samples" not in trace.culprit.explanation.partition("No parameter")[2]


class Noisy(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.rand(x.shape[0], 3).round()  # drawn
        return x * (noise + 1e-9).log().neg().log()


def test_numbers_that_a_model_draws_are_no_data() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), Noisy())
    with nanlab.watch(net, on_fault="record") as trace:
        net(torch.randn(8, 3)).square().mean().backward()
    rows = Path(__file__).read_text().splitlines()
    line = next(i for i, row in enumerate(rows, 1) if row.endswith("# drawn"))
    assert trace.culprit is not None
    assert f"the random numbers of line {line} are to blame" in trace.culprit.explanation


def test_a_reciprocal_has_no_numerator_in_its_evidence() -> None:
    w = nn.Parameter(torch.zeros(2, 3))
    with nanlab.watch(on_fault="record") as trace:
        (1.0 / w.norm(dim=1)).sum().backward()
    assert trace.culprit is not None and trace.culprit.evidence is not None
    assert [*trace.culprit.evidence.columns] == ["index", "norm", "value"]


def test_a_root_is_counted_once_for_several_tangents() -> None:
    def length(x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt((x**2).sum())

    x = torch.ones(5, 2)
    x[1] = 0.0
    w = nn.Parameter(torch.ones(()))
    with nanlab.watch(on_fault="record") as trace:
        slopes = torch.func.vmap(torch.func.jacfwd(length))(x)
        (w * slopes).sum().backward()
    assert trace.culprit is not None
    assert "at 1 zero among 5 is infinite" in trace.culprit.title


def test_a_derivative_is_told_only_with_what_it_multiplies() -> None:
    def length(x: torch.Tensor) -> torch.Tensor:
        return torch.sqrt((x**2).sum())

    w = nn.Parameter(torch.zeros(2))
    with nanlab.watch(on_fault="record") as trace:
        torch.func.grad(length)(w).sum().backward()
    assert trace.culprit is not None
    assert "Its derivative there" not in trace.culprit.explanation


def test_a_rectifier_chooses_nothing() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        net[0].bias.fill_(-100.0)
    opt = torch.optim.SGD(net[:1].parameters(), lr=0.1)
    with nanlab.watch(net, on_fault="record") as trace:
        for _ in range(4):
            opt.zero_grad()
            net(torch.ones(5, 3)).square().mean().backward()
            opt.step()
    (told,) = [f.title for f in trace.findings if f.cause == "dead-gradient"]
    assert "each lies beyond its bound. Its derivative is 0 there." in told


COMMENTED = """
import torch

def f(w):
    h = torch.sqrt(w)  # the root
    return (
        torch.sqrt(
            w)  # of it
        .sum() + h.sum())  # the end
"""


def test_comments_beside_what_is_rewritten_stay(tmp_path: Path) -> None:
    path = tmp_path / "commented.py"
    path.write_text(COMMENTED)
    names: dict[str, Any] = {}
    exec(compile(COMMENTED, str(path), "exec"), names)
    with nanlab.watch(on_fault="record") as trace:
        names["f"](torch.nn.Parameter(torch.zeros(2))).backward()
    assert trace.cure is not None
    diff = trace.cure.diff()
    added = "".join(row for row in diff.splitlines() if row.startswith(("+", " ")))
    for comment in ("# the root", "# of it", "# the end"):
        assert comment in added
    assert all("#" not in fix.code for fix in trace.cure.fixes)
