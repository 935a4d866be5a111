"""The recorded step runs again above autograd, where fixes are tried, whatever its tensors are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.functional import hessian, jacobian
from torch.nn import functional as F

import nanlab
from nanlab.program.replay import check_rebuilt
from nanlab.program.rerun import window
from nanlab.trace import Trace

torch.set_num_threads(1)


def watched(step: Callable[[nn.Linear], torch.Tensor], before: int = 0) -> Trace:
    """A step whose loss has a root at 0 after what is tried; ``before``: backward passes whose
    gradients stand when the watch begins."""
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    for _ in range(before):
        layer(torch.ones(2, 4)).sum().backward()
    with nanlab.watch(layer, on_fault="record") as trace:
        y = step(layer)
        gap = y - y.detach()
        (gap.pow(2).sum(-1).sqrt().sum() + y.sum()).backward()
    return trace


def einsum(layer: nn.Linear) -> torch.Tensor:
    return torch.einsum("bij,bjk->bik", layer(torch.ones(2, 3, 4)), torch.ones(2, 4, 5))


def einsum_of_parameters(layer: nn.Linear) -> torch.Tensor:
    return torch.einsum("ij,jk->ik", layer.weight, layer.weight)


def batched_einsum_of_parameters(layer: nn.Linear) -> torch.Tensor:
    return torch.einsum("bij,bjk->bik", layer.weight[None], layer.weight.view(1, 4, 4))


def tensordot(layer: nn.Linear) -> torch.Tensor:
    return torch.tensordot(layer.weight, layer(torch.ones(3, 4)), dims=([1], [1]))


def circular_padding(layer: nn.Linear) -> torch.Tensor:
    return F.pad(layer(torch.ones(2, 3, 4)), (1, 1), mode="circular")


def buffer_filled_row_by_row(layer: nn.Linear) -> torch.Tensor:
    x = layer(torch.ones(3, 4))
    found = torch.empty(3, 4)
    for i in range(3):
        found[i] = x[i] * (i + 1)
    return found


def recurrent(layer: nn.Linear) -> torch.Tensor:
    torch.manual_seed(1)
    return nn.GRU(4, 4)(layer(torch.ones(3, 2, 4)))[0]  # type: ignore[no-any-return]


def attention(layer: nn.Linear) -> torch.Tensor:
    torch.manual_seed(1)
    x = layer(torch.ones(3, 2, 4))
    return nn.MultiheadAttention(4, 2)(x, x, x)[0]  # type: ignore[no-any-return]


STEPS = [
    einsum,
    einsum_of_parameters,
    batched_einsum_of_parameters,
    tensordot,
    circular_padding,
    buffer_filled_row_by_row,
    recurrent,
    attention,
]


@pytest.mark.examples(every=2)
@pytest.mark.parametrize("step", STEPS)
def test_fixes_are_tried_after_any_kind_of_operation(
    step: Callable[[nn.Linear], torch.Tensor],
) -> None:
    culprit = watched(step).culprit
    assert culprit is not None and culprit.cause in ("sqrt-at-zero", "norm-at-zero")
    assert culprit.fixes[0].verified, culprit.fixes


@pytest.mark.parametrize("before", [1, 2])
def test_gradients_that_stood_before_the_watch_are_added_to(before: int) -> None:
    trace = watched(einsum, before)
    fix = trace.culprit.fixes[0]  # type: ignore[union-attr]
    assert fix.verified
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    for _ in range(before):
        layer(torch.ones(2, 4)).sum().backward()
    einsum(layer).sum().backward()
    replayed = trace.replay(fix).gradients
    assert torch.equal(replayed["weight"], layer.weight.grad)  # type: ignore[arg-type]


def slopes(layer: nn.Linear, fixed: bool) -> torch.Tensor:
    """The norm of each sample's Jacobian, one of which is zero."""
    norms: list[torch.Tensor] = []
    total = layer.weight.square().sum()
    for row in torch.tensor([[0.0] * 4, [1.0] * 4]):
        jacobian = torch.func.jacrev(lambda x: (layer(x) * x).square())(row)
        size = jacobian.square().sum()
        if fixed:
            norms.append(nanlab.safe.sqrt(size))
        else:
            norms.append(torch.sqrt(size))
    return torch.stack(norms).sum() + total


def test_a_fix_after_a_loop_of_jacobians_is_the_program_written_so() -> None:
    def gradients(fixed: bool) -> tuple[nanlab.Trace, nn.Linear]:
        torch.manual_seed(0)
        layer = nn.Linear(4, 4)
        with nanlab.watch(layer, on_fault="record") as trace:
            slopes(layer, fixed).backward()
        return trace, layer

    trace, _ = gradients(False)
    culprit = trace.culprit
    assert culprit is not None and culprit.cause == "sqrt-at-zero"
    fix = next(f for f in culprit.fixes if f.verified and "nanlab.safe.sqrt" in f.code)
    layer = gradients(True)[1]
    assert torch.equal(trace.replay(fix).gradients["weight"], layer.weight.grad)  # type: ignore[arg-type]


def by_sample(layer: nn.Linear) -> nanlab.Trace:
    """Gradients of each sample by itself, one of them zero, divided by their norm."""
    x, y = torch.ones(3, 4), torch.zeros(3, 2)
    weight = layer.weight.detach()
    y[0] = x[0] @ weight.t()

    def loss(w: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x @ w.t() - y).square().sum()

    with nanlab.watch(layer, on_fault="record") as trace:
        each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weight, x, y)
        unit = each / each.flatten(1).norm(dim=1)[:, None, None]
        layer.weight.grad = unit.mean(0)
        torch.optim.SGD(layer.parameters(), lr=0.1).step()
    return trace


def test_a_step_with_gradients_of_each_sample_runs_again_above_autograd() -> None:
    torch.manual_seed(0)
    trace = by_sample(nn.Linear(4, 2, bias=False))
    assert trace.replay().identical
    assert not check_rebuilt(window(trace.recording))
    culprit = trace.culprit
    assert culprit is not None and culprit.cause in ("div-by-zero", "norm-at-zero")
    tried = [f for f in culprit.fixes if f.edits]
    assert tried and all(f.verdict != "untried" for f in tried)


def test_a_value_that_its_own_call_reads_and_overwrites_is_kept() -> None:
    best, layer = torch.tensor(3.0), nn.Linear(2, 1)
    with nanlab.watch(layer, keep=4) as trace:
        for _ in range(2):
            loss = layer(torch.ones(2)).square().sum() + 5.0
            loss.backward()
            torch.minimum(best, loss.detach(), out=best)
            torch.optim.SGD(layer.parameters(), lr=0.1).step()
    assert [trace.replay(step=step).identical for step in range(2)] == [True, True]
    position = int(trace.ops[trace.ops.op == "minimum"].position.iloc[0])
    assert float(trace.tensor(position)) == 3.0


def test_a_tensor_that_changed_its_shape_in_place_has_its_new_one() -> None:
    with nanlab.watch() as trace:
        x = torch.ones(2, 1, 3) * 2.0
        x.squeeze_(1)
        x.t_().add_(1.0)
    shapes = {
        op: trace.tensor(int(p)).shape for op, p in zip(trace.ops.op, trace.ops.index, strict=True)
    }
    assert shapes["squeeze_"] == (2, 3) and shapes["t_"] == shapes["add_"] == (3, 2)


def cubed(w: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: (t * w).pow(3)


def duals(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        return forward_ad.unpack_dual(cubed(w)(dual)).tangent


DERIVATIVES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "jvp": lambda w, x: torch.func.jvp(cubed(w), (x,), (torch.ones_like(x),))[1],
    "jacfwd": lambda w, x: torch.func.jacfwd(cubed(w))(x).sum(0),
    "hessian": lambda w, x: torch.func.hessian(lambda t: cubed(w)(t).sum())(x).diagonal(),
    "dual": duals,
    "jacobian": lambda w, x: jacobian(cubed(w), x, create_graph=True, vectorize=True).sum(0),
    "functional hessian": lambda w, x: hessian(
        lambda t: cubed(w)(t).sum(), x, create_graph=True, vectorize=True
    ).diagonal(),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_fix_after_derivatives_is_the_program_written_so(name: str) -> None:
    """However they were taken: forward, by rows, forward of backward."""

    def gradients(fixed: bool) -> tuple[nanlab.Trace, nn.Linear]:
        torch.manual_seed(0)
        layer = nn.Linear(3, 1, bias=False)
        with nanlab.watch(layer, on_fault="record") as trace:
            found = DERIVATIVES[name](layer.weight[0], torch.tensor([1.0, 0.5, 0.0]))
            if fixed:
                root = nanlab.safe.sqrt(found.square())
            else:
                root = torch.sqrt(found.square())
            (root.sum() + layer.weight.square().sum()).backward()
        return trace, layer

    trace, _ = gradients(False)
    assert trace.replay().identical
    culprit = trace.culprit
    assert culprit is not None and culprit.cause == "sqrt-at-zero"
    fix = next(f for f in culprit.fixes if "nanlab.safe.sqrt" in f.code)
    assert fix.verdict != "untried", fix.why
    twin, layer = gradients(True)
    assert twin.culprit is None
    assert torch.equal(trace.replay(fix).gradients["weight"], layer.weight.grad)  # type: ignore[arg-type]


def rooted(w: torch.Tensor, fixed: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    def f(t: torch.Tensor) -> torch.Tensor:
        square = (t * w).square()
        return nanlab.safe.sqrt(square) if fixed else torch.sqrt(square)

    return f


def derivative(
    name: str, f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
) -> torch.Tensor:
    if name == "jvp":
        return torch.func.jvp(f, (x,), (torch.ones_like(x),))[1]
    if name == "jacfwd":
        return torch.func.jacfwd(f)(x).sum(0)
    if name == "jacobian":
        return jacobian(f, x, create_graph=True, vectorize=True).sum(0)  # type: ignore[no-any-return]
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


@pytest.mark.parametrize("name", ["jvp", "jacfwd", "jacobian", "dual"])
def test_a_fix_inside_of_a_derivative_is_the_program_written_so(name: str) -> None:
    def gradients(fixed: bool) -> tuple[nanlab.Trace, nn.Linear]:
        torch.manual_seed(0)
        layer = nn.Linear(3, 1, bias=False)
        with nanlab.watch(layer, on_fault="record") as trace:
            found = derivative(name, rooted(layer.weight[0], fixed), torch.tensor([1.0, 0.5, 0.0]))
            (found.square() * layer.weight).sum().backward()
        return trace, layer

    trace, _ = gradients(False)
    culprit = trace.culprit
    assert culprit is not None and culprit.cause == "sqrt-at-zero"
    fix = next(f for f in culprit.fixes if "nanlab.safe.sqrt(square)" in f.code)
    twin, layer = gradients(True)
    assert twin.culprit is None
    assert torch.equal(trace.replay(fix).gradients["weight"], layer.weight.grad)  # type: ignore[arg-type]


def test_a_program_whose_tangents_are_zeros_without_memory_runs_under_a_watch() -> None:
    """torch ends the process where such a tensor is multiplied by a number under a mode."""
    layer = nn.Linear(3, 1)
    with nanlab.watch(layer) as trace:
        zeros = torch._efficientzerotensor((3,))
        assert torch.equal(torch.ops.aten.mul.Scalar(zeros, 2.0) + 1, torch.ones(3))
        assert torch.equal(torch.ops.aten.add.Scalar(zeros, 2.0), torch.full((3,), 2.0))
    assert trace.culprit is None


def test_an_edit_of_a_view_of_a_parameter_leaves_the_recorded_one_alone(tmp_path: Path) -> None:
    path = tmp_path / "beam.py"
    path.write_text(
        "import torch\n\n\ndef shape(k, d):\n    return torch.sinh(k[:, None] * d) / k[:, None]\n"
    )
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    k, d = torch.nn.Parameter(torch.tensor([0.0, 0.9])), torch.linspace(0.5, 1.5, 3)
    optimizer = torch.optim.SGD([k], lr=1e-6)
    with nanlab.watch(on_fault="record") as trace:
        names["shape"](k, d).sum().backward()
        optimizer.step()
    assert trace.culprit is not None
    for fix in trace.culprit.fixes:
        if fix.edits:
            trace.replay(fix)
    assert trace.cure is not None and trace.cure.verified
    assert any("k[:, None].clamp_min" in fix.code for fix in trace.culprit.fixes)
    assert trace.replay().identical
