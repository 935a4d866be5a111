"""A step with custom Functions and hooks is run again above autograd, and fixes around and inside of
them are tried."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

import nanlab
from nanlab.program.replay import check_rebuilt
from nanlab.program.rerun import window

Loss = Callable[[Any, torch.Tensor], torch.Tensor]


class Square(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Exponential(Function):
    """Saves its result."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (y,) = ctx.saved_tensors
        return y * g


class Reverse(Function):
    """Gives its input back."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g.neg()


class ReverseView(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return -ctx.factor * g, None


class Round(Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.round()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g


class InPlace(Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        x.mul_(3)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 3


class Several(Function):
    """A result without gradient, a text, and two results with one."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        mask = x > 0
        ctx.mark_non_differentiable(mask)
        return mask, x * y, "text", x + y

    @staticmethod
    def backward(ctx: Any, to_mask: Any, to_product: Any, to_text: Any, to_sum: Any) -> Any:
        x, y = ctx.saved_tensors
        return to_product * y + to_sum, to_product * x + to_sum


class Unmaterialised(Function):
    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx: Any, to_x: Any, to_y: Any) -> Any:
        return None if to_x is None else to_x * 2, None if to_y is None else to_y * 3


class Sine(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Any, factor: float) -> Any:  # type: ignore[override]
        return x.sin() * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * ctx.saved_tensors[0].cos() * ctx.factor, None


class Nested(Function):
    """A Function in its forward, and the engine in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return Square.apply(x) + 1

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            inner = x.detach().requires_grad_()
            value = Square.apply(inner)
        return torch.autograd.grad(value, inner, g)[0]


class Foreign(Function):
    """Computes where no operator of torch is seen."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * torch.from_numpy(np.cos(ctx.saved_tensors[0].detach().numpy()))


@torch.library.custom_op("nanlab_tests::cube", mutates_args=())
def cube(x: torch.Tensor) -> torch.Tensor:
    return x**3


cube.register_autograd(
    lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 1)


def between(middle: Callable[[Any], Any]) -> Loss:
    return lambda net, x: net.b(middle(net.a(x))).square().mean()


def two_heads(reverse: Callable[[Any], Any]) -> Loss:
    """What a Function gives back, beside what it took: both show the same memory."""

    def loss(net: Any, x: Any) -> Any:
        features = net.a(x).tanh()
        other = reverse(features)
        return net.b(features).mean() + net.b(other).square().mean()

    return loss


def penalty(middle: Callable[[Any], Any]) -> Loss:
    """A gradient that is differentiated again."""

    def loss(net: Any, x: Any) -> Any:
        x = x.clone().requires_grad_()
        y = net.b(middle(net.a(x)))
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return (slope.norm(dim=1) - 1).square().mean() + y.mean()

    return loss


def twice(net: Any, x: Any) -> Any:
    loss = net.b(Square.apply(net.a(x))).mean()
    loss.backward(retain_graph=True)
    return loss * 0.5


def reentrant(net: Any, x: Any) -> Any:
    def run(z: Any) -> Any:
        return net.b(torch.dropout(Square.apply(net.a(z)), 0.5, True))

    return checkpoint(run, x.clone().requires_grad_(), use_reentrant=True).mean()


def reentrant_twice(net: Any, x: Any) -> Any:
    def inner(z: Any) -> Any:
        return Square.apply(z).sin()

    def outer(z: Any) -> Any:
        return checkpoint(inner, z.tanh(), use_reentrant=True)

    return net.b(checkpoint(outer, net.a(x), use_reentrant=True)).mean()


def recomputed(net: Any, x: Any) -> Any:
    def run(z: Any) -> Any:
        return Square.apply(z).tanh()

    return net.b(checkpoint(run, net.a(x), use_reentrant=False)).mean()


def mapped(net: Any, x: Any) -> Any:
    return net.b(torch.vmap(lambda row: Sine.apply(row, 2.0))(net.a(x))).mean()


def product_and_sum(z: Any) -> Any:
    mask, product, _, total = Several.apply(z, z.tanh())
    return product * mask + total


LOSSES: dict[str, Loss] = {
    "plain": between(Square.apply),
    "saves its result": between(Exponential.apply),
    "gives its input back": between(lambda z: Reverse.apply(z.tanh())),
    "gives a view of its input": between(lambda z: ReverseView.apply(z.tanh(), 0.5)),
    "beside its input": two_heads(Reverse.apply),
    "view beside its input": two_heads(lambda z: ReverseView.apply(z, 1.0)),
    "straight through": between(Round.apply),
    "in place": between(lambda z: InPlace.apply(z.tanh() + 0)),
    "several results": between(product_and_sum),
    "one of several results": between(lambda z: Several.apply(z, z.tanh())[1]),
    "no zeros for missing gradients": between(lambda z: Unmaterialised.apply(z, z.tanh())[1]),
    "setup_context": between(lambda z: Sine.apply(z, 2.0)),
    "vmap": mapped,
    "inside of each other": between(Nested.apply),
    "computes outside of torch": between(Foreign.apply),
    "an operator of its own": between(cube),
    "differentiated twice": penalty(Square.apply),
    "differentiated twice, saves its result": penalty(Exponential.apply),
    "two backward passes": twice,
    "reentrant checkpoint": reentrant,
    "reentrant checkpoints inside of each other": reentrant_twice,
    "checkpoint": recomputed,
}


def hooked(*hooks: Callable[[Any], Any]) -> Loss:
    """Hooks of one result."""

    def loss(net: Any, x: Any) -> Any:
        y = net.a(x).relu()
        for hook in hooks:
            y.register_hook(hook)
        return net.b(y).square().mean()

    return loss


def two_heads_of_a_hook(net: Any, x: Any) -> Any:
    y = net.a(x).tanh()
    other = y.view_as(y)
    other.register_hook(lambda g: -g)
    return net.b(y).mean() + net.b(other).square().mean()


def double_in_place(g: Any) -> None:
    g.mul_(2)


def halve(p: Any) -> None:
    p.grad.mul_(0.5)


def exchange(p: Any) -> None:
    p.grad = p.grad.sign() * 0.01


def each_parameter(register: str, hook: Callable[[Any], Any]) -> Callable[[Any], None]:
    def prepare(net: Any) -> None:
        for p in net.parameters():
            getattr(p, register)(hook)

    return prepare


def unprepared(net: Any) -> None:
    pass


simple = between(torch.relu)
# what is registered before the watch, and the loss
HOOKS: dict[str, tuple[Callable[[Any], Any], Loss]] = {
    "looks only": (unprepared, hooked(lambda g: None)),
    "of a result": (unprepared, hooked(lambda g: g.clamp(-0.01, 0.01))),
    "two of a result": (unprepared, hooked(lambda g: -g, lambda g: g * g)),
    "writes in place": (unprepared, hooked(double_in_place)),
    "reverses one of two heads": (unprepared, two_heads_of_a_hook),
    "differentiated twice": (
        each_parameter("register_hook", lambda g: g * 2),
        penalty(Square.apply),
    ),
    "in a reentrant checkpoint": (
        each_parameter("register_hook", lambda g: g.clamp(-0.01, 0.01)),
        reentrant,
    ),
    "two backward passes": (each_parameter("register_hook", lambda g: g * 2), twice),
    "clips each gradient": (
        each_parameter("register_hook", lambda g: g.clamp(-0.01, 0.01)),
        simple,
    ),
    "after accumulation, in place": (
        each_parameter("register_post_accumulate_grad_hook", halve),
        simple,
    ),
    "after accumulation, another gradient": (
        each_parameter("register_post_accumulate_grad_hook", exchange),
        simple,
    ),
    "of a module": (
        lambda net: net.b.register_full_backward_hook(lambda m, taken, given: (taken[0] * 0.5,)),
        simple,
    ),
    "of a module, before its backward": (
        lambda net: net.b.register_full_backward_pre_hook(lambda m, given: (given[0] * 0.5,)),
        simple,
    ),
}


def train(
    loss: Loss, watched: bool = True, prepare: Callable[[Any], Any] = unprepared
) -> tuple[Any, Any]:
    torch.manual_seed(0)
    net = Net()
    prepare(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))

    def steps() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            loss(net, x).backward()
            optimizer.step()

    trace = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if watched:
            with nanlab.watch(net, on_fault="record") as trace:
                steps()
        else:
            steps()
    return net, trace


@pytest.mark.parametrize("kind", LOSSES)
def test_a_step_with_a_custom_function_is_the_same_above_autograd(kind: str) -> None:
    _, trace = train(LOSSES[kind])
    assert trace.notes == []
    for step in (1, 2):
        check_rebuilt(window(trace.recording, step))


@pytest.mark.parametrize("kind", HOOKS)
def test_a_step_with_hooks_is_the_same_above_autograd(kind: str) -> None:
    prepare, loss = HOOKS[kind]
    _, trace = train(loss, prepare=prepare)
    assert trace.notes == []
    for step in (1, 2):
        check_rebuilt(window(trace.recording, step))


@pytest.mark.parametrize("kind", HOOKS)
def test_watching_changes_no_bit_of_a_program_with_hooks_and_leaves_its_hooks(kind: str) -> None:
    prepare, loss = HOOKS[kind]
    registered: list[Any] = []

    def prepared(net: Any) -> None:
        prepare(net)
        registered.extend(dict(p._backward_hooks or {}) for p in net.parameters())

    watched, _ = train(loss, prepare=prepared)
    bare, _ = train(loss, watched=False, prepare=prepare)
    for a, b in zip(watched.parameters(), bare.parameters(), strict=True):
        assert torch.equal(a, b) and torch.equal(a.grad, b.grad)
    assert [dict(p._backward_hooks or {}) for p in watched.parameters()] == registered
    assert torch.Tensor.register_hook.__module__ == "torch._tensor"


@pytest.mark.parametrize("kind", LOSSES)
def test_watching_changes_no_bit_of_a_program_with_a_custom_function(kind: str) -> None:
    (watched, _), (bare, _) = train(LOSSES[kind]), train(LOSSES[kind], watched=False)
    for a, b in zip(watched.parameters(), bare.parameters(), strict=True):
        assert torch.equal(a, b) and torch.equal(a.grad, b.grad)


def test_an_apply_that_was_bound_before_the_watch_is_seen_and_none_after_it() -> None:
    before = vars(torch.autograd.function._SingleLevelFunction).copy()
    train(between(Square.apply))
    assert dict(vars(torch.autograd.function._SingleLevelFunction)) == before


FAULTY = """\
import torch
import nanlab


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Logarithm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.log(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g / x.clamp_min(1e-3)


class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.sqrt(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return g / (2 * y)


def around(x, w):
    z = Square.apply(x * w)
    return torch.sqrt(z).sum()


def forward(x, w):
    return Logarithm.apply(torch.relu(x * w)).sum()


def backward(x, w):
    return Root.apply(x.abs() * w).sum()


def near_hook(x, w):
    y = x * w
    y.register_hook(lambda g: g.clamp(-0.5, 0.5))
    return torch.sqrt(y.abs()).sum()


def run(kind):
    w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    loss = globals()[kind](torch.tensor([0.0, 1.0, -1.0]), w)
    loss.backward()
    return loss, w.grad
"""


def program(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("around", "sqrt-at-zero"),
        ("forward", "log-of-zero"),
        ("backward", "custom-backward"),
        ("near_hook", "sqrt-at-zero"),
    ],
)
def test_a_verified_fix_around_or_in_a_function_computes_what_the_rewritten_program_does(
    kind: str, cause: str, tmp_path: Path
) -> None:
    path = tmp_path / f"faulty_{kind}.py"
    path.write_text(FAULTY)
    module = program(path)
    with nanlab.watch(on_fault="record") as trace:
        module.run(kind)
    found = trace.culprit
    assert found is not None and found.cause == cause
    verified = [fix for fix in found.fixes if fix.verdict == "verified" and fix.edits]
    assert verified
    for number, fix in enumerate(verified):
        replay = trace.replay(fix)
        lines = FAULTY.splitlines()
        for edit in fix.edits:
            old = lines[edit.first - 1]
            indent = old[: len(old) - len(old.lstrip())]
            lines[edit.first - 1 : edit.last] = [indent + row for row in edit.text.splitlines()]
        mended = tmp_path / f"mended_{kind}_{number}.py"
        mended.write_text("\n".join(lines) + "\n")
        loss, gradient = program(mended).run(kind)
        assert bool(gradient.isfinite().all())
        assert replay.loss == loss.item()
        (replayed,) = replay.gradients.values()
        assert torch.equal(replayed, gradient)


def test_fixes_around_a_function_are_tried_in_another_process_too(tmp_path: Path) -> None:
    path = tmp_path / "faulty_kept.py"
    path.write_text(FAULTY)
    module = program(path)
    with nanlab.watch(on_fault="record") as trace:
        module.run("backward")
    loaded = nanlab.load(trace.save(tmp_path / "step.nanlab"), trusted=True)
    check_rebuilt(window(loaded.recording))
    assert loaded.culprit is not None and trace.culprit is not None
    verdicts = [[(fix.code, fix.verdict) for fix in t.culprit.fixes] for t in (loaded, trace)]
    assert verdicts[0] == verdicts[1]
    assert "verified" in {verdict for _, verdict in verdicts[0]}
