"""Every safe operator against torch's own: the same bits where torch is finite, finite
elsewhere."""

from __future__ import annotations

import gc
import inspect
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import nanlab
from nanlab import safe
from nanlab.errors import TypeMismatchError, UsageError

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
SAME_SIZE_INTEGER = {2: torch.int16, 4: torch.int32, 8: torch.int64}
UNARY = "sqrt rsqrt log log2 log10 log1p reciprocal acos asin atanh acosh exp logit".split()
BINARY = "div pow atan2 xlogy".split()
Op = Callable[..., Tensor]

# name: (torch's, ours), on rows of a matrix
ROWS: dict[str, tuple[Op, Op]] = {
    "norm": (lambda x: torch.norm(x, dim=-1), lambda x: safe.norm(x, dim=-1)),
    "norm p=1": (lambda x: torch.norm(x, 1, -1), lambda x: safe.norm(x, 1, -1)),
    "norm p=3": (lambda x: torch.norm(x, 3, -1), lambda x: safe.norm(x, 3, -1)),
    "norm p=0.5": (lambda x: torch.norm(x, 0.5, -1), lambda x: safe.norm(x, 0.5, -1)),
    "norm p=inf": (lambda x: torch.norm(x, math.inf, -1), lambda x: safe.norm(x, math.inf, -1)),
    "norm of all": (lambda x: torch.norm(x[4:7]), lambda x: safe.norm(x[4:7])),
    "normalize": (lambda x: F.normalize(x, dim=-1), lambda x: safe.normalize(x, dim=-1)),
    "cosine_similarity": (
        lambda x: F.cosine_similarity(x, torch.ones_like(x) * x.detach(), dim=-1),
        lambda x: safe.cosine_similarity(x, torch.ones_like(x) * x.detach(), dim=-1),
    ),
    "cosine_similarity to ones": (
        lambda x: F.cosine_similarity(x, torch.ones_like(x[:1]), dim=-1),
        lambda x: safe.cosine_similarity(x, torch.ones_like(x[:1]), dim=-1),
    ),
    "std": (lambda x: torch.std(x, -1), lambda x: safe.std(x, -1)),
    "var": (lambda x: torch.var(x, -1), lambda x: safe.var(x, -1)),
    "var correction=0": (
        lambda x: torch.var(x, -1, correction=0),
        lambda x: safe.var(x, -1, correction=0),
    ),
    "std keepdim": (
        lambda x: torch.std(x, (-1,), keepdim=True),
        lambda x: safe.std(x, (-1,), keepdim=True),
    ),
    "softmax": (lambda x: torch.softmax(x, -1), lambda x: safe.softmax(x, -1)),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), lambda x: safe.log_softmax(x, -1)),
    "logsumexp": (lambda x: torch.logsumexp(x, -1), lambda x: safe.logsumexp(x, -1)),
    "masked_mean": (
        lambda x: x.mean(-1),
        lambda x: safe.masked_mean(x, torch.ones_like(x, dtype=torch.bool), -1),
    ),
}
ORDINARY: dict[str, Op] = {
    **{name: getattr(safe, name) for name in UNARY if name != "acosh"},
    "div": lambda x: safe.div(x, x.flip(0)),
    "pow": lambda x: safe.pow(x, x.flip(0)),
    "atan2": lambda x: safe.atan2(x, x.flip(0)),
    "xlogy": lambda x: safe.xlogy(x, x.flip(0)),
    **{
        name: ours
        for name, (_, ours) in ROWS.items()
        if name not in ("norm of all", "cosine_similarity")
    },
    "cosine_similarity": lambda x: safe.cosine_similarity(x, x.flip(0), dim=-1),
    "acosh": lambda x: safe.acosh(1 + x),
    "pow by a number": lambda x: safe.pow(x, 0.5),
    "number to a power": lambda x: safe.pow(2.0, x),
    "number divided": lambda x: safe.div(1.0, x),
    "entropy": safe.entropy,
    "cdist": lambda x: safe.cdist(x, x.flip(0) + 1),
    "cdist p=3": lambda x: safe.cdist(x, x.flip(0) + 1, 3.0),
}


def edge_values(dtype: torch.dtype) -> Tensor:
    """Ordinary numbers and every edge of the dtype, -0.0 and infinities included."""
    limits = torch.finfo(dtype)
    normal, tiny, root = (
        limits.smallest_normal,
        limits.smallest_normal * limits.eps,
        math.sqrt(limits.max),
    )
    below, above = 1 - limits.eps / 2, 1 + limits.eps
    positive = [
        tiny,
        2 * tiny,
        3 * tiny,
        normal,
        1.5 * normal,
        1e-3,
        0.3,
        0.5,
        below,
        1,
        above,
        2,
        2.5,
        3,
        10,
        100,
    ]
    positive += [root, 2 * root, limits.max / 2, limits.max, math.inf]
    return torch.tensor([0.0, -0.0, *positive, *(-v for v in positive)], dtype=torch.float64).to(
        dtype
    )


def edge_rows(dtype: torch.dtype) -> Tensor:
    limits = torch.finfo(dtype)
    top, root, normal, inf = limits.max, math.sqrt(limits.max), limits.smallest_normal, math.inf
    rows = [
        [0, 0, 0],
        [-0.0, 0, 0],
        [top, top, top],
        [root, root, 1],
        [1, 2, 3],
        [-0.0, 1, 0],
        [1e-3, -1e-3, 1e-4],
    ]
    rows += [
        [normal] * 3,
        [5, 5, 5],
        [-top, top, 0],
        [inf, 1, 2],
        [-inf] * 3,
        [-inf, 0, 1],
        [inf, -inf, 0],
    ]
    return torch.tensor(rows, dtype=torch.float64).to(dtype)


def bits(x: Tensor, zeros_alike: bool = False) -> Tensor:
    x = torch.where(x == 0, 0.0, x) if zeros_alike else x
    return x.contiguous().view(SAME_SIZE_INTEGER[x.element_size()])


def value_and_gradients(
    op: Op, *operands: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, list[Tensor]]:
    leaves = [x.clone().requires_grad_() for x in operands]
    value = op(*leaves)
    grads = torch.autograd.grad(
        (value if weight is None else value * weight).sum(), leaves, materialize_grads=True
    )
    return value.detach(), list(grads)


def assert_torch_where_finite_else_finite(
    theirs: Op, ours: Op, *operands: Tensor, rows: bool = False
) -> None:
    """The law, with gradients of the sum; an element of which only the value is finite keeps
    torch's value."""
    value, grads = value_and_gradients(theirs, *operands)
    safe_value, safe_grads = value_and_gradients(ours, *operands)
    whole = (lambda mask: mask.flatten(1).all(1)) if rows else (lambda mask: mask)
    finite = whole(torch.isfinite(value).reshape(len(value), -1)) if rows else torch.isfinite(value)
    same = bits(value) == bits(safe_value)
    assert (whole(same.reshape(len(value), -1)) if rows else same)[finite].all()
    assert torch.isfinite(safe_value).all()
    for grad, safe_grad in zip(grads, safe_grads, strict=True):
        sound = finite & whole(torch.isfinite(grad))
        assert (bits(grad, zeros_alike=True) == bits(safe_grad, zeros_alike=True))[sound].all()
        assert torch.isfinite(safe_grad).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_unary_operator_is_torch_bit_for_bit_where_finite_and_finite_elsewhere(
    name: str, dtype: torch.dtype
) -> None:
    assert_torch_where_finite_else_finite(
        getattr(torch, name), getattr(safe, name), edge_values(dtype)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_binary_operator_is_torch_bit_for_bit_where_finite_and_finite_elsewhere(
    name: str, dtype: torch.dtype
) -> None:
    edges = edge_values(dtype)
    a, b = (t.flatten() for t in torch.meshgrid(edges, edges, indexing="ij"))
    assert_torch_where_finite_else_finite(getattr(torch, name), getattr(safe, name), a, b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [name for name in ROWS if name != "norm of all"])
def test_row_operator_is_torch_bit_for_bit_where_finite_and_finite_elsewhere(
    name: str, dtype: torch.dtype
) -> None:
    theirs, ours = ROWS[name]
    assert_torch_where_finite_else_finite(theirs, ours, edge_rows(dtype), rows=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [*UNARY, *BINARY, *ROWS])
def test_gradient_under_random_weights_is_torch_bit_for_bit_at_ordinary_points(
    name: str, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(16, 8, generator=generator) * 0.8 + 0.1).to(dtype)
    x = 1 + x if name == "acosh" else x
    operands = (x, x.flip(0)) if name in BINARY else (x,)
    theirs, ours = ROWS[name] if name in ROWS else (getattr(torch, name), getattr(safe, name))
    weight = torch.randn(theirs(*operands).shape, generator=generator).to(dtype)
    for expected, found in zip(
        value_and_gradients(theirs, *operands, weight=weight),
        value_and_gradients(ours, *operands, weight=weight),
        strict=True,
    ):
        pairs = (
            zip(expected, found, strict=True) if isinstance(expected, list) else [(expected, found)]
        )
        assert all(torch.equal(bits(a), bits(b)) for a, b in pairs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [0, 0.1, -2.0, 3, 0.5])
def test_python_number_in_either_place_is_torch_bit_for_bit(
    number: float, dtype: torch.dtype
) -> None:
    x = edge_values(dtype)
    for name in ("div", "pow", "xlogy"):
        theirs, ours = getattr(torch, name), getattr(safe, name)
        assert_torch_where_finite_else_finite(
            lambda t, op=theirs: op(t, number), lambda t, op=ours: op(t, number), x
        )
        if name == "div":
            continue  # torch.div takes no number first
        assert_torch_where_finite_else_finite(
            lambda t, op=theirs: op(number, t), lambda t, op=ours: op(number, t), x
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [4, 30])  # torch.cdist changes its method beyond 25
@pytest.mark.parametrize("p", [0.5, 1.0, 2.0, 3.0, math.inf])
def test_cdist_is_torch_bit_for_bit_where_torch_has_a_kernel(
    p: float, rows: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, rows, 3, generator=generator).to(dtype) for n in (2, 1))
    weight = torch.randn(2, rows, rows, generator=generator).to(dtype)
    value, grads = value_and_gradients(lambda s, t: safe.cdist(s, t, p), a, b, weight=weight)
    try:
        expected, expected_grads = value_and_gradients(
            lambda s, t: torch.cdist(s, t, p), a, b, weight=weight
        )
    except RuntimeError:  # no kernel for half precision: the rounded result of float32
        assert torch.equal(value, torch.cdist(a.float(), b.float(), p).to(dtype))
        return
    assert torch.equal(bits(value), bits(expected))
    assert all(torch.equal(bits(g), bits(e)) for g, e in zip(grads, expected_grads, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.5, 1.0, 1.5, 2.0, 3.0, math.inf])
def test_cdist_of_equal_and_of_huge_points_is_finite_with_finite_gradients(
    p: float, dtype: torch.dtype
) -> None:
    top = torch.finfo(dtype).max
    points = torch.tensor(
        [[0, 0, 0], [0, 0, 0], [1, 2, 3], [top] * 3, [-top, top, top]], dtype=torch.float64
    ).to(dtype)
    value, grads = value_and_gradients(lambda s, t: safe.cdist(s, t, p), points, points)
    assert all(torch.isfinite(t).all() for t in (value, *grads))
    assert value.diagonal().eq(0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_entropy_is_the_sum_of_entr_and_its_gradient_at_zero_is_zero(dtype: torch.dtype) -> None:
    p = torch.tensor([[0.0, 0.25, 0.75], [1.0, 0.0, 0.0]], dtype=torch.float64).to(dtype)
    value, (grad,) = value_and_gradients(safe.entropy, p)
    expected, (their_grad,) = value_and_gradients(lambda t: torch.special.entr(t).sum(-1), p)
    assert torch.equal(value, expected)
    assert torch.equal(grad, torch.where(p == 0, 0.0, their_grad))


STATED = [  # operator, operand, value, derivative: what the docstrings state
    (safe.sqrt, 0.0, 0.0, 0.0),
    (safe.sqrt, -1.0, 0.0, 0.0),
    (safe.rsqrt, 0.0, 0.0, 0.0),
    (safe.reciprocal, 0.0, 0.0, 0.0),
    (lambda x: safe.div(1.0, x), 0.0, 0.0, 0.0),
    (lambda x: safe.div(x, 0), 3.0, 0.0, 0.0),
    (lambda x: safe.pow(x, 0.5), 0.0, 0.0, 0.0),
    (lambda x: safe.pow(x, -1), 0.0, 0.0, 0.0),
    (lambda x: safe.pow(x, 0.5), -1.0, 0.0, 0.0),
    (safe.acos, 1.0, 0.0, 0.0),
    (safe.acos, 2.0, 0.0, 0.0),
    (safe.acos, -2.0, math.pi, 0.0),
    (safe.asin, 2.0, math.pi / 2, 0.0),
    (safe.acosh, 1.0, 0.0, 0.0),
    (safe.acosh, 0.0, 0.0, 0.0),
    (lambda x: safe.xlogy(x, x), 0.0, 0.0, 0.0),
    (lambda x: safe.atan2(x, x), 0.0, 0.0, 0.0),
    (lambda x: safe.norm(x.expand(3)), 0.0, 0.0, 0.0),
    (lambda x: safe.std(x.expand(1), 0), 5.0, 0.0, 0.0),
    (lambda x: safe.std(x.expand(4), 0), 5.0, 0.0, 0.0),
    (lambda x: safe.softmax(x.expand(3), 0).sum(), -math.inf, 0.0, 0.0),
]


@pytest.mark.parametrize("case", range(len(STATED)))
@pytest.mark.parametrize("dtype", DTYPES)
def test_value_and_derivative_at_the_edge_are_the_stated_ones(
    case: int, dtype: torch.dtype
) -> None:
    op, operand, value, derivative = STATED[case]
    found, (grad,) = value_and_gradients(op, torch.tensor(operand, dtype=dtype))
    assert found == torch.tensor(value, dtype=dtype)
    assert grad == derivative


@pytest.mark.parametrize("dtype", DTYPES)
def test_limits_in_stated_values_come_from_the_dtype(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    tiny = torch.tensor(limits.smallest_normal, dtype=dtype) * limits.eps
    zero, one = torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)
    assert safe.log(zero) == safe.log(-one) == torch.log(tiny) and tiny > 0
    assert safe.exp(torch.tensor(limits.max, dtype=dtype)) == limits.max
    assert safe.log1p(-one) == torch.log1p(-(one - limits.eps / 2)) and safe.logit(
        -one
    ) == torch.logit(tiny)
    assert safe.logsumexp(torch.full((3,), -math.inf, dtype=dtype), 0) == limits.min
    assert safe.logsumexp(torch.zeros(0, dtype=dtype), 0) == limits.min


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_with_a_row_masked_throughout_gives_zeros_and_no_gradient_to_it(
    dtype: torch.dtype,
) -> None:
    scores = torch.arange(6.0).reshape(2, 3).to(dtype).requires_grad_()
    mask = torch.tensor([[True, True, False], [False, False, False]])
    weights = safe.softmax(scores.masked_fill(~mask, -math.inf), -1)
    expected = torch.softmax(scores[0, :2].detach(), 0)
    assert torch.equal(weights[1], torch.zeros(3, dtype=dtype))
    assert torch.equal(weights[0, :2].detach(), expected)
    weights.square().sum().backward()
    assert (
        torch.isfinite(scores.grad).all()
        and scores.grad[1].eq(0).all()
        and scores.grad[0, :2].ne(0).all()
    )


def test_log_softmax_lets_a_zero_target_meet_a_masked_class() -> None:
    scores = torch.tensor([[1.0, 2.0, -math.inf], [-math.inf] * 3], requires_grad=True)
    logs = safe.log_softmax(scores, -1)
    loss = -(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]) * logs).sum()
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(scores.grad).all()
    assert torch.equal(logs[0, :2], torch.log_softmax(scores, -1)[0, :2])
    assert logs[0, 2] == torch.finfo(torch.float32).min


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_mean_of_an_empty_row_is_zero_and_what_is_masked_may_be_anything(
    dtype: torch.dtype,
) -> None:
    x = torch.tensor([[1.0, 3.0, math.nan], [math.inf, math.nan, 5.0]]).to(dtype).requires_grad_()
    mean = safe.masked_mean(x, torch.tensor([[1, 1, 0], [0, 0, 0]]), dim=-1)
    assert mean.tolist() == [2.0, 0.0]
    mean.sum().backward()
    assert x.grad.tolist() == [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]


def test_masked_mean_takes_dims_keepdim_and_a_mask_that_broadcasts() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    mask = torch.tensor([True, False, True, False])
    assert safe.masked_mean(x, mask) == x[..., mask].mean()
    assert torch.equal(
        safe.masked_mean(x, mask, (0, 2), keepdim=True), x[..., mask].mean((0, 2), keepdim=True)
    )


def test_masked_mean_of_which_only_the_sum_overflows_is_finite() -> None:
    top = torch.finfo(torch.float32).max
    assert safe.masked_mean(torch.tensor([top, top]), torch.tensor([True, True])) == top


def test_norm_of_which_only_the_squares_overflow_is_right() -> None:
    assert torch.isclose(safe.norm(torch.tensor([3e30, 4e30])), torch.tensor(5e30))


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_operand_keeps_its_derivative_where_only_the_other_overflows(
    dtype: torch.dtype,
) -> None:
    limits = torch.finfo(dtype)
    a, b = (
        torch.tensor(1.0, dtype=dtype),
        torch.tensor(math.sqrt(limits.smallest_normal) / 4, dtype=dtype),
    )
    _, (grad_a, grad_b) = value_and_gradients(safe.div, a, b)
    assert grad_a == 1 / b and torch.isinf(1 / b / b) and grad_b == 0


@pytest.mark.parametrize("name", ORDINARY)
def test_nan_that_came_in_stays_nan_in_value_and_gradient(name: str) -> None:
    x = torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1
    x[1, 2] = math.nan
    value, (grad,) = value_and_gradients(ORDINARY[name], x)
    assert torch.isnan(value).any()
    assert torch.isfinite(grad).any() or torch.isnan(grad).any()
    if name in UNARY:
        assert torch.isnan(grad[1, 2]) and torch.isfinite(grad[0]).all()


@pytest.mark.parametrize("name", ORDINARY)
def test_first_and_second_derivatives_are_those_of_finite_differences(name: str) -> None:
    x = torch.tensor(
        [[0.2, 0.35, 0.4], [0.1, 0.5, 0.3], [0.45, 0.75, 0.7]],
        dtype=torch.float64,
        requires_grad=True,
    )
    op = ORDINARY[name]
    forward_mode = not name.startswith(("cdist",))  # torch.cdist has none either
    assert torch.autograd.gradcheck(op, (x,), check_forward_ad=forward_mode)
    assert torch.autograd.gradgradcheck(op, (x,))


SINGULAR = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, -1.0], [0.5, 0.25, 0.125]])


# its second derivative is infinite
@pytest.mark.parametrize("name", [n for n in ORDINARY if n != "norm p=0.5"])
def test_second_derivative_is_finite_at_the_singular_points(name: str) -> None:
    x = SINGULAR.clone().requires_grad_()
    (grad,) = torch.autograd.grad(ORDINARY[name](x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((grad.square() + 0 * x).sum(), x)  # 0 * x: some are linear
    assert torch.isfinite(grad).all()
    assert torch.isfinite(second).all() or name == "normalize"  # 1e24 squared is beyond float32


def test_gradient_penalty_of_a_zero_gradient_has_a_finite_gradient() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    (grad,) = torch.autograd.grad((x**2).sum(), x, create_graph=True)
    (safe.norm(grad, dim=-1) - 1).square().sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("name", ORDINARY)
def test_anomaly_detection_finds_nothing_at_the_singular_points(name: str) -> None:
    x = SINGULAR.clone().requires_grad_()
    with torch.autograd.set_detect_anomaly(True):
        ORDINARY[name](x).sum().backward()
        assert torch.is_anomaly_enabled()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("name", ORDINARY)
def test_vmap_gives_what_the_batch_gives_values_and_gradients(name: str) -> None:
    batch = torch.stack([SINGULAR, SINGULAR.flip(0), SINGULAR * 0.5])
    op = ORDINARY[name]

    def assert_same(a: torch.Tensor, b: torch.Tensor) -> None:
        """The last bit may differ: torch computes the elements beyond a full vector register
        otherwise than those in one, and which they are depends on the shape and the processor."""
        torch.testing.assert_close(a, b, rtol=4 * torch.finfo(a.dtype).eps, atol=0.0)

    assert_same(torch.func.vmap(op)(batch), torch.stack([op(x) for x in batch]))
    expected = torch.stack([value_and_gradients(op, x)[1][0] for x in batch])
    assert_same(torch.func.vmap(torch.func.grad(lambda t: op(t).sum()))(batch), expected)


@pytest.mark.parametrize("name", ORDINARY)
def test_torch_func_grad_gives_what_backward_gives(name: str) -> None:
    op = ORDINARY[name]
    expected = value_and_gradients(op, SINGULAR)[1][0]
    assert torch.equal(torch.func.grad(lambda t: op(t).sum())(SINGULAR), expected)


def test_a_loss_on_a_gradient_of_torch_func_reaches_the_weights() -> None:
    def outer(op: Callable[..., torch.Tensor], at: torch.Tensor) -> torch.Tensor:
        w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        torch.func.grad(lambda v: op((w * v).square().sum()))(at).sum().backward()
        assert w.grad is not None
        return w.grad

    torch.testing.assert_close(outer(safe.sqrt, torch.ones(3)), outer(torch.sqrt, torch.ones(3)))
    assert torch.equal(outer(safe.sqrt, torch.zeros(3)), torch.zeros(3))


ONE_OF_EACH_KIND = ["sqrt", "div", "norm", "log_softmax", "cdist"]  # the slow cases compile all


@pytest.mark.parametrize(
    ("backend", "names"),
    [
        ("eager", ONE_OF_EACH_KIND),
        ("aot_eager", ONE_OF_EACH_KIND),
        pytest.param("eager", list(ORDINARY), marks=pytest.mark.slow),
        pytest.param("aot_eager", list(ORDINARY), marks=pytest.mark.slow),
    ],
)
def test_operators_compile_as_one_graph_with_the_same_bits(backend: str, names: list[str]) -> None:
    def several(x: Tensor) -> list[Tensor]:
        return [ORDINARY[name](x) for name in names]

    torch._dynamo.reset()
    x = SINGULAR.clone().requires_grad_()
    compiled = torch.compile(several, backend=backend, fullgraph=True)(x)
    for value, expected in zip(compiled, several(x), strict=True):
        assert torch.equal(value, expected)
        (grad,) = torch.autograd.grad(value.sum(), x, retain_graph=True)
        assert torch.equal(grad, torch.autograd.grad(expected.sum(), x)[0])


@pytest.mark.parametrize(
    "name", [*UNARY, "entropy", "softmax", "norm", "std", "masked_mean", "logsumexp"]
)
def test_empty_tensors_pass(name: str) -> None:
    x = torch.zeros(0, 3, requires_grad=True)
    value = ORDINARY[name](x)
    value.sum().backward()
    assert value.numel() == 0 and x.grad.shape == (0, 3)


@pytest.mark.parametrize("name", UNARY)
def test_scalar_tensors_and_integers_pass_as_in_torch(name: str) -> None:
    op, theirs = getattr(safe, name), getattr(torch, name)
    scalar = torch.tensor(1.5 if name == "acosh" else 0.5)
    assert torch.equal(op(scalar), theirs(scalar)) and op(scalar).shape == ()
    integers = (
        torch.tensor([2]) if name not in ("acos", "asin", "atanh", "logit") else torch.tensor([0])
    )
    assert op(integers).dtype == theirs(integers).dtype


@pytest.mark.parametrize("name", BINARY)
def test_binary_operands_broadcast_and_promote_as_in_torch(name: str) -> None:
    op, theirs = getattr(safe, name), getattr(torch, name)
    column, row = torch.rand(3, 1) + 0.5, torch.rand(4) + 0.5
    value, grads = value_and_gradients(op, column, row)
    expected, expected_grads = value_and_gradients(theirs, column, row)
    assert torch.equal(value, expected)
    assert all(torch.equal(g, e) for g, e in zip(grads, expected_grads, strict=True))
    for a, b in [
        (row.half(), row),
        (row.half(), row[0]),
        (row.half(), torch.arange(1, 5)),
        (row[0], row.bfloat16()),
    ]:
        assert op(a, b).dtype == theirs(a, b).dtype


def test_keywords_of_torch_are_kept() -> None:
    for name in safe.__all__:
        if name in ("entropy", "exprel", "limit", "log1mexp", "masked_mean", "removable"):
            continue
        decomposes = name in ("eigh", "svd")
        theirs = getattr(F, name, None) or getattr(torch.linalg if decomposes else torch, name)
        try:
            expected = list(inspect.signature(theirs).parameters)
        except ValueError:  # a function of C: called by keyword in the other tests
            continue
        found = list(inspect.signature(getattr(safe, name)).parameters)
        assert set(found) <= {*expected}, name


def test_rounding_mode_of_division_is_kept() -> None:
    x = torch.tensor([7.0, -7.0])
    assert safe.div(x, 2, rounding_mode="floor").tolist() == [3.0, -4.0]


def test_works_without_gradients_and_under_inference_mode() -> None:
    with torch.no_grad():
        assert safe.sqrt(torch.tensor(-1.0)) == 0
    with torch.inference_mode():
        assert safe.norm(torch.zeros(3)) == 0


@pytest.mark.parametrize("bad", [1.0, [1.0], torch.tensor(1j)])
def test_what_is_no_real_tensor_is_refused_by_type(bad: object) -> None:
    with pytest.raises(TypeMismatchError, match="expected a"):
        safe.sqrt(bad)


def test_matrix_norms_are_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match="matrix_norm"):
        safe.norm(torch.eye(2), "nuc")


# -- in a training loop
# ------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("name", ORDINARY)
def test_activation_checkpointing_changes_neither_value_nor_gradient(
    name: str, reentrant: bool
) -> None:
    def block(t: Tensor) -> Tensor:
        return ORDINARY[name](t * 1.0).sum()

    x, y = SINGULAR.clone().requires_grad_(), SINGULAR.clone().requires_grad_()
    value = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)
    value.backward()
    expected = block(y)
    expected.backward()
    assert torch.equal(value, expected) and torch.equal(x.grad, y.grad)
    assert torch.isfinite(x.grad).all()


def test_gradient_penalty_inside_activation_checkpointing_is_differentiable() -> None:
    def block(t: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad(safe.sqrt(t).sum(), t, create_graph=True)
        return grad.square().sum()

    x, y = (torch.tensor([0.0, 0.25, 4.0]).requires_grad_() for _ in range(2))
    torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).backward()
    block(y).backward()
    assert torch.equal(x.grad, y.grad)
    # d (1 / 4x) / dx
    assert torch.allclose(x.grad, torch.tensor([0.0, -1 / (4 * 0.25**2), -1 / (4 * 4.0**2)]))


@pytest.mark.parametrize("name", ["sqrt", "log", "norm", "softmax", "div", "logsumexp"])
def test_hessians_forward_over_reverse_are_those_of_torch(name: str) -> None:
    x = torch.tensor([0.2, 0.35, 0.4], dtype=torch.float64)
    theirs = ROWS[name][0] if name in ROWS else ORDINARY[name]
    theirs = (
        getattr(torch, name)
        if name in UNARY
        else theirs
        if name in ROWS
        else (lambda t: t / t.flip(0))
    )
    found = torch.func.hessian(lambda t: ORDINARY[name](t).pow(2).sum())(x)
    assert torch.allclose(
        found, torch.func.hessian(lambda t: theirs(t).pow(2).sum())(x), rtol=1e-12
    )


@pytest.mark.parametrize("name", ["pow", "log", "softmax", "norm", "div", "exp", "sqrt"])
def test_under_autocast_dtypes_values_and_gradients_are_those_of_torch(name: str) -> None:
    op = {"softmax": ROWS["softmax"], "norm": ROWS["norm"]}.get(name)
    theirs, ours = op or (getattr(torch, name), getattr(safe, name))
    x = (torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) + 0.5).bfloat16()
    operands = (x, x.flip(0)) if name in BINARY else (x,)
    with torch.autocast("cpu", torch.bfloat16):
        expected, grads = value_and_gradients(theirs, *operands)
        value, safe_grads = value_and_gradients(ours, *operands)
    assert value.dtype == expected.dtype and torch.equal(value, expected)
    assert all(
        a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(grads, safe_grads, strict=True)
    )


@pytest.mark.parametrize("name", [*UNARY, *BINARY, "normalize", "norm", "logsumexp"])
def test_a_bad_neighbour_changes_no_bit_of_the_others(name: str) -> None:
    x = torch.rand(6, 3, generator=torch.Generator().manual_seed(0)) * 0.8 + 0.1
    x = x + 1 if name == "acosh" else x
    op, weight = ORDINARY[name] if name != "acosh" else safe.acosh, torch.arange(1.0, 7.0)[:, None]
    op = getattr(safe, name) if name in BINARY else op
    operands = (x, x + 0.5) if name in BINARY else (x,)
    spoilt = tuple(
        torch.cat([t[:5], torch.full((1, 3), v)])
        for t, v in zip(operands, (0.0, 0.0), strict=False)
    )
    for a, b in zip(operands, spoilt, strict=True):
        a[5], b[5] = a[0], b[5]

    def weighted(*ts: Tensor) -> Tensor:
        value = op(*ts)
        return value * (weight if value.ndim == 2 else weight[:, 0])

    value, grads = value_and_gradients(weighted, *operands)
    found, safe_grads = value_and_gradients(weighted, *spoilt)
    assert torch.equal(value[:5], found[:5]) and torch.isfinite(found).all()
    assert all(torch.equal(a[:5], b[:5]) for a, b in zip(grads, safe_grads, strict=True))


def test_an_exploding_gradient_that_comes_in_is_passed_on() -> None:
    x = torch.tensor([1.0, 0.0, 4.0], requires_grad=True)
    safe.sqrt(x).backward(torch.tensor([math.inf, math.inf, math.nan]))
    assert x.grad[0] == math.inf and x.grad[1] == 0 and x.grad[2].isnan()
    y = torch.tensor([1e-30], requires_grad=True)
    safe.log(y).backward(torch.tensor([1e30]))
    assert y.grad == math.inf


class Passes(TorchDispatchMode):
    """Counts the operations that read or write a whole tensor of a certain size."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.numel, self.names = numel, []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [t.numel() for t in (*args, result) if isinstance(t, Tensor)]
        if self.numel in sizes and func.overloadpacket.__name__ not in (
            "detach",
            "expand",
            "view",
            "alias",
        ):
            self.names.append(func.overloadpacket.__name__)
        return result


@pytest.mark.parametrize("name", ["sqrt", "log", "exp", "reciprocal", "acos"])
def test_where_all_is_well_it_costs_a_second_forward_and_a_sum_for_value_and_gradient(
    name: str,
) -> None:
    counts = []
    for op in (getattr(torch, name), getattr(safe, name)):
        x = (torch.arange(1000.0) / 2000 + 0.1).requires_grad_()
        with Passes(1000) as passes:
            op(x).backward(torch.ones(1000))
        counts.append(passes.names)
    theirs, ours = counts
    extra = [n for n in ours if n not in ("ones", "ones_like")]
    for n in theirs:
        if n in extra:
            extra.remove(n)
    # of the value, twice, and of the gradient
    assert sorted(extra) == sorted([name, "sum", "sum", "sum"])


@pytest.mark.parametrize("name", ORDINARY)
def test_a_watch_takes_a_safe_operator_at_its_singular_points_for_no_fault(name: str) -> None:
    x = SINGULAR.clone().requires_grad_()
    with nanlab.watch(on_fault="record") as trace:
        ORDINARY[name](x).sum().backward()
    assert trace.culprit is None


def test_jacobians_by_rows_of_autograd_go_through_safe_operators() -> None:
    x = torch.tensor([0.0, 0.25, 0.5])
    by_rows, one_by_one = (
        torch.autograd.functional.jacobian(lambda t: safe.sqrt(t) * t, x, vectorize=vectorize)
        for vectorize in (True, False)
    )
    assert torch.equal(by_rows, one_by_one)


@pytest.mark.parametrize("name", ["sqrt", "norm", "softmax", "std", "rsqrt", "exp", "hypot"])
def test_what_a_safe_operator_computes_with_is_freed(name: str) -> None:
    """A node that saved its own result with a graph would hold itself for good."""

    def alive() -> int:
        gc.collect()
        return sum(type(each) is torch.Tensor for each in gc.get_objects())

    gc.freeze()  # of the objects of the other tests none is counted

    def run() -> None:
        x = torch.rand(5, requires_grad=True)
        given = {"softmax": (0,), "hypot": (torch.ones(5),)}.get(name, ())
        getattr(safe, name)(x, *given).sum().backward()

    run()
    before = alive()
    for _ in range(3):
        run()
    assert alive() <= before
