"""What may be called verified, and what may not."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nanlab
from nanlab.analysis.verdict import Judge
from nanlab.errors import NotReplayable
from nanlab.exact.limits import agrees
from nanlab.findings.rule import Edit, Fix
from nanlab.program.rebuild import Beginning, same_bits
from nanlab.program.replay import Change, FiniteGate, gradient_runs, patched, replay_step
from nanlab.program.rerun import window
from nanlab.program.slices import cut, narrowed
from nanlab.program.values import Values
from nanlab.rules.remedies import judge_for

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("written_fixes", ROOT / "benchmarks" / "written.py")
assert spec is not None
assert spec.loader is not None
written: Any = importlib.util.module_from_spec(spec)
sys.modules["written_fixes"] = written
spec.loader.exec_module(written)

PROGRAM = """
import torch

scores = torch.nn.Parameter(torch.linspace(-3, 3, 32000).reshape(200, 160))
scores.data[7, 3], scores.data[7, 150] = 120.0, 119.0


def step():
    scores.grad = None
    weights = torch.exp(scores)
    shares = weights / weights.sum(1, keepdim=True)
    loss = (shares * torch.linspace(0, 1, 160)).sum()
    loss.backward()
    return loss
"""


def test_a_limit_that_no_arithmetic_computes_is_not_called_right() -> None:
    x = torch.tensor([0.0, 0.5], requires_grad=True)

    def kernel(t: Tensor) -> Tensor:
        if t.dtype != torch.float32:
            raise TypeError("this kernel is written for float32 alone")
        return torch.sin(t) / t

    assert agrees(lambda t: kernel(t.clamp_min(1e-3)), kernel, [x]).kind == "unknown"


def test_the_largest_exponent_is_not_subtracted_where_nothing_divides_by_the_sum(
    tmp_path: Path,
) -> None:
    path = tmp_path / "beyond_every_dtype.py"
    path.write_text(
        """
import torch

energy = torch.nn.Parameter(torch.tensor([1000.0]))


def step():
    energy.grad = None
    loss = torch.exp(energy).sum()
    loss.backward()
    return loss
"""
    )
    module = written.load(path)
    with nanlab.watch(on_fault="record") as trace:
        module.step()
    assert trace.culprit is not None
    verdicts = {fix.title.split(":")[0]: fix.verdict for fix in trace.culprit.fixes}
    assert (
        verdicts.get("subtract the largest exponent, for a result that is divided by its sum")
        != "verified"
    )
    assert verdicts["clamp the argument at 20"] == "verified"


def test_where_no_neighbour_has_a_value_there_is_no_limit_to_hold_a_fix_to() -> None:
    x = torch.tensor([-1.0, 4.0], requires_grad=True)
    assert agrees(lambda t: t.clamp_min(1e-6).sqrt(), torch.sqrt, [x]).kind == "agrees"


def test_a_wrong_fix_is_not_verified_where_the_step_is_too_large_to_be_computed_exactly(
    tmp_path: Path,
) -> None:
    path = tmp_path / "large_softmax.py"
    path.write_text(PROGRAM)
    module = written.load(path)
    with nanlab.watch(on_fault="record") as trace:
        module.step()
    assert trace.culprit is not None
    fixes = trace.culprit.fixes
    assert (fixes[0].title, fixes[0].verdict) == ("rewritten with softmax: line 12", "verified")
    clamps = [fix.verdict for fix in fixes if "clamp" in fix.title]
    assert clamps
    assert "verified" not in clamps


@pytest.mark.examples(every=3)
@pytest.mark.parametrize("name", ["l102", "l129", "l140", "l190", "l194", "l210", "d201"])
def test_a_program_with_a_verified_fix_in_it_is_what_the_replay_said(name: str) -> None:
    (path,) = (ROOT / "benchmarks" / "limits").glob(f"{name}_*.py")
    found = list(written.outcomes(path))
    assert found
    assert [outcome for _, outcome in found] == [("same", "")] * len(found)


def test_in_a_large_result_whose_rows_are_computed_alike_some_of_them_tell_what_is_right() -> None:
    scale = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 128).reshape(16, 8))
    mixing = torch.randn(8, 30_000, generator=torch.Generator().manual_seed(0))
    with nanlab.watch(on_fault="record") as trace:
        out = (scale @ mixing).view(2, 8, 30_000)
        away = out - out.detach()
        distance = away.square().sum(-1).sqrt()
        (distance.mean() + out.square().mean()).backward()
    assert trace.culprit is not None
    fixes = trace.culprit.fixes
    assert "vector_norm" in fixes[0].code
    assert fixes[0].verified
    assert trace.cure is not None and trace.cure.verified


def test_rows_that_depend_on_each_other_are_not_left_out() -> None:
    x = torch.nn.Parameter(torch.linspace(0.0, 2.0, 4096).reshape(1024, 4))
    with nanlab.watch(on_fault="record") as trace:
        ranks = (x / x.sum(0)).sqrt()
        ranks.sum().backward()
    segment = trace.recording.program.segments[-1]
    index = next(i for i, c in enumerate(segment.calls) if c.func._opname == "sqrt")
    part = cut(Values([segment]), [segment.calls[index].out], (0, index + 1))
    fewer = narrowed(part, 256)  # of the columns, which are
    assert fewer is not None
    assert [tuple(t.shape) for t in fewer.operands.values()] == [(1024, 1)]


def test_complex_elements_that_a_fix_moves_are_noticed() -> None:
    gain = torch.nn.Parameter(torch.ones(8))
    x = torch.stack([torch.arange(8.0).sin() / 8, torch.zeros(8)])
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(2):
            gain.grad = None
            bins = torch.fft.rfft(x * gain)
            unit = bins / bins.abs()  # all bins of the second row are 0
            unit.real.mean().backward()
    assert trace.culprit is not None
    fixes = {fix.title: fix for fix in trace.culprit.fixes}
    series = fixes["the series near 0"]  # it is good near 0 alone, and reaches to 1
    assert series.verdict == "finite"
    assert "changes healthy values" in series.why


def test_an_edit_inside_of_what_a_layer_is_given_is_tried_and_not_the_layer() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 8)
    hidden = torch.arange(75)[:, None, None] % 70 == 0
    values = torch.nn.Parameter(torch.randn(75, 8, 8))
    with nanlab.watch(layer) as trace:
        w = (values @ values.mT).masked_fill(hidden, float("-inf"))
        mixed = layer((w.softmax(-1) @ values).flatten(0, 1))
        mixed.square().mean().backward()
    fix = next(f for f in trace.culprit.fixes if "safe.softmax(" in f.code)
    assert "layer(" in fix.code
    assert fix.verdict == "verified", fix.why


def test_a_step_whose_truth_no_arithmetic_computes_is_judged_around_the_edited_line() -> None:
    torch.manual_seed(0)
    text = torch.nn.Sequential(
        torch.nn.EmbeddingBag(100, 64, padding_idx=0),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 32, bias=False),
    )
    image = torch.nn.Linear(48, 32)
    images, tokens = torch.randn(16, 48), torch.randint(1, 100, (16, 7))
    tokens[4] = 0
    with nanlab.watch(torch.nn.Sequential(text, image)) as trace:
        z = text(tokens)
        z = z / z.norm(dim=-1, keepdim=True)
        logits = torch.nn.functional.normalize(image(images), dim=-1) @ z.T
        torch.nn.functional.cross_entropy(10 * logits, torch.arange(16)).backward()
    assert trace.culprit.cause == "norm-at-zero"
    assert trace.culprit.fixes[0].verdict == "verified", trace.culprit.fixes[0].why
    assert "normalize(" in trace.culprit.fixes[0].code
    assert [found.cause for found in trace.findings] == ["norm-at-zero"]


def test_a_call_with_several_results_is_judged_though_the_step_needs_one_of_them() -> None:
    m = torch.nn.Parameter(torch.tensor([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]))
    with nanlab.watch(on_fault="record") as trace:
        q = torch.linalg.qr(m * 2).Q
        q[:, 1].sum().backward()
    assert trace.culprit is not None
    tried = [fix for fix in trace.culprit.fixes if fix.edits]
    assert tried
    assert not any("NotReplayable" in fix.why for fix in tried)


def test_a_judged_step_ends_at_the_first_gradient_that_is_not_finite() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
    x = torch.randn(3, 4)
    with nanlab.watch(model, on_fault="record") as trace:
        out = model(x)
        away = out - out.detach()
        (away.square().sum(-1).sqrt().mean() + out.mean()).backward()
    where = window(trace.recording, 0)
    gate = FiniteGate(where)
    found, _, result = patched(where, Change(where.segments), gate)
    assert result.ended
    assert not found.finite
    assert list(found.gradients) == ["1.bias"]  # the first that the engine gives


def test_a_gradient_that_is_mended_before_the_update_ends_no_judged_step() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    x = torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nanlab.watch(model, on_fault="record") as trace:
        out = model(x)
        away = out - out.detach()
        (away.square().sum(-1).sqrt().mean() + out.mean()).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.nan_to_num_()
        optimizer.step()
    where = window(trace.recording, 0)
    found, _, result = patched(where, Change(where.segments), FiniteGate(where))
    assert not result.ended
    assert found.finite


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0] * 2


class Parts(torch.nn.Module):
    """Statistics that are written, masks that are drawn, a hook, and a Function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.ends = torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 3)
        self.begins, self.drop = torch.nn.Linear(4, 6), torch.nn.Dropout(0.3)
        self.register_buffer("seen", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu_(self.norm(self.begins(x)))
        self.seen.add_(h.detach().mean(0))
        h = self.norm(self.drop(Doubled.apply(h) + self.seen))
        h.register_hook(lambda g: g * 0.5)
        self.seen.mul_(0.9)
        out: Tensor = self.ends(h.add_(1)).sigmoid()
        return out


def test_runs_that_share_the_beginning_of_a_step_are_runs_of_the_whole_to_the_bit() -> None:
    torch.manual_seed(0)
    model, x = Parts(), torch.randn(5, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with nanlab.watch(model, on_fault="record") as trace:
        for _ in range(3):
            (model(x).log().mean() + model(x).square().mean()).backward()  # gradients add up
            optimizer.step()
    where = window(trace.recording, 2)
    segments = where.segments
    before = {n: s.clone() for n, s in segments[0].saved.items()}

    def outcome(begun: Beginning | None) -> list[Tensor]:
        found, _, _ = patched(where, Change(segments), None, begun)
        return [*found.gradients.values(), *found.parameters.values()]

    whole, shared, lengths = outcome(None), None, set[int]()
    for index in range(segments[0].engine[0].first + 2):
        shared = Beginning.up_to(segments, index, shared)
        for _ in range(2 if shared is not None and shared.index not in lengths else 0):
            again = outcome(shared)
            assert all(same_bits(a, b) for a, b in zip(whole, again, strict=True)), index
            assert shared is not None and shared.is_intact
        lengths |= {shared.index} if shared is not None else set()
    assert len(lengths) > 10
    for number, storage in before.items():
        assert bytes(storage) == bytes(segments[0].saved[number])  # type: ignore[call-overload]


def distance(w: Tensor, x: Tensor) -> Tensor:
    away = (w * x).square().sum(-1).sqrt()
    return away.mean()


def by_autograd(w: Tensor, x: Tensor) -> Tensor:
    w = w.detach().requires_grad_()
    return torch.autograd.grad(distance(w, x), w)[0]


def by_transform(w: Tensor, x: Tensor) -> Tensor:
    found: Tensor = torch.func.grad(distance)(w, x)
    return found


def by_value_too(w: Tensor, x: Tensor) -> Tensor:
    found: Tensor = torch.func.grad_and_value(distance)(w, x)[0]
    return found


@pytest.mark.parametrize("way", [by_autograd, by_transform, by_value_too])
def test_gradients_that_are_results_are_judged_as_those_of_leaves(
    way: Callable[[Tensor, Tensor], Tensor],
) -> None:
    torch.manual_seed(0)
    w, x = torch.randn(4), torch.randn(6, 4)
    x[2] = 0  # of this row nothing reaches the weight
    others = torch.tensor([0, 1, 3, 4, 5])
    right = by_autograd(w, x[others]) * 5 / 6
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(2):
            w = w - 0.1 * way(w, x)
    assert trace.culprit is not None
    best = trace.culprit.fixes[0]
    assert best.verified, best.why
    (gradient,) = trace.replay(best).gradients.values()
    torch.testing.assert_close(gradient, right)
    wrong = Edit(__file__, LINE, LINE, "    away = (w * x).square().sum(-1).abs()", "")
    judged = Judge(window(trace.recording, 0)).judge([wrong])
    assert judged.verdict != "verified"


LINE = distance.__code__.co_firstlineno + 1


def test_a_gradient_that_the_program_goes_on_with_is_no_result_of_the_step() -> None:
    torch.manual_seed(0)
    w, x = torch.nn.Parameter(torch.randn(4)), torch.randn(3, 4, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        inner = torch.autograd.grad((w * x).tanh().sum(), x, create_graph=True)[0]
        inner.square().mean().backward()
    where = window(trace.recording, 0)
    assert [run.accumulates for _, run in gradient_runs(where)] == [True]
    assert len(trace.replay().gradients) == 2


CUMULATED = """
import torch

META = {"n_steps": 1}
rate = torch.nn.Parameter(torch.tensor([1000.0], dtype=torch.float16))


def build():
    def step(i):
        rate.grad = None
        total = torch.cumsum(rate.expand(100), 0)
        loss = torch.log1p(total.abs()).to(rate.dtype)[-1].float()
        loss.backward()
        return loss

    step.parameters = {"rate": rate}
    return None, step
"""


def test_a_conversion_that_did_nothing_converts_what_an_edit_has_widened(tmp_path: Path) -> None:
    path = tmp_path / "t001_cumulated.py"
    path.write_text(CUMULATED)
    _, trace = written.watched(written.load(path), 1, 1)
    fix = next(f for f in trace.culprit.fixes if "float32" in f.title and f.edits)
    assert trace.replay(fix).loss == float(torch.tensor(100_001.0).log().half())
    assert written.outcome(path, trace, fix, 0) == ("same", "")


AS_ANOTHER = """
import torch

META = {"n_steps": 1}
rate = torch.nn.Parameter(torch.tensor([95.0]))
weight = torch.nn.Parameter(torch.tensor([[1.0]]))


def build():
    def step(i):
        rate.grad = weight.grad = None
        x = rate * 2.0
        wide = weight.double()
        loss = (x.exp().log()[None] @ wide.type(x.dtype)).sum()
        loss.backward()
        return loss

    step.parameters = {"rate": rate}
    return None, step
"""


def test_a_conversion_to_the_dtype_of_what_an_edit_widens_leaves_it_untried(tmp_path: Path) -> None:
    path = tmp_path / "t002_as_another.py"
    path.write_text(AS_ANOTHER)
    _, trace = written.watched(written.load(path), 1, 1)
    edit = Edit(str(path), 12, 12, "x = (rate * 2.0).double()", "x = rate * 2.0")
    with pytest.raises(NotReplayable, match="line 14 converts `wide`, whose dtype"):
        trace.replay(Fix("", edit.text, edits=(edit,)))


SCALED = """
import torch

a = torch.nn.Parameter(torch.tensor([2.0, 3.0]))


def step():
    a.grad = None
    norm = torch.stack([p.exp().sum() for p in [a]]).norm()
    scale = 1 / (norm + 0.5)
    for p in [a]:
        loss = scale * p.exp().sum()
    loss.backward()
"""


def test_a_name_that_is_bound_further_down_has_no_value_where_an_edit_reads_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "scaled.py"
    path.write_text(SCALED)
    module = written.load(path)
    with nanlab.watch(on_fault="record") as trace:
        module.step()
    line = SCALED.splitlines().index("    scale = 1 / (norm + 0.5)") + 1
    edit = Edit(str(path), line, line, "scale = 1 / (norm + p.exp().sum())")
    with pytest.raises(nanlab.NanlabError, match="is not known at this line"):
        replay_step(trace.recording, [edit])


def first_fix(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "program.py"
    path.write_text(text)
    module = written.load(path)
    with nanlab.watch(on_fault="record") as trace:
        module.step()
    return trace.culprit.fixes[0]


def test_a_fix_behind_a_result_that_was_transposed_in_place_is_tried(tmp_path: Path) -> None:
    text = """
import torch

torch.manual_seed(0)
rnn = torch.nn.GRU(4, 3, batch_first=True)  # which transposes its result in place
given, counts = torch.randn(2, 5, 4), torch.tensor([[2.0], [0.0]])


def step():
    out = rnn(given)[0].sum(1)
    loss = torch.where(counts > 0, out / counts, 0.0).sum()
    loss.backward()
"""
    fix = first_fix(tmp_path, text)
    assert (fix.verdict, "counts" in fix.code) == ("verified", True)


@pytest.mark.parametrize("guarded", [True, False])
def test_a_fix_beside_a_side_that_does_not_run_is_tried(guarded: bool, tmp_path: Path) -> None:
    text = f"""
import torch

total = torch.nn.Parameter(torch.ones(3))


class Settings:
    guarded = {guarded}


def step():
    count = torch.tensor([2.0, 0.0, 1.0])
    least = Settings()
    mean = total / (count * 1.0 if least.guarded else count)
    loss = torch.where(count > 0, mean, 0.0).sum()
    loss.backward()
"""
    assert first_fix(tmp_path, text).verdict == "verified"


def test_a_fix_of_sums_over_parts_of_a_tensor_is_tried(tmp_path: Path) -> None:
    text = """
import torch

logits = torch.nn.Parameter(torch.linspace(-2, 3, 512).reshape(2, 4, 8, 8))


def step():
    present = torch.tensor([1.0, 1.0, 0.0, 1.0]).view(1, -1, 1, 1)
    shares = logits.sigmoid() * present
    wanted = (logits.detach() > 1).float() * present
    terms = [
        2 * (p * t).sum() / (p.sum() + t.sum())  # in another order than over their own memory
        for p, t in zip(shares.unbind(1), wanted.unbind(1))
    ]
    loss = 1 - torch.stack(terms).mean()
    loss.backward()
"""
    assert first_fix(tmp_path, text).verdict == "verified"


TRIED = {
    "runs of which autograd keeps the later results alone": (
        """
low = torch.tensor(float("-inf"))


def step():
    cells = [low]
    for score in weights.unbind():
        ways = torch.stack([cells[-1], low])
        cells.append(torch.logsumexp(ways, 0) + score)
    loss = -torch.stack(cells[1:]).exp().sum()
    loss.backward()
""",
        "torch.logsumexp(torch.nan_to_num(ways",
    ),
    "a tensor that is asked for its dtype alone": (
        """
keep, low = torch.tensor([True, False, True]), torch.tensor(float("-inf"))


def step():
    x = weights * 2
    bias = (1.0 - keep.to(x.dtype)) * low
    loss = torch.softmax(x + bias, 0)[0]
    loss.backward()
""",
        "masked_fill",
    ),
    "a flag that is as the operator has it": (
        """
class Settings:
    forgiving = False


def step():
    logits = weights.expand(4, 1, 3).log_softmax(-1)
    forgiving = Settings.forgiving
    text, lengths = torch.tensor([[1, 1, 1]]), torch.tensor([3])
    loss = torch.nn.functional.ctc_loss(
        logits, text, torch.tensor([4]), lengths, zero_infinity=forgiving
    )
    loss.backward()
""",
        "zero_infinity=True",
    ),
    "a result that is written in place and returned": (
        """
counts = torch.tensor([2.0, 0.0, 1.0])


def mean(total):
    sums = total * counts
    return sums.div_(counts)


def step():
    loss = torch.where(counts > 0, mean(weights), 0.0).sum()
    loss.backward()
""",
        "return",
    ),
    "a name that the edit binds anew from itself": (
        """
data = torch.tensor([[1.0, float("nan")], [0.5, 2.0]])
layer = torch.nn.Sequential(torch.nn.Linear(2, 1))


def step():
    x = data
    loss = layer(x).sum() + weights.sum() + layer(x).mean()
    loss.backward()
""",
        "x = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)\nloss",
    ),
    "a model among many of its class": (
        """
data = torch.tensor([[1.0, float("nan")], [0.5, 2.0]])
others = [torch.nn.Sequential(torch.nn.Linear(2, 1)) for _ in range(40)]
layer = torch.nn.Sequential(torch.nn.Linear(2, 1))


def step():
    x = data
    loss = layer(x).sum() + weights.sum() + layer(x).mean()
    loss.backward()
""",
        "x = torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)\nloss",
    ),
    "a parameter that is read in another form, and then written": (
        """
width = torch.nn.Parameter(torch.tensor([0.0, 0.6, 0.5]))
optimizer = torch.optim.SGD([weights, width], lr=0.1)


def score(y, mu, sigma):
    z = (y - mu) / sigma
    pdf = torch.exp(-z * z / 2) / 2.5
    return sigma * (z * torch.erf(z / 1.4) + 2 * pdf - 0.56)


def step():
    loss = score(torch.tensor([2.0, 0.7, 0.1]), weights, width).sum()
    loss.backward()
    optimizer.step()
""",
        "sigma = sigma + 1e-3\n",
    ),
    "a step that begins with weights set by hand": (
        """
def step():
    with torch.no_grad():
        weights[1] -= 0.1
        weights[1] = 0.0
    loss = (weights.detach() / weights).sum()
    loss.backward()
""",
        "clamp_min",
    ),
    "memory that nobody wrote": (
        """
def step():
    rows = [weights[:2], weights]
    torch.use_deterministic_algorithms(True)  # which fills it with NaN
    out = weights.new_empty(len(rows), 3)
    torch.use_deterministic_algorithms(False)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    loss = out.sum()
    loss.backward()
""",
        "new_zeros(len(rows), 3)",
    ),
}


@pytest.mark.parametrize("what", TRIED)
def test_fixes_are_tried_at(what: str, tmp_path: Path) -> None:
    body, written_as = TRIED[what]
    head = "import torch\n\nweights = torch.nn.Parameter(torch.tensor([0.3, 0.1, -0.4]))\n"
    path = tmp_path / "program.py"
    path.write_text(head + body)
    module = written.load(path)
    with nanlab.watch(on_fault="record") as trace:
        module.step()
    fixes = [f for f in trace.culprit.fixes if written_as in f.code]
    assert fixes
    assert fixes[0].verdict in ("verified", "finite"), fixes[0].why
    assert trace.replay().identical  # trying them has left the step as it was


def test_missing_data_is_filled_where_a_recurrent_layer_reads_it(tmp_path: Path) -> None:
    text = """
import torch

torch.manual_seed(0)
rnn = torch.nn.LSTM(4, 3, batch_first=True)
series = torch.randn(2, 5, 4)
series[1, 2, 0] = float("nan")


def step():
    out, _ = rnn(series)
    loss = out.sum()
    loss.backward()
"""
    path = tmp_path / "program.py"
    path.write_text(text)
    module = written.load(path)
    with nanlab.watch(on_fault="record") as trace:
        module.step()
    fix = next(f for f in trace.culprit.fixes if "rnn(torch.nan_to_num(series" in f.code)
    assert trace.replay(fix).finite


@pytest.mark.parametrize(
    "optimizer", [torch.optim.SparseAdam, torch.optim.Adagrad, torch.optim.SGD]
)
def test_a_fix_is_tried_in_a_step_with_sparse_gradients(
    optimizer: type[torch.optim.Optimizer],
) -> None:
    torch.manual_seed(0)
    table = torch.nn.Embedding(50, 8, sparse=True)
    update = optimizer(table.parameters(), lr=0.1)
    with nanlab.watch(on_fault="record") as trace:
        for i in range(3):
            rows = table(torch.tensor([3, 7, 3, 1]))
            rows = rows - rows if i == 2 else rows
            loss = rows.pow(2).sum(1).sqrt().mean()
            update.zero_grad()
            loss.backward()
            update.step()
    assert trace.replay().identical
    assert trace.replay(step=1).identical
    assert trace.culprit is not None
    fix = trace.culprit.fixes[0]
    assert fix.verdict == "verified", fix.why
    gradient = trace.replay(fix=fix).gradients["Embedding.weight"]
    assert gradient.is_sparse
    assert not gradient.to_dense().any()


def test_where_nanlab_itself_fails_a_fix_is_untried_and_the_reason_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.zeros(3, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        x.sqrt().sum().backward()

    def broken(*_: Any) -> None:
        raise NotImplementedError("no such kernel")

    monkeypatch.setattr(Judge, "_judged", broken)
    assert trace.culprit is not None
    tried = [fix for fix in trace.culprit.fixes if fix.edits]
    assert tried
    for fix in tried:
        assert fix.verdict == "untried"
        assert "NotImplementedError: no such kernel" in fix.why
    assert trace.cure is None


HALF = """
import torch

torch.manual_seed(0)
layer = torch.nn.Linear(8, 1)
x = 30 * torch.randn(16, 8)


def step():
    layer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = layer(x)
        p = torch.sigmoid(logits)
    loss = -torch.log(1 - p.float()).mean()
    loss.backward()
    return loss
"""


@pytest.mark.parametrize("wide", ["p.float()", "p.double()", "p.to(torch.float32)"])
def test_a_probability_of_half_precision_is_rewritten_before_its_conversion(
    wide: str, tmp_path: Path
) -> None:
    path = tmp_path / "half.py"
    path.write_text(HALF.replace("p.float()", wide))
    program = written.load(path)
    with nanlab.watch(on_fault="record") as trace:
        program.step()
    assert trace.culprit is not None
    fix = trace.culprit.fixes[0]
    cast = "double" if "double" in wide else "float"
    assert fix.edits[-1].text.endswith(f"logsigmoid(-logits.{cast}()).mean()")
    assert fix.verdict == "verified" or fix.why.startswith("right in float64; in bfloat16 the")
    clamped = [f for f in trace.culprit.fixes if "clamp" in f.code]
    assert clamped
    assert all(f.why.startswith("the loss is") for f in clamped)


def test_a_number_that_the_program_read_and_went_on_with_leaves_a_fix_untried() -> None:
    policy = torch.nn.Linear(3, 1)
    with nanlab.watch(policy, on_fault="record") as trace:
        returns = torch.tensor([2.0])
        scale = returns.std().item()
        loss = (policy(torch.ones(1, 3)) * ((returns - 1) / (scale + 1e-6))).mean()
        loss.backward()
    assert trace.culprit is not None
    assert trace.culprit.fixes
    for fix in trace.culprit.fixes:
        if "std" in fix.code:
            assert fix.verdict == "untried"
            assert "goes on with the NaN that the program read" in fix.why


def test_a_direction_that_is_longer_than_a_unit_vector_is_not_right() -> None:
    torch.manual_seed(0)
    head = torch.nn.Parameter(torch.zeros(4))
    true = torch.nn.functional.normalize(torch.randn(10, 4), dim=-1)
    with nanlab.watch(on_fault="record") as trace:
        q = head.expand(10, 4)
        unit = q / q.norm(dim=-1, keepdim=True)
        (1 - (unit * true).sum(-1) ** 2).mean().backward()
    assert trace.culprit is not None
    both = [fix for fix in trace.culprit.fixes if "both" in fix.title]
    assert not any(fix.verified for fix in both)
    first = trace.culprit.fixes[0]
    assert (first.verdict, first.why) == ("finite", "no parameter gets a gradient")
    assert "normalize" in first.code


@pytest.mark.examples(every=0)
def test_an_exponent_read_twice_is_clamped_once_behind_what_makes_it() -> None:
    """Finite alone: what is right is beyond float32. Of such a cure too nothing is superfluous."""
    torch.manual_seed(0)
    layer, x = nn.Linear(6, 8), torch.randn(5, 6) * 200
    with nanlab.watch(layer, on_fault="record") as trace:
        mu, logvar = layer(x).chunk(2, 1)
        z = mu + torch.exp(logvar) * torch.randn_like(mu)
        kl = (mu**2 + torch.exp(logvar) - logvar - 1).sum(1).mean()
        loss = -torch.log(torch.sigmoid(z)).mean() + kl
        loss.backward()
    assert trace.cure is not None
    assert sorted(edit.text for edit in trace.cure.edits) == [
        "loss = -torch.nn.functional.logsigmoid(z).mean() + kl",
        "mu, logvar = layer(x).chunk(2, 1)\nlogvar = logvar.clamp(max=20)",
    ]


def test_a_second_fault_has_the_form_that_it_would_have_alone() -> None:
    """The name of its operation, exp, is a part of other words: of logaddexp, of exponent."""

    def squashed(z: Tensor) -> Tensor:
        return (z.exp() - (-z).exp()) / (z.exp() + (-z).exp())

    w = nn.Parameter(torch.ones(3))
    with nanlab.watch(on_fault="record") as trace:
        u = torch.tensor([0.5, 200.0, -0.75]) * w
        energy = torch.log(torch.cosh(u))
        (energy + squashed(u)).sum().backward()
    assert trace.cure is not None
    assert trace.cure.verified
    assert [edit.text for edit in trace.cure.edits] == [
        "energy = torch.nn.functional.softplus(2 * u) - u - 0.6931471805599453",
        "return torch.tanh(z)",
    ]


def test_without_an_exact_loss_a_fix_has_that_of_the_same_lines_in_another_form() -> None:
    torch.manual_seed(0)
    net = nn.ConvTranspose2d(1, 3, 3, padding=1)  # of which there are no exact numbers
    x, classes = 2000 * torch.randn(2, 1, 6, 6), torch.randint(0, 3, (2, 6, 6))
    target = F.one_hot(classes, 3).permute(0, 3, 1, 2).float()
    with nanlab.watch(net, on_fault="record") as trace:
        p = F.softmax(net(x), dim=1)
        overlap = 2 * (p * target).sum((2, 3)) / (p.sum((2, 3)) + target.sum((2, 3)))
        entropy = -(target * torch.log(p)).sum(1).mean()
        (entropy + 1 - overlap.mean()).backward()
    assert trace.culprit is not None
    first, *rest = trace.culprit.fixes
    assert (first.verdict, first.title) == ("verified", "rewritten with log_softmax")
    right = trace.replay(first).loss
    assert right == pytest.approx(float(F.cross_entropy(net(x), classes) + 1 - overlap.mean()))
    assert rest
    assert all(fix.verdict == "finite" for fix in rest)
    assert any(fix.why.endswith(f"its limit {right:.4g}") for fix in rest)


def test_a_form_that_needs_far_more_memory_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "program.py"
    path.write_text("""import torch

topics = torch.nn.Parameter(torch.tensor([[200.0, 0.0], [0.0, 1.0]]).repeat(32, 1))
words = torch.nn.Parameter(200 * torch.eye(2, 32))


def step():
    p = torch.softmax(topics, -1) @ torch.softmax(words, -1)
    loss = -torch.log(p).mean()
    loss.backward()
""")
    module = written.load(path)
    with nanlab.watch(on_fault="record") as trace:
        module.step()
    spread = [f for f in trace.culprit.fixes if ".unsqueeze(-1) + " in f.code]
    assert [f.verdict for f in spread] == ["verified"]
    monkeypatch.setattr("nanlab.program.edit.MOST_SPREAD", 100)
    judgement = judge_for(trace, trace.culprit)
    assert isinstance(judgement, Judge)
    with pytest.raises(nanlab.NotReplayable, match="a tensor of 4,096 elements"):
        judgement.observed(spread[0].edits, False)


def ratio(numerator: Tensor, index: float) -> Tensor:
    return numerator / (index - 1)


def test_a_quotient_whose_numerator_may_depend_on_the_number_that_is_0_has_no_right_fix() -> None:
    w = nn.Parameter(torch.tensor([0.3, -0.2, 0.4]))
    index = 1.0
    with nanlab.watch(on_fault="record") as trace:
        ratio(1 - w.softmax(0).pow(index).sum(), index).backward()
    assert trace.culprit is not None
    assert trace.culprit.cause == "div-by-zero"
    verdicts = {(fix.verdict, fix.why) for fix in trace.culprit.fixes if fix.edits}
    assert verdicts
    assert "verified" not in {verdict for verdict, _ in verdicts}


HALF_HEAD = """
import torch
from torch import nn

torch.manual_seed(0)
model, x = nn.Linear(16, 16).half(), torch.randn(6, 16).half()


def cast(s):
    {ask}


def step():
    y = (model(x) * 300).pow(2)
    loss = cast(y)
    loss.backward()
"""


@pytest.mark.parametrize(
    "ask",
    [
        "return s.to(x.dtype).float().mean()",
        "return s.half().float().mean()",
        "return s.float().mean() if s.dtype == torch.float16 else (s - s).log().mean()",
    ],
    ids=["as another tensor", "to half", "in a condition"],
)
def test_dtype_that_the_program_asks_for_later_is_not_changed_unseen(
    ask: str, tmp_path: Path
) -> None:
    """A conversion to the dtype that a tensor has is no operation; after the edit it may be one."""
    path = tmp_path / "half_head.py"
    path.write_text(HALF_HEAD.format(ask=ask))
    names: dict[str, Any] = {"__name__": "half_head"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    with nanlab.watch(names["model"], on_fault="record") as trace:
        names["step"]()
    assert trace.culprit is not None and trace.culprit.cause == "dtype-overflow"
    wide = [fix for fix in trace.culprit.fixes if ".float()" in fix.code and fix.edits]
    assert wide and all("whose dtype the edit may change" in fix.why for fix in wide)
    assert not any(fix.verified for fix in trace.culprit.fixes)


def test_edit_that_leaves_a_lost_signal_as_it_is_cures_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).half()
    with nanlab.watch(model, on_fault="record") as trace:
        for _ in range(3):
            loss = model(torch.randn(6, 4).half()).float().pow(2).mean() * 1e-9
            loss.backward()
    assert trace.culprit is not None and trace.culprit.cause == "dtype-underflow"
    assert not any(fix.verified for fix in trace.culprit.fixes)


def test_search_that_went_on_by_bad_numbers_accuses_no_fix() -> None:
    torch.manual_seed(0)
    model, x, weights = nn.Linear(4, 4), torch.randn(6, 4), torch.ones(6)
    opt = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure() -> torch.Tensor:
        opt.zero_grad()
        h = model(x)
        shares = (h * weights[:, None]).sum(0) / weights.sum()
        loss = shares.pow(2).sum()
        loss.backward()
        return loss

    with nanlab.watch(model, on_fault="record") as trace:
        for i in range(3):
            weights.fill_(float(i < 2))
            opt.step(closure)
    assert trace.culprit is not None
    tried = [fix for fix in trace.culprit.fixes if fix.edits]
    assert tried and all(fix.verdict == "untried" for fix in tried)


def test_function_of_one_line_is_not_wrapped(tmp_path: Path) -> None:
    path = tmp_path / "one_line.py"
    path.write_text(
        "import torch\nfrom torch import nn\n\nmodel = nn.Linear(16, 16)\n\n\n"
        "def head(h): return (model(h) * 300).pow(2)\n\n\n"
        "def step(x):\n    with torch.autocast('cpu', dtype=torch.float16):\n"
        "        loss = head(x).mean()\n    loss.backward()\n"
    )
    names: dict[str, Any] = {"__name__": "one_line"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    torch.manual_seed(0)
    with nanlab.watch(names["model"], on_fault="record") as trace:
        names["step"](40 * torch.randn(6, 16))
    assert trace.culprit is not None
    around = [fix for fix in trace.culprit.fixes if fix.code.startswith("with ")]
    assert not any(fix.verdict in ("verified", "finite") for fix in around)


WAVES = """
import torch

weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
opt = torch.optim.SGD([weight], lr=0.01)


def step(times):
    opt.zero_grad()
    x = weight * times
    y = torch.sin(x) / x
    y.sum().backward()
    opt.step()
"""


@pytest.mark.parametrize(
    ("text", "verdict", "why"),
    [
        ("y = torch.sinc(x / torch.pi)", "verified", ""),
        (
            "y = torch.sinc(x / torch.pi).reshape(3 * int((x == 0).any()))",
            "fails",
            "in step 1 it raises RuntimeError",
        ),
    ],
)
def test_what_is_right_in_the_failing_step_breaks_none_before(
    text: str, verdict: str, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "waves.py"
    path.write_text(WAVES)
    names: dict[str, Any] = {"__name__": "waves"}
    exec(compile(WAVES, str(path), "exec"), names)
    with nanlab.watch(on_fault="record") as trace:
        for times in ([1.0, 1.0, 1.0], [2.0, 1.0, 0.5], [0.0, 1.0, 2.0]):
            names["step"](torch.tensor(times))
    assert trace.culprit is not None
    judge = judge_for(trace, trace.culprit)
    assert isinstance(judge, Judge)
    found = judge.judge([Edit(str(path), 11, 11, text, "    y = torch.sin(x) / x")])
    assert (found.verdict, found.why[: len(why)]) == (verdict, why)


def test_faults_behind_a_line_that_a_fix_mends_in_part_are_found_and_cured() -> None:
    """Of two logarithms of a line the first fix rewrites one; the other comes back, and hid the
    second exponential."""
    torch.manual_seed(1)
    encoder, decoder = nn.Linear(12, 8), nn.Linear(4, 12)
    x = torch.rand(32, 12)
    x[7] *= 400
    with torch.no_grad():
        encoder.weight[4], encoder.weight[5:] = 0.1, -0.01
    with nanlab.watch(nn.ModuleList([encoder, decoder]), on_fault="record") as trace:
        mu, logvar = encoder(x).chunk(2, -1)
        z = mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)
        p = torch.sigmoid(decoder(z))
        t = x.clamp(0, 1)
        rec = -(t * torch.log(p) + (1 - t) * torch.log(1 - p)).sum(-1)
        kl = -0.5 * (1 + logvar - mu**2 - logvar.exp()).sum(-1)
        (rec + kl).mean().backward()
    assert [f.cause for f in trace.findings] == ["log-of-zero", "exp-overflow", "exp-overflow"]
    assert trace.cure is not None and trace.cure.verdict == "finite"  # the loss itself is too large
    assert trace.cure.code.count("logsigmoid(") == 2
