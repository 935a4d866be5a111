"""Faults inside installed libraries and inside torch: both lines are named."""

from __future__ import annotations

import ast
import importlib
import linecache
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import nanlab
from nanlab.analysis import libraries
from nanlab.analysis.verdict import Judge
from nanlab.findings.rule import Edit, Fix
from nanlab.program.patched import function_at
from nanlab.program.patched import patch as patch_text
from nanlab.rules.left_out import without_samples
from nanlab.rules.remedies import _rank_in_library, judge_for


def culprit(parameter: torch.Tensor, loss: Callable[[], torch.Tensor]) -> nanlab.Finding:
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(2):
            parameter.grad = None
            loss().backward()
    assert trace.culprit is not None
    assert trace.culprit.file == __file__
    return trace.culprit


def library_of(found: nanlab.Finding) -> tuple[str, str]:
    """(file within its package, function)"""
    assert found.library is not None
    file, line, function = found.library
    assert function_at(file, line) == function
    return file.rsplit("site-packages/", 1)[-1], function


def test_line_inside_torch_is_named_beside_that_of_the_user() -> None:
    mean = nn.Parameter(torch.tensor([0.5, 1.0]))
    density = torch.distributions.LogNormal(mean, 1.0, validate_args=False)
    found = culprit(mean, lambda: -density.log_prob(torch.tensor([0.0, 1.0])).sum())
    assert library_of(found) == ("torch/distributions/transforms.py", "ExpTransform._inverse")


def test_what_the_user_computes_is_in_no_library() -> None:
    x = nn.Parameter(torch.tensor([0.0, 1.0]))
    assert culprit(x, lambda: torch.log(x).sum()).library is None
    assert culprit(x, lambda: x.sqrt().sum()).library is None


def test_derivative_of_a_librarys_operation_is_told_inside_the_library() -> None:
    losses = pytest.importorskip(
        "pytorch_metric_learning.losses", reason="wants pytorch-metric-learning"
    )
    head = losses.ArcFaceLoss(3, 4)
    x = nn.Parameter(head.W.detach().T[:3].clone())
    found = culprit(x, lambda: head(x, torch.tensor([0, 1, 2])))
    assert found.cause == "inverse-function-at-edge"
    assert library_of(found)[1].endswith("get_angles")


def _normalised_by_kornia(x: torch.Tensor) -> torch.Tensor:
    return pytest.importorskip("kornia", reason="wants kornia").enhance.normalize_min_max(
        x, eps=0.0
    )


def _normalised_by_graph(x: torch.Tensor) -> torch.Tensor:
    return pytest.importorskip("torch_geometric.nn", reason="wants torch_geometric").PairNorm(
        eps=0.0
    )(x[0, 0])


def _compared(x: torch.Tensor) -> torch.Tensor:
    functional: Any = pytest.importorskip("torchmetrics.functional", reason="wants torchmetrics")
    return functional.cosine_similarity(x[0, 0] * 0, torch.ones(4, 4))


@pytest.mark.examples(every=3)
@pytest.mark.parametrize(
    ("call", "package"),
    [
        (_normalised_by_kornia, "kornia"),
        (_normalised_by_graph, "torch_geometric"),
        (_compared, "torchmetrics"),
    ],
)
def test_line_of_an_installed_package_is_named(
    call: Callable[[torch.Tensor], torch.Tensor], package: str
) -> None:
    x = nn.Parameter(torch.ones(1, 1, 4, 4))
    found = culprit(x, lambda: call(x).sum())
    assert library_of(found)[0].startswith(package)


def _report(x: torch.Tensor, call: Callable[[torch.Tensor], torch.Tensor]) -> nanlab.Finding:
    return culprit(x, lambda: call(x).sum())


def _root_of_black(x: torch.Tensor) -> torch.Tensor:
    enhance = pytest.importorskip("kornia.enhance", reason="wants kornia")
    return enhance.adjust_gamma(x, 0.5)


def test_argument_of_a_librarys_function_is_tried_in_another_form() -> None:
    found = _report(nn.Parameter(torch.zeros(1, 1, 2, 2)), _root_of_black)
    (passed,) = [fix for fix in found.fixes if fix.title == "pass x.clamp_min(1e-6)"]
    assert passed.verdict in ("verified", "finite")
    assert passed.edits[0].text == "return enhance.adjust_gamma(x.clamp_min(1e-6), 0.5)"


def test_guard_that_the_program_sets_to_zero_is_given_a_value() -> None:
    found = _report(nn.Parameter(torch.ones(1, 1, 4, 4)), _normalised_by_kornia)
    assert found.fixes[0].edits and "eps=1e-6" in found.fixes[0].edits[0].text


def test_patch_of_a_librarys_function_mends_it_for_who_has_imported_it() -> None:
    adjust = pytest.importorskip("kornia.enhance.adjust", reason="wants kornia")
    before = adjust.adjust_gamma.__code__
    x = nn.Parameter(torch.zeros(1, 1, 2, 2))
    found = _report(x, _root_of_black)
    patch = next(fix for fix in found.fixes if fix.title.startswith("patch adjust_gamma"))
    assert patch.verdict in ("verified", "finite") and not patch.edits
    assert adjust.adjust_gamma.__code__ is before
    try:
        exec(patch.code, {})
        x.grad = None
        _root_of_black(x).sum().backward()
        assert x.grad is not None and bool(torch.isfinite(x.grad).all())
    finally:
        adjust.adjust_gamma.__code__ = before


def test_report_to_a_librarys_authors_holds_versions_place_and_patch() -> None:
    kornia = pytest.importorskip("kornia", reason="wants kornia")
    found = _report(nn.Parameter(torch.zeros(1, 1, 2, 2)), _root_of_black)
    text = found.bug_report()
    assert f"kornia {kornia.__version__}" in text and "`adjust_gamma`" in text
    assert "pow(" in text and "clamp_min" in text
    x = nn.Parameter(torch.tensor([0.0, 1.0]))
    assert culprit(x, lambda: torch.log(x).sum()).bug_report() == ""


def test_argument_in_a_form_that_the_library_refuses_is_no_cure() -> None:
    """The labels are no floating-point numbers: to clamp them is not to clamp the embeddings."""
    losses = pytest.importorskip(
        "pytorch_metric_learning.losses", reason="wants pytorch-metric-learning"
    )
    head, labels = losses.ArcFaceLoss(3, 4), torch.tensor([0, 1, 2])
    x = nn.Parameter(head.W.detach().T[:3].clone())
    found = culprit(x, lambda: head(x, labels))
    passed = [fix for fix in found.fixes if "pass labels" in fix.title]
    assert all(fix.verdict in ("untried", "fails") for fix in passed)


def _noise_ratio(x: torch.Tensor) -> torch.Tensor:
    image: Any = pytest.importorskip("torchmetrics.functional.image", reason="wants torchmetrics")
    return -image.peak_signal_noise_ratio(x, torch.ones(1, 1, 4, 4), data_range=1.0)


def _similarity(x: torch.Tensor) -> torch.Tensor:
    functional: Any = pytest.importorskip("torchmetrics.functional", reason="wants torchmetrics")
    return -functional.cosine_similarity(x, torch.ones(2, 4))


@pytest.mark.parametrize(
    ("call", "start"), [(_noise_ratio, torch.ones(1, 1, 4, 4)), (_similarity, torch.zeros(2, 4))]
)
def test_argument_is_told_from_others_by_the_library_lines_that_read_its_parameter(
    call: Callable[[torch.Tensor], torch.Tensor], start: torch.Tensor
) -> None:
    found = _report(nn.Parameter(start), call)
    passed = [fix for fix in found.fixes if fix.title == "pass x + 1e-6"]
    assert [fix.verdict in ("verified", "finite") for fix in passed] == [True]


def _verdicts(found: nanlab.Finding, text: str) -> list[str]:
    return [fix.verdict for fix in found.fixes if any(text in edit.text for edit in fix.edits)]


def test_object_that_the_program_makes_is_tried_with_another_setting() -> None:
    graph: Any = pytest.importorskip("torch_geometric.nn", reason="wants torch_geometric")
    norm = graph.PairNorm(eps=0.0)
    x = nn.Parameter(torch.zeros(4, 3))
    found = culprit(x, lambda: norm(x).sum())
    assert "verified" in _verdicts(found, "PairNorm(eps=1e-6)")
    assert norm.eps == 0.0


def test_call_of_an_object_with_weights_is_made_again_with_the_recorded_ones() -> None:
    losses = pytest.importorskip(
        "pytorch_metric_learning.losses", reason="wants pytorch-metric-learning"
    )
    edge_head, rows = losses.ArcFaceLoss(3, 4), torch.tensor([0, 1, 2])
    with torch.no_grad():
        edge_head.W.copy_(torch.eye(4, 3))
    x = nn.Parameter(edge_head.W.detach().T[:3].clone())
    found = culprit(x, lambda: edge_head(x, rows))
    assert set(_verdicts(found, "edge_head(x.clamp(-1 + 1e-6, 1 - 1e-6), rows)")) <= {
        "verified",
        "finite",
    }
    assert _verdicts(found, "edge_head(x.clamp(-1 + 1e-6, 1 - 1e-6), rows)")


def test_arguments_that_are_one_tensor_are_changed_one_by_one() -> None:
    safe: Any = pytest.importorskip("botorch.utils.safe_math", reason="wants botorch")
    x = nn.Parameter(torch.zeros(3))
    found = culprit(x, lambda: safe.logdiffexp(x, x).sum())
    assert _verdicts(found, "logdiffexp(x, x + 1e-6)") == ["verified"]


def test_call_that_looks_at_values_on_its_way_is_made_again() -> None:
    """Its validation reads truth values of tensors that the edit makes anew."""
    distributions: Any = pytest.importorskip("pyro.distributions", reason="wants pyro")
    x = nn.Parameter(torch.tensor([0.0, 1.0]))

    def loss() -> torch.Tensor:
        zero, one = torch.zeros(2), torch.ones(2)
        return -distributions.LogNormal(zero, one, validate_args=False).log_prob(x).sum()

    found = culprit(x, loss)
    assert "verified" in _verdicts(found, "log_prob(x + 1e-6)")


class Doubled(nn.Module):
    """A model of the program's own, whose result a library is given at once."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def test_what_an_own_model_returns_into_a_library_has_its_fixes_tried() -> None:
    from torchmetrics.functional.image import spectral_angle_mapper

    torch.manual_seed(0)
    model, clean = Doubled(), torch.rand(1, 3, 4, 4)
    noisy = clean + 0.1 * torch.rand(1, 3, 4, 4)
    noisy[:, :, 0, 0] = clean[:, :, 0, 0] = 1.0
    found = culprit(model.scale, lambda: spectral_angle_mapper(model(noisy), clean))
    passed = {each.title: each for each in found.fixes if each.title.startswith("pass ")}
    once = passed["pass (out := model(noisy)) + 1e-3 * torch.randn_like(out)"]
    assert once.verdict in ("verified", "finite")  # the model is called once
    assert passed["pass clean.clamp(1e-6, 1 - 1e-6)"].verdict != "untried"
    assert not any("randn_like(model(" in each for each in passed)


def installed(path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> Any:
    """A package of this text."""
    package = path / "site-packages" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(package.parent)
    return importlib.import_module(name)


LAYER = """
import copy
from torch import nn, ones

class Lengths(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(ones(3))

    def __deepcopy__(self, memo):
        made = Lengths()
        made.weight = copy.deepcopy(self.weight, memo)
        return made

    def forward(self, x, near):
        apart = near @ x
        return (apart * self.weight).square().sum(1).sqrt(), near.sum()
"""


def test_a_librarys_layer_with_a_way_of_its_own_to_be_copied_has_its_fixes_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths_of_rows = installed(tmp_path, monkeypatch, "lengths_of_rows", LAYER)
    layer = lengths_of_rows.Lengths()
    x, near = torch.tensor([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]), torch.eye(2)
    found = culprit(layer.weight, lambda: sum(part.sum() for part in layer(x, near)))
    assert found.library is not None
    passed = {each.title: each.verdict for each in found.fixes if each.title.startswith("pass ")}
    assert passed["pass x + 1e-6"] in ("verified", "finite")


SCALED = """
def scaled(x, bounds):
    return (x - bounds[0]) / (bounds[1] - bounds[0])
"""
SETTINGS = """
import torch
from scaled_by_bounds import scaled

weight = torch.nn.Parameter(torch.ones(3))
setting = torch.tensor([[0.1, 0.5, 0.2], [0.4, 0.5, 0.9]])


def step():
    bounds = torch.stack([setting.amin(0), setting.amax(0)])
    made = scaled(setting, bounds)
    (made * weight).sum().square().backward()
"""
POSITIVE = """
import torch

class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.square() / 2 + x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x + 1)

def mean_of_kept(x, kept):
    losses = _Kept.apply(x)
    losses.masked_fill_(~kept, 0.0)
    return losses.sum() / kept.sum().item()
"""
NAMED = """
import torch
from losses_by_class import Losses

mean_of_known = Losses.mean_of_known
weight = torch.nn.Parameter(torch.ones(2, 3))
known = torch.zeros(2, dtype=torch.bool)


def step():
    loss = mean_of_known(weight * 2, known)
    loss.backward()
"""
LOSSES = """
import torch

class Losses:
    @staticmethod
    def mean_of_known(x, known):
        x = x[known]
        return torch.nn.functional.cross_entropy(x, x.argmax(-1))
"""
KEPT = """
import torch
from losses_of_kept import mean_of_kept

weight = torch.nn.Parameter(torch.ones(3))
kept = torch.zeros(3, dtype=torch.bool)


def step():
    loss = mean_of_kept(weight * 2, kept)
    loss.backward()
"""


@pytest.mark.parametrize(
    ("name", "library", "program", "edit", "verdict"),
    [
        (
            "scaled_by_bounds",
            SCALED,
            SETTINGS,
            (11, "made = scaled(setting, bounds + 1e-6)"),
            "fails",
        ),
        (
            "losses_of_kept",
            POSITIVE,
            KEPT,
            (10, "loss = mean_of_kept(weight * 2, kept).nan_to_num(0.0)"),
            "verified",
        ),
        (
            "losses_by_class",
            LOSSES,
            NAMED,
            (11, "loss = mean_of_known(weight * 2, known).nan_to_num(0.0)"),
            "verified",
        ),
    ],
    ids=["of several operators", "with a Function in it", "under a name of the program's own"],
)
def test_a_librarys_function_is_called_anew_as_a_whole(
    name: str,
    library: str,
    program: str,
    edit: tuple[int, str],
    verdict: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(tmp_path, monkeypatch, name, library)
    path = tmp_path / "program.py"
    path.write_text(program)
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(program, str(path), "exec"), names)
    with nanlab.watch(on_fault="record") as trace:
        names["step"]()
    line, text = edit
    judge = judge_for(trace, trace.culprit)
    assert isinstance(judge, Judge)
    found = judge.judge([Edit(str(path), line, line, text, "    " + text)])
    assert found.verdict == verdict, found.why


def test_a_layer_made_without_an_epsilon_is_given_one_rather_than_noise(tmp_path: Path) -> None:
    path = tmp_path / "normed.py"
    path.write_text(
        "import torch\n"
        "from torch import nn\n\n\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, eps):\n"
        "        super().__init__()\n"
        "        self.inp = nn.Linear(4, 8, bias=False)\n"
        "        self.norm = nn.LayerNorm(8, eps=eps)\n\n"
        "    def forward(self, x):\n"
        "        return self.norm(self.inp(x)).tanh().sum(1)\n"
    )
    names: dict[str, Any] = {"__name__": "normed"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    torch.manual_seed(0)
    net, x = names["Net"](0.0), torch.randn(5, 4)
    x[2] = 0
    with nanlab.watch(net, on_fault="record") as trace:
        net(x).mean().backward()
    assert trace.culprit is not None and trace.culprit.cause == "std-of-constant"
    first, *others = trace.culprit.fixes
    assert first.verified and first.code.startswith("self.norm.eps = 1e-6\n")
    assert not any("randn" in fix.code for fix in others)


def _passed(found: nanlab.Finding) -> dict[str, str]:
    """Title -> verdict of what could be given to the library, the best first."""
    assert found.library is not None
    return {each.title: each.verdict for each in found.fixes if each.edits}


RATES = """
import torch

class Rate:
    def __init__(self):
        self.calls = torch.zeros(1)

    def of(self, x, *, by):
        return x / by

class Slopes:
    def __init__(self, x, by):
        self.x, self.slope = x, x / by

def mean_of(x, keep):
    return (x * keep).sum() / keep.sum()

def unclipped(y):
    return y / (1 - y.abs())

def penalty(x):
    extra = torch.tensor([0.0], requires_grad=True)
    return extra + x.square().sum().sqrt()

def log_slope(x):
    return (1 - x.tanh().square()).log()

class Power:
    def __init__(self, by):
        self.by = by

    def of(self, x):
        return x.pow(self.by)

    def slope(self, x):
        return self.by.log() + (x.pow(self.by) / x).log()

def length(x):
    return x.square().sum().sqrt()

class Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x > 0).float()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        far = torch.exp(-x)
        return grad * far / (1 + far).square()

def step(x):
    return Step.apply(x)

def mean_of_known(x, target):
    return torch.nn.functional.cross_entropy(x, target, ignore_index=-1)

def log_share(x):
    return (x.exp() / x.exp().sum()).log()

def log_of_rest(x):
    return torch.where(x > -0.7, (-x.expm1()).log(), (-x.exp()).log1p())

def apart(x, y):
    return (x - y).square().sum().sqrt()
"""


@pytest.fixture
def rates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return installed(tmp_path, monkeypatch, "rates_of_change", RATES)


def test_keyword_of_a_method_of_an_object_with_tensors_of_its_own_is_tried(rates: Any) -> None:
    rate = rates.Rate()
    x, gap = nn.Parameter(torch.ones(3)), torch.tensor([0.5, 0.0, 2.0])
    passed = _passed(culprit(x, lambda: rate.of(x, by=gap).sum()))
    assert passed["pass gap.clamp_min(1e-6)"] == "verified"
    assert next(iter(passed)) == "pass gap.clamp_min(1e-3)"  # whose gradient is the smaller one


def test_fix_that_draws_random_numbers_comes_after_those_that_do_not() -> None:
    drawn = Fix("", "x + 1e-3 * torch.randn_like(x)", "verified", gradient_max=1.0)
    large = Fix("", "x.clamp_min(1e-6)", "verified", gradient_max=1e6)
    small = Fix("", "x.clamp_min(1e-3)", "verified", gradient_max=1e3)
    assert sorted([drawn, large, small], key=_rank_in_library) == [small, large, drawn]


def test_call_that_gives_an_object_with_tensors_in_it_is_tried(rates: Any) -> None:
    x, gap = nn.Parameter(torch.ones(3)), torch.tensor([0.5, 0.0, 2.0])

    def loss() -> torch.Tensor:
        slopes = rates.Slopes(x, gap)
        return (slopes.slope * slopes.x).sum()

    assert _passed(culprit(x, loss))["pass gap.clamp_min(1e-6)"] == "verified"


def test_mask_in_which_nothing_is_true_is_tried_with_everything_true(rates: Any) -> None:
    x, keep = nn.Parameter(torch.rand(3)), torch.zeros(3, dtype=torch.bool)
    passed = _passed(culprit(x, lambda: rates.mean_of(x, keep)))
    assert passed["pass keep | ~keep.any()"] in ("verified", "finite")
    numbers = keep.long()  # labels, perhaps
    assert "pass numbers | ~numbers.any()" not in _passed(
        culprit(x, lambda: rates.mean_of(x, numbers))
    )


def test_argument_at_the_edge_of_its_domain_goes_inwards(rates: Any) -> None:
    y = nn.Parameter(torch.tensor([0.5, -1.0, 1.0]))
    passed = _passed(culprit(y, lambda: rates.unclipped(y).sum()))
    inwards, beyond = "pass y * (1 - 1e-6)", "pass y + 1e-6"
    assert passed[inwards] == "verified"
    assert beyond not in passed or [*passed].index(inwards) < [*passed].index(beyond)


def test_call_that_makes_a_leaf_of_its_own_has_its_fixes_tried(rates: Any) -> None:
    x = nn.Parameter(torch.zeros(3))
    passed = _passed(culprit(x, lambda: rates.penalty(x).sum()))
    assert passed["pass x + 1e-6"] in ("verified", "finite")


def test_argument_that_saturates_tanh_is_kept_where_it_does_not(rates: Any) -> None:
    x = nn.Parameter(torch.tensor([0.5, 3.0, 40.0]))
    passed = _passed(culprit(x, lambda: rates.log_slope(x).sum()))
    assert next(iter(passed)) == "pass x.clamp(-8.0, 8.0)"


def test_object_that_is_gone_when_the_step_is_over_is_made_again(rates: Any) -> None:
    x, gap = nn.Parameter(torch.tensor(-0.5)), torch.tensor([0.5, 0.0, 2.0])

    def loss() -> torch.Tensor:
        power = rates.Power(x.exp() - 1)
        return power.of(gap).sum()

    assert _passed(culprit(x, loss))["pass gap.clamp_min(1e-6)"] in ("verified", "finite")


@pytest.mark.examples(every=0)
def test_name_that_several_calls_of_an_object_are_given_is_kept_off_zero_in_all(rates: Any) -> None:
    x = nn.Parameter(torch.tensor(0.5))

    def loss(gap: torch.Tensor) -> torch.Tensor:
        power = rates.Power(x)
        grown = power.of(gap)
        return (grown - power.slope(gap)).sum()

    passed = _passed(culprit(x, lambda: loss(torch.tensor([0.5, 0.0, 2.0]))))
    kept = passed["pass gap.clamp_min(1e-6) in all lines that read it"]
    assert kept in ("verified", "finite")


def test_calls_of_one_function_are_given_something_else_together(rates: Any) -> None:
    x = nn.Parameter(torch.zeros(3))

    def loss() -> torch.Tensor:
        short = rates.length(x * 2)
        long = rates.length(x * 3)
        return short + long

    found = culprit(x, loss)
    both = [fix for fix in found.fixes if "; the same in line" in fix.title]
    assert both and both[0].verdict in ("verified", "finite") and len(both[0].edits) == 2
    alone = [fix for fix in found.fixes if len(fix.edits) == 1]
    assert not any(fix.verdict in ("verified", "finite") for fix in alone)


def test_what_an_index_picks_out_is_known_whatever_the_index_was(rates: Any) -> None:
    rate, rows = rates.Rate(), slice(1, 4)
    x, gap = nn.Parameter(torch.ones(3)), torch.tensor([1.0, 0.5, 0.0, 2.0])
    passed = _passed(culprit(x, lambda: rate.of(x, by=gap[rows]).sum()))
    assert passed["pass gap[rows].clamp_min(1e-6)"] == "verified"


def test_what_leaves_the_range_of_float32_is_given_in_float64(rates: Any) -> None:
    x = nn.Parameter(torch.tensor([0.5, -150.0, 2.0]))
    passed = _passed(culprit(x, lambda: -rates.log_share(x).sum()))
    assert next(iter(passed.items())) == ("pass x.double()", "verified")


def test_branch_that_is_not_taken_is_finite_in_float64(rates: Any) -> None:
    x = nn.Parameter(torch.tensor([-0.5, -3e-9, -2.0]))
    assert _passed(culprit(x, lambda: -rates.log_of_rest(x).sum()))["pass x.double()"] == "verified"


def _score(mean: torch.Tensor, act: torch.Tensor) -> torch.Tensor:
    base = torch.distributions.Normal(mean, torch.ones(2))
    tanh = torch.distributions.TanhTransform()
    return torch.distributions.TransformedDistribution(base, [tanh]).log_prob(act)


def test_argument_of_the_function_around_is_what_its_caller_passes() -> None:
    mean, actions = nn.Parameter(torch.zeros(2)), torch.tensor([[0.5, -0.2], [1.0, 0.3]])

    def loss() -> torch.Tensor:
        taken = actions.mul(1.0)
        return -_score(mean, taken).mean()

    passed = _passed(culprit(mean, loss))
    assert passed["keep the value 1e-6 inside the support"] == "verified"  # `act` in `_score`
    assert passed["give the library actions.mul(1.0).clamp(-1 + 1e-6, 1 - 1e-6)"] == "verified"
    # what is no tensor is not taken for the one that is read
    assert passed.get("pass base.clamp(-1 + 1e-6, 1 - 1e-6)", "untried") == "untried"


def test_row_that_a_loop_takes_is_changed_in_each_of_its_turns(rates: Any) -> None:
    weight = nn.Parameter(torch.ones(2))
    x, y = torch.tensor([[1.0, 2.0], [0.0, 0.0]]), torch.tensor([[0.5, 1.0], [0.0, 0.0]])
    measure = [rates.apart][0]

    def loss() -> torch.Tensor:
        total = torch.zeros(())
        for one, other in zip(x * weight, y, strict=True):
            total = total + measure(one, other)
        return total

    passed = _passed(culprit(weight, loss))
    assert passed["pass one + 1e-6"] in ("verified", "finite")
    assert passed["pass other + 1e-6"] in ("verified", "finite")


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def test_result_of_the_programs_own_module_is_known_where_it_is_an_argument(rates: Any) -> None:
    model = _Scaled()
    x, y = torch.tensor([0.5, 1.0]), torch.tensor([0.5, 1.0])
    measure = [rates.apart][0]
    passed = _passed(culprit(model.weight, lambda: measure(model(x), y)))
    assert passed["pass model(x) + 1e-6"] in ("verified", "finite")


def test_argument_of_a_call_in_a_loop_is_changed_in_each_round(rates: Any) -> None:
    weight, y = nn.Parameter(torch.ones(2)), torch.tensor([0.5, 1.0])
    rounds = [y, torch.tensor([3.0, 1.0]), y]
    measure = (lambda function: function)(rates.apart)  # which nanlab cannot follow

    def loss(shift: float = 0.0) -> torch.Tensor:
        total = torch.zeros(())
        for x in rounds:
            z = x * weight
            total = total + (rates.apart(z + shift, y) if shift else measure(z, y))
        return total

    with nanlab.watch(on_fault="record") as trace:
        for _ in range(2):
            weight.grad = None
            loss().backward()
    assert trace.culprit is not None
    (fix,) = (fix for fix in trace.culprit.fixes if fix.title == "pass z + 1e-6")
    assert trace.replay(fix).loss == loss(1e-6).item()


def test_line_of_a_librarys_own_backward_is_named(rates: Any) -> None:
    x = nn.Parameter(torch.tensor([0.5, -100.0, 2.0]))
    found = culprit(x, lambda: rates.step(x).sum())
    assert library_of(found)[1] == "Step.backward"
    assert found.library is not None and "exp(-x)" in linecache.getline(*found.library[:2])
    assert _passed(found)["pass x.double()"] == "verified"  # its backward runs anew too


def test_a_librarys_line_comes_before_that_of_torch_which_it_calls(rates: Any) -> None:
    x, target = nn.Parameter(torch.rand(2, 3)), torch.tensor([-1, -1])
    found = culprit(x, lambda: rates.mean_of_known(x, target))
    assert library_of(found)[1] == "mean_of_known"
    assert _passed(found)["let mean_of_known give 0 where it averages over nothing"] == "verified"


SHARP = """
import torch

class Sharp(torch.nn.Module):
    def __init__(self, temperature=0.5):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        return weigh(x / self.temperature)

def weigh(x):
    return torch.exp(x) / torch.exp(x).sum()
"""


def test_setting_far_below_its_default_goes_back_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the function of the fault does not read it."""
    installed(tmp_path, monkeypatch, "sharp_weights", SHARP)
    from sharp_weights import Sharp  # type: ignore[import-not-found]

    sharp = Sharp(temperature=0.01)
    x = nn.Parameter(torch.tensor([0.5, 2.0]))
    found = culprit(x, lambda: sharp(x).square().sum())
    assert _verdicts(found, "Sharp(temperature=0.5)") == ["finite"]


SPARSE = """
import torch

def sparse(scores):
    far = scores - scores.amax(1, keepdim=True)
    return torch.relu(1 + far) * far.square()
"""


def test_mask_is_tried_with_a_number_that_a_library_can_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sparse = installed(tmp_path, monkeypatch, "sparse_weights", SPARSE).sparse
    x, kept = nn.Parameter(torch.rand(2, 3)), torch.tensor([[True, True, False], [False] * 3])

    def loss() -> torch.Tensor:
        scores = x.masked_fill(~kept, float("-inf"))
        return (sparse(scores) * kept).sum()

    assert "verified" in _verdicts(culprit(x, loss), "-1e4")


PARTS = """
import torch

class Metric:
    def dist(self, a, b):
        return (a - b).square().sum().sqrt()

class Ball:
    def __init__(self):
        self.metric = Metric()

class Softplus(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.raw = torch.nn.Parameter(torch.tensor(100.0))

    def forward(self, x):
        return x * torch.log(1 + torch.exp(self.raw))

def share(a, b):
    both = a + b
    for _ in range(8):
        both = (both + a + b) / 2 - both / 2 + both / 2
    return (a / both).sum()

def largest(x, keep):
    return {"largest": x.masked_fill(~keep, float("-inf")).max(1).values}

def mean_of_kept(x, keep):
    return x[keep].mean(), x[keep].numel()

class Scaler:
    def __init__(self, lowest=1e-10):
        self.lowest = lowest

    def __call__(self, x):
        return x / x.abs().mean(1, keepdim=True).clamp(min=self.lowest)

class Tail:
    def __init__(self, at):
        self.at = at

    def log_prob(self, x):
        return torch.log(torch.sigmoid(20 * (x - self.at)))

class Old(torch.optim.Optimizer):
    def __init__(self, params, lr, eps=1e-8):
        super().__init__(params, {"lr": lr, "eps": eps})

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                square = p.grad.data.square()
                p.data.addcdiv_(p.grad.data, square.sqrt().add_(group["eps"]), value=-group["lr"])

class Root(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.addcdiv_(p.grad, (2 - p.grad.square()).sqrt(), value=-group["lr"])
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return installed(tmp_path, monkeypatch, "parts_of_objects", PARTS)


def test_method_of_an_objects_part_is_a_librarys_whatever_its_name(parts: Any) -> None:
    """A tensor has a method ``dist``, too."""
    ball, x = parts.Ball(), nn.Parameter(torch.zeros(3))
    passed = _passed(culprit(x, lambda: ball.metric.dist(x, torch.zeros(3))))
    assert passed["pass x + 1e-6"] in ("verified", "finite")


def test_module_whose_parameter_is_out_of_range_is_called_in_float64(parts: Any) -> None:
    layer, x = parts.Softplus(), torch.ones(3)
    passed = _passed(culprit(layer.raw, lambda: layer(x).sum()))
    assert passed["call layer with its parameters in float64"] == "verified"


def test_number_that_is_tiny_by_default_is_a_guard_whatever_its_name(parts: Any) -> None:
    scaler, x = parts.Scaler(), nn.Parameter(torch.tensor([[0.0, 0.0], [1.0, 3.0]]).half())

    def loss() -> torch.Tensor:
        scaled = scaler(x)
        return scaled.float().sum()  # type: ignore[no-any-return]

    passed = _passed(culprit(x, loss))
    assert passed["give Scaler its `lowest`: 1e-3"] in ("verified", "finite")


def test_makers_are_found_behind_all_that_a_librarys_call_computes(parts: Any) -> None:
    x = nn.Parameter(torch.tensor([1.0, -1.0]))

    def loss() -> torch.Tensor:
        a = torch.relu(x)
        share: torch.Tensor = parts.share(a, a)
        return share

    found = culprit(x, loss)
    assert "verified" in _verdicts(found, "a = torch.relu(x).clamp_min(1e-3)")


def test_maximum_of_what_a_library_masks_altogether_is_the_origin(parts: Any) -> None:
    x, keep = nn.Parameter(torch.rand(2, 3)), torch.tensor([[True, True, False], [False] * 3])

    def loss() -> torch.Tensor:
        found = parts.largest(x, keep)["largest"]
        return (found / found.norm()).sum()

    found = culprit(x, loss)
    assert found.cause == "empty-reduction" and library_of(found)[1] == "largest"
    assert set(_verdicts(found, '["largest"].nan_to_num(')) & {"verified", "finite"}


def test_mask_that_keeps_nothing_for_a_mean_is_tried_with_everything_kept(parts: Any) -> None:
    x, keep = nn.Parameter(torch.rand(3)), torch.zeros(3, dtype=torch.bool)

    def loss() -> torch.Tensor:
        mean, _ = parts.mean_of_kept(x, keep)
        return mean * 2.0  # type: ignore[no-any-return]

    assert _passed(culprit(x, loss))["pass keep | ~keep.any()"] in ("verified", "finite")


def test_data_that_must_be_another_is_no_healthy_value(parts: Any) -> None:
    """The object is made by a function of the program, and gone when the step is over."""
    x, data = nn.Parameter(torch.tensor(0.1)), torch.tensor([0.5, 2.0, -99.0, 3.0])

    def law() -> Any:
        return parts.Tail(x)

    def loss() -> torch.Tensor:
        rows = slice(1, 4)
        tail = law()
        return -tail.log_prob(data[rows]).mean()  # type: ignore[no-any-return]

    kept = [fix for fix in culprit(x, loss).fixes if "data[rows].clamp_min(1e-6)" in fix.code]
    assert [fix.verdict for fix in kept] == ["finite"]
    assert (kept[0].distortion or 0.0) < 0.01 and "limit" in kept[0].why


ERRORS = """
import importlib.util, sys, tempfile, types
import torch


def log_error(pred, target):
    return (torch.log1p(pred) - torch.log1p(target)).square()


def weight(score):
    return (1 - score).pow(1.5)


class Normal:
    def __init__(self, concentration):
        self.concentration = concentration
    def log_prob(self, x):
        return x * self.concentration - torch.sinh(self.concentration).log()


class Head(torch.nn.Module):
    def forward(self, x):
        return torch.acos(x)


class Output:
    def __init__(self, loss):
        self.loss = loss


def model(x, labels, ignore_index=-100):
    reduction = "sum" if labels is None else "mean"
    return Output(torch.nn.functional.cross_entropy(
        x, labels, ignore_index=ignore_index, reduction=reduction))


def share(x, pseudo=0.01):
    return x.square() / (x.abs() + pseudo)


class Study:
    def __init__(self, scale):
        self.scale = scale
    def log_prob(self, x):
        return x.square() - torch.log1p(self.scale.pow(-2)) - 2 * self.scale.log()


def focal(pred, target, gamma):
    return (1 - pred).pow(gamma) * (pred - target).square()


def reach(x, near):
    return near.sign(), (x * near.square()).sum(1) / near.sum(1)


def propagate(x):
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write("def run(x):\\n    return 1 / x\\n")
    spec = importlib.util.spec_from_file_location("errors_of_a_package.written", file.name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.run(x)
"""


@pytest.fixture
def errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return installed(tmp_path, monkeypatch, "errors_of_a_package", ERRORS)


def test_what_is_passed_is_kept_where_the_librarys_own_operation_is_defined(errors: Any) -> None:
    pred, target = nn.Parameter(torch.tensor([0.5, -0.2, -3.0])), torch.tensor([1.0, 0.0, 2.0])

    def loss() -> torch.Tensor:
        found = errors.log_error(pred, target)
        return found.mean()  # type: ignore[no-any-return]

    assert "pass pred.clamp_min(-1 + 1e-6)" in _passed(culprit(pred, loss))


def test_what_is_taken_from_one_is_kept_below_it(errors: Any) -> None:
    score = nn.Parameter(torch.tensor([0.5, 1.2]))

    def loss() -> torch.Tensor:
        found = errors.weight(score)
        return found.mean()  # type: ignore[no-any-return]

    assert _passed(culprit(score, loss))["pass score.clamp_max(1 - 1e-6)"] == "verified"


def test_what_an_object_of_a_library_was_made_of_is_written_otherwise(errors: Any) -> None:
    raw, x = nn.Parameter(torch.tensor([50.0, 1.0])), torch.tensor([0.9, 0.8])

    def loss() -> torch.Tensor:
        k = 2 * raw
        law = errors.Normal(k)
        return -law.log_prob(x).mean()  # type: ignore[no-any-return]

    assert "verified" in _verdicts(culprit(raw, loss), "(2 * raw).double()")


def test_number_that_the_program_makes_zero_goes_back_to_its_default(errors: Any) -> None:
    x = nn.Parameter(torch.tensor([0.0, 1.0, 2.0]))
    passed = _passed(culprit(x, lambda: errors.share(x, pseudo=0.0).mean()))
    assert {"give share its `pseudo`: 0.01", "give share its `pseudo`: 1e-3"} <= passed.keys()


def test_what_an_object_of_the_step_is_made_of_is_tried_in_another_form(errors: Any) -> None:
    x, scales = nn.Parameter(torch.tensor([0.5, 1.0])), torch.tensor([0.0, 0.8])

    def loss() -> torch.Tensor:
        study = errors.Study(scales)
        return -study.log_prob(x).mean()  # type: ignore[no-any-return]

    assert _passed(culprit(x, loss))["pass scales.clamp_min(1e-2)"] == "verified"


@pytest.mark.parametrize("handed", [True, False])
def test_object_that_other_lines_read_too_is_no_other_for_one_of_them(
    errors: Any, handed: bool
) -> None:
    x, scales = nn.Parameter(torch.tensor([0.5, 1.0])), torch.tensor([0.0, 0.8])

    def loss() -> torch.Tensor:
        study = errors.Study(scales)
        others = [study] if handed else []
        found = -study.log_prob(x).mean()
        for other in others:
            found = found + other.scale.sum()
        return found  # type: ignore[no-any-return]

    assert "verified" not in _verdicts(culprit(x, loss), "errors.Study(scales.clamp_min(1e-2))")


def test_number_is_found_behind_its_name(errors: Any) -> None:
    pred, target = nn.Parameter(torch.tensor([0.5, 1.0])), torch.tensor([0.0, 1.0])
    gamma = 0.5 if len(target) == 2 else 2.0

    def loss() -> torch.Tensor:
        found = errors.focal(pred, target, gamma)
        return found.mean()  # type: ignore[no-any-return]

    assert _passed(culprit(pred, loss))["pass pred.clamp_max(1 - 1e-6)"] == "verified"


def test_result_that_nobody_reads_is_no_healthy_value(errors: Any) -> None:
    x = nn.Parameter(torch.tensor([[0.5, 1.0, 2.0], [1.0, 3.0, 0.5]]))
    near = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 0.0]])

    def unread() -> torch.Tensor:
        _, reached = errors.reach(x, near)
        return reached.mean()  # type: ignore[no-any-return]

    def read() -> torch.Tensor:
        found, reached = errors.reach(x, near)
        return reached.mean() + (found * x).mean()  # type: ignore[no-any-return]

    assert _passed(culprit(x, unread))["pass near.clamp_min(1e-6)"] == "verified"
    assert _passed(culprit(x, read))["pass near.clamp_min(1e-6)"] == "finite"


def test_one_of_several_results_that_is_of_no_data_is_made_zero(errors: Any) -> None:
    w, x, near = nn.Parameter(torch.ones(2)), torch.ones(2, 2), torch.tensor([[0.0, 0], [1, 3]])

    def loss() -> torch.Tensor:
        given = near.clone()
        found, reached = errors.reach(x, given)
        return (w * reached).square().sum() + found.sum()  # type: ignore[no-any-return]

    found = culprit(w, loss)
    (fix,) = (fix for fix in found.fixes if fix.title.startswith("let reach give 0"))
    assert fix.edits[0].text.endswith("\nreached = reached.nan_to_num(0.0, torch.inf)")
    assert fix.verified  # near² / near tends to 0


def test_object_held_in_a_dictionary_is_called_anew(errors: Any) -> None:
    x = nn.Parameter(torch.tensor([0.5, 1.0]))
    model = nn.ModuleDict({"head": errors.Head()})

    def loss() -> torch.Tensor:
        angle = model["head"](x)
        return angle.sum()  # type: ignore[no-any-return]

    passed = _passed(culprit(x, loss))
    assert passed["pass x.clamp(-1 + 1e-6, 1 - 1e-6)"] in ("verified", "finite")


def test_loss_that_an_object_holds_counts_nothing_as_zero(errors: Any) -> None:
    x, labels = nn.Parameter(torch.randn(3, 4)), torch.full((3,), -100)

    def loss() -> torch.Tensor:
        return errors.model(x, labels=labels).loss  # type: ignore[no-any-return]

    found = culprit(x, loss)
    assert "verified" in _verdicts(found, ".loss.nan_to_num(0.0, torch.inf)")
    patched = [fix for fix in found.fixes if fix.patch is not None]
    assert patched and patched[0].verified and 'reduction="sum"' in patched[0].code


def test_code_that_a_package_writes_elsewhere_is_the_packages(errors: Any) -> None:
    x = nn.Parameter(torch.tensor([0.0, 2.0]))
    found = culprit(x, lambda: errors.propagate(x).sum())
    assert found.library is not None and found.library[2] == "run"


def test_program_that_a_package_runs_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by ``python -m pytest``, ``torchrun`` or a kernel of Jupyter."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__file__", "/lib/site-packages/runner/__main__.py", raising=False)
    names: dict[str, Any] = {"__name__": "__main__", "torch": torch}
    x = nn.Parameter(torch.tensor([0.0, 2.0]))
    exec(compile("def run(x):\n    return (1 / x).sum()\n", "train.py", "exec"), names)
    with nanlab.watch(on_fault="record") as trace:
        names["run"](x).backward()
    assert trace.culprit is not None and trace.culprit.library is None
    assert (trace.culprit.file, trace.culprit.line) == ("train.py", 2)


def _stepped(optimizer: torch.optim.Optimizer, loss: Callable[[], torch.Tensor]) -> nanlab.Finding:
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(2):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
    assert trace.culprit is not None
    return trace.culprit


def test_librarys_optimizer_is_made_with_an_eps_that_its_dtype_holds(parts: Any) -> None:
    """Its step is written without ``torch.no_grad``."""
    w = nn.Parameter(torch.ones(3, dtype=torch.float16))
    optimizer = parts.Old([w], lr=0.1)
    found = _stepped(optimizer, lambda: (w * torch.tensor([0.0, 1.0, 2.0]).half()).sum())
    assert found.cause == "optimizer-eps-underflow"
    first = found.fixes[0]
    assert first.code == "optimizer = parts.Old([w], lr=0.1, eps=1e-4)"
    assert first.verified and first.edits


def test_update_rule_that_is_defined_for_small_gradients_alone_gets_clipped_ones(
    parts: Any,
) -> None:
    w = nn.Parameter(torch.ones(3))
    found = _stepped(parts.Root([w], lr=0.1), lambda: (w * torch.tensor([0.0, 1.0, 2.0])).sum())
    clipped = [fix for fix in found.fixes if "clip_grad_norm_" in fix.code]
    assert [(fix.verdict, len(fix.edits)) for fix in clipped] == [("finite", 1)]
    assert clipped[0].code.endswith("\noptimizer.step()")


LENGTHS = """
def lengths(x, scale):
    total = x.square(
    ).sum(1)
    return total.sqrt() * scale


class Shares:
    def of(self, x):
        weights = x.relu()
        return weights / weights.sum(1, keepdim=True)


def shares(x):
    return Shares().of(x)
"""


def _of_lengths(package: Any, x: torch.Tensor) -> torch.Tensor:
    lengths = package.lengths(x, 2.0)
    return torch.square(lengths).sum()


def _of_shares(package: Any, x: torch.Tensor) -> torch.Tensor:
    shares = package.shares(x)
    return torch.square(shares).sum()


@pytest.mark.parametrize(
    ("name", "call", "start"),
    [
        ("lengths_patched", _of_lengths, [[0.0, 0.0], [3.0, 4.0]]),
        ("shares_patched", _of_shares, [[-1.0, -2.0], [3.0, 4.0]]),
    ],
)
def test_patch_of_a_package_is_tried_on_the_whole_step(
    name: str,
    call: Callable[[Any, torch.Tensor], torch.Tensor],
    start: list[list[float]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    package = installed(tmp_path, monkeypatch, name, LENGTHS)
    function = package.lengths if "lengths" in name else package.Shares.of
    before, x = function.__code__, nn.Parameter(torch.tensor(start))
    with nanlab.watch(on_fault="record") as trace:
        call(package, x).backward()
    assert trace.culprit is not None and trace.culprit.library is not None
    patch = next(fix for fix in trace.culprit.fixes if fix.patch is not None)
    assert patch.verified, patch.why
    assert patch.diff().startswith(f"--- {trace.culprit.library[0]}") and not patch.edits
    replay = trace.replay(patch)
    assert function.__code__ is before
    try:
        exec(patch.code, {})
        assert function.__code__ is not before
        x.grad = None
        call(package, x).backward()
        assert x.grad is not None and torch.equal(x.grad, next(iter(replay.gradients.values())))
    finally:
        function.__code__ = before


def test_line_that_stands_twice_in_a_package_is_not_patched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "def twice(x):\n    x = x.sqrt()\n    x = x.sqrt()\n    return x\n"
    package = installed(tmp_path, monkeypatch, "twice_patched", text)
    file = str(package.__file__)
    assert patch_text(Edit(file, 2, 2, "x = x.clamp_min(1e-6).sqrt()")) == ""
    assert "clamp" in patch_text(Edit(file, 4, 4, "return x.clamp_min(1e-6)"))


HOLDERS = """
class Holder:
    def __init__(self, x):
        self.x = x


def scaled(holder):
    spread = holder.x.abs().amax()
    holder.x = holder.x * (
        1 / spread
    )
    return holder
"""


def test_patch_is_tried_by_the_values_of_its_line_where_the_call_cannot_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = installed(tmp_path, monkeypatch, "holders_patched", HOLDERS)
    weight = nn.Parameter(torch.ones(3))
    made = [torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3)]
    with nanlab.watch(on_fault="record") as trace:
        parts = [package.scaled(package.Holder(each)).x for each in made]
        (torch.stack(parts) * weight).sum().backward()
    assert trace.culprit is not None and trace.culprit.library is not None
    patch = next(fix for fix in trace.culprit.fixes if fix.patch is not None)
    assert patch.verified, patch.why


class _OwnRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        root = x.clamp_min(0).sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        (root,) = ctx.saved_tensors
        return grad / (2 * root)


ROOTS = """
import torch

class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        root = x.clamp_min(0).sqrt()
        ctx.save_for_backward(root)
        return root

    @staticmethod
    def backward(ctx, grad):
        (root,) = ctx.saved_tensors
        return grad / (2 * root)
"""


@pytest.mark.parametrize("is_own", [True, False], ids=["own", "installed"])
def test_a_functions_backward_is_a_librarys_only_where_it_is_installed(
    is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _OwnRoot if is_own else installed(tmp_path, monkeypatch, "roots_of_rows", ROOTS).Root
    weight = nn.Parameter(torch.tensor([0.0, 1.0, 4.0]))
    found = culprit(weight, lambda: root.apply(weight).sum())
    assert found.cause == "custom-backward"
    assert (found.library is None) == is_own
    assert not (is_own and any(fix.patch is not None for fix in found.fixes))


LINKED = """
from torch import nn

class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(3, 1)
        self.held = {}

    def forward(self, x):
        return (self.lin(x) - self.lin(x)).sqrt()

class Linked(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Half(), Half()
        self.first.held["other"], self.second.held["other"] = self.second, self.first

    def forward(self, x):
        return self.first(x).sum() + self.second(x).sum()
"""


def test_modules_that_hold_each_other_are_looked_through_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = installed(tmp_path, monkeypatch, "modules_linked", LINKED).Linked()
    x = torch.ones(2, 3)
    found = culprit(next(model.parameters()), lambda: model(x))
    assert found.library is not None and len(found.fixes)


REGISTERED = """
KNOWN = []

def register(function):
    KNOWN.append(function)
    return function

@register
def root(x):
    return x.square().sum(1).sqrt()
"""


def test_trial_of_a_patch_leaves_the_package_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = installed(tmp_path, monkeypatch, "roots_registered", REGISTERED)
    x = nn.Parameter(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    before = {**vars(package)}
    found = culprit(x, lambda: package.root(x).sum())
    patches = [fix for fix in found.fixes if fix.patch is not None]
    assert patches and all("torch." in fix.patch.text for fix in patches)
    assert {**vars(package)} == before and [package.root] == package.KNOWN


def test_patch_of_a_file_that_was_loaded_is_run_by_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = installed(tmp_path, monkeypatch, "roots_loaded", REGISTERED)
    x = nn.Parameter(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    with nanlab.watch(on_fault="record") as trace:
        package.root(x).sum().backward()
    assert trace.culprit is not None
    fix = next(fix for fix in trace.culprit.fixes if fix.patch is not None)
    loaded = nanlab.load(trace.save(tmp_path / "roots.nanlab"))
    ran = tmp_path / "ran"
    text = f"return [open({str(ran)!r}, 'w') for _ in [0]] and x"
    assert fix.patch is not None
    hostile = replace(fix, patch=replace(fix.patch, text=text))
    with pytest.raises(nanlab.NotReplayable, match="trusted=True"):
        loaded.replay(hostile)
    assert not ran.exists()


DISTANCES = """
def distance(x, y):
    apart = x.view(-1) - y.view(-1)
    return (apart * apart).sum().sqrt()
"""


def test_arguments_of_equal_values_are_told_apart_by_who_reads_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a prediction is its target, one in the place of the other gives what was recorded."""
    package = installed(tmp_path, monkeypatch, "distances_of_equals", DISTANCES)
    weight, target = nn.Parameter(torch.ones(4)), torch.ones(4)
    with nanlab.watch(on_fault="record") as trace:
        package.distance(weight, target).backward()
    assert trace.culprit is not None
    fix = next(fix for fix in trace.culprit.fixes if "weight + 1e-6" in fix.code)
    weight.grad = None
    package.distance(weight + 1e-6, target).backward()
    (gradient,) = trace.replay(fix).gradients.values()
    assert weight.grad is not None and bool(weight.grad.all())
    assert torch.equal(gradient, weight.grad)


GIVEN = """
import torch

def spread(points, matrix):
    return (points @ matrix).pow(2).sum(-1).sqrt()

def logged(y):
    return y.log()

class Config:
    def __init__(self):
        self.transducer_zero_infinity = False

class Speech(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, frames, labels):
        scores = self.layer(frames).log_softmax(-1)
        count = torch.full((labels.shape[1],), frames.shape[0])
        return torch.nn.functional.ctc_loss(
            scores, labels.T, count, torch.full_like(count, labels.shape[0]),
            zero_infinity=self.config.transducer_zero_infinity,
        )

def corners(images, most=1.0):
    slopes = images.diff(dim=-1)[..., 1:, :], images.diff(dim=-2)[..., 1:]
    return most * (slopes[0] ** 2 + slopes[1] ** 2).sum((-1, -2), keepdim=True).sqrt()

def divergence(p, q, log_prob=False):
    if log_prob:
        return (p.exp() * (p - q)).sum(-1).mean()
    return (p * (p / q).log()).sum(-1).mean()

def angle_of(unit):
    cosine, rest = unit[:, :1], unit[:, 1:]
    return rest * torch.acos(cosine.clamp(-1, 1)) / rest.norm(dim=1, keepdim=True).clamp_min(1e-8)

def standardised(score, targets):
    return score - targets.var().log()

def shares_of(counts):
    return 1 / torch.as_tensor(counts, dtype=torch.float32)

def log_probability(*given):
    density, shares = given
    return torch.xlogy(density.mean, shares) + density.scale.log()
"""


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return installed(tmp_path, monkeypatch, "given_of_a_user", GIVEN)


@pytest.mark.examples(every=0)
def test_call_with_a_sum_inside_is_held_against_its_truth_in_a_step_too_large_for_it(
    given: Any,
) -> None:
    torch.manual_seed(0)
    wide, points = nn.Parameter(torch.full((300, 300), 0.01)), torch.rand(40, 3)

    def loss() -> torch.Tensor:
        hidden = wide * 2
        matrix = hidden[:3, :3] * 0
        lengths: torch.Tensor = given.spread(points, matrix)
        return lengths.mean() + hidden.mean()

    found = culprit(wide, loss)
    assert found.cause == "sqrt-at-zero"
    assert _passed(found)["pass matrix + 1e-6"] == "verified"


def test_edit_of_what_was_made_before_the_first_step_runs_on_to_the_step_of_harm(
    given: Any,
) -> None:
    weight, yields = nn.Parameter(torch.ones(1)), torch.tensor([1.0, 2.0, 3.0, 4.0, 0.0, 5.0])
    optimizer = torch.optim.SGD([weight], lr=1e-3)
    with nanlab.watch(on_fault="record") as trace:
        targets = given.logged(yields)
        for i in range(12):
            loss = (weight - targets[i % 3 * 2 : i % 3 * 2 + 2]).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    found = trace.culprit
    assert found is not None and "given.logged(yields)" in found.source and found.step == 2
    assert _passed(found)["pass yields.clamp_min(1e-6)"] == "verified"


def test_data_beside_an_object_is_known_by_its_name_in_the_function(given: Any) -> None:
    scale = nn.Parameter(torch.ones(3))
    shares = torch.tensor([0.5, 0.0, 1.0])

    model = _Model()
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(2):
            density = model(scale)
            loss = -given.log_probability(density, shares).mean()
            loss.backward()
    assert trace.culprit is not None and trace.culprit.cause == "log-of-zero"
    assert _passed(trace.culprit)["pass shares.clamp(1e-6, 1 - 1e-6)"] == "verified"


class _Model(nn.Module):
    """A model of the program that gives no tensor."""

    def forward(self, scale: torch.Tensor) -> SimpleNamespace:
        return SimpleNamespace(scale=scale * 3, mean=scale * 2)


def test_samples_that_are_all_zeros_are_left_out_of_a_call_and_get_zero(given: Any) -> None:
    torch.manual_seed(0)
    gain, images = nn.Parameter(torch.ones(1)), torch.rand(4, 6, 6)
    images[2] = 0

    def loss() -> torch.Tensor:
        shown = images * gain
        found: torch.Tensor = given.corners(shown) * 2.0
        return found.mean()

    found = culprit(gain, loss)
    (fix,) = [f for f in found.fixes if f.title.startswith("give corners the samples of shown")]
    assert fix.verified
    assert fix.code.splitlines() == [
        "_kept = shown.flatten(1).any(1)",
        "_made = given.corners(shown[_kept])",
        "found: torch.Tensor = _made.new_zeros(len(_kept), *_made.shape[1:])"
        ".index_put((_kept,), _made) * 2.0",
    ]


@pytest.mark.parametrize("named", [False, True])
def test_function_that_takes_logarithms_is_given_those_of_a_softmax(
    given: Any, named: bool
) -> None:
    logits = nn.Parameter(torch.tensor([[0.0, 300.0], [1.0, 2.0]]))
    teacher = torch.tensor([[1.0, 2.0], [0.0, 1.0]])

    def loss() -> torch.Tensor:
        value: torch.Tensor = given.divergence(teacher.softmax(1), logits.softmax(1))
        return value

    def of_names() -> torch.Tensor:
        p = teacher.softmax(1)
        q = torch.softmax(logits, dim=1)
        value: torch.Tensor = given.divergence(p, q)
        return value

    found = culprit(logits, of_names if named else loss)
    assert _passed(found)["give divergence logarithms: log_prob=True"] == "verified"
    first = next(fix for fix in found.fixes if fix.edits)
    assert "teacher.log_softmax(1)" in first.code and first.code.endswith("log_prob=True)")


def test_point_at_which_float32_has_no_neighbour_is_left_in_float64(given: Any) -> None:
    torch.manual_seed(0)
    head, features = nn.Linear(8, 3), torch.randn(4, 8).tanh()
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    turned = torch.tensor([[0.1, 0.2, 0.3]])

    def loss() -> torch.Tensor:
        turn = head(features)
        whole = torch.cat([torch.ones(4, 1), turn], 1)
        unit = whole / torch.linalg.vector_norm(whole, dim=1, keepdim=True)
        apart: torch.Tensor = given.angle_of(unit) - turned
        return apart.pow(2).mean()

    found = culprit(head.weight, loss)
    assert found.cause == "inverse-function-at-edge"
    code = "whole = torch.cat([torch.ones(4, 1), turn], 1).double() + 1e-6"
    assert any(fix.code == code and fix.verified for fix in found.fixes)


def test_variance_of_equal_targets_is_given_noise(given: Any) -> None:
    weight, targets = nn.Parameter(torch.ones(1)), torch.zeros(8)

    def loss() -> torch.Tensor:
        value: torch.Tensor = given.standardised(weight * 2, targets).mean()
        return value

    found = culprit(weight, loss)
    assert found.cause == "log-of-zero"
    assert _passed(found)["pass targets + 1e-3 * torch.randn_like(targets)"] == "verified"


def test_list_is_given_no_method_of_a_tensor(given: Any) -> None:
    scale = nn.Parameter(torch.ones(3))
    counts = torch.tensor([3, 0, 2]).tolist()

    def loss() -> torch.Tensor:
        shares: torch.Tensor = given.shares_of(counts)
        return (scale * shares).sum()

    found = culprit(scale, loss)
    passed = [fix for fix in found.fixes if fix.title.startswith("pass ")]
    assert [fix.title for fix in passed] == ["pass [max(each, 1e-3) for each in counts]"]
    assert passed[0].verdict in ("verified", "finite")


@pytest.mark.examples(every=0)
def test_setting_of_a_configuration_that_a_library_reads_is_tried(given: Any) -> None:
    torch.manual_seed(0)
    older = given.Speech(given.Config())  # which another cell may have left
    older.config.transducer_zero_infinity = True
    model = given.Speech(given.Config())
    frames, labels = torch.randn(3, 2, 3), torch.tensor([[1, 1], [2, 1], [3, 1]])

    def loss() -> torch.Tensor:
        value: torch.Tensor = model(frames, labels)
        return value

    found = culprit(model.layer.weight, loss)
    assert found.cause == "infeasible-likelihood"
    title = "let model.config.transducer_zero_infinity be True: an infeasible target costs nothing"
    assert _passed(found)[title] == "verified"
    assert model.config.transducer_zero_infinity is False


OPTIONS = """
from typing import Optional
import torch

class Lengths:
    def __init__(self, norm: bool = True, max_value=None):
        self.norm = norm
        self.max = max_value

    def __call__(self, points):
        found = (points[1:] - points[:-1]).square().sum(-1, keepdim=True)
        if self.norm and found.numel() > 0:
            most = float(found.max()) if self.max is None else self.max
            found = found / most
        return found

class Held:
    def __init__(self, points):
        self.points = points

def lengths_of(held, normalise: bool = True):
    found = held.points.square().sum(-1, keepdim=True)
    if not normalise:
        return found
    return found / found.sum()

def mean_where(x, y, kept):
    return (x - y).abs().masked_select(kept).mean()

def spread_of_pairs(z):
    ratio = (z[:, None] - z).var(2) / z.var(1)[:, None]
    one, other = torch.combinations(torch.arange(len(z))).T
    return ratio[one, other].mean()


def mean_over(p, q):
    count = p.shape[0]
    return _reduced((p / p.sum(-1, keepdim=True) - q).square().sum(-1), count)

def _reduced(each, count):
    return each.sum() / count

def distance(x, y, squared: bool = True):
    return _root((x - y).square().sum(), squared)

def _root(total, squared: bool = True):
    return total if squared else total.sqrt()

def scaled(x, p=0.0):
    return x / (x.abs().sum() + p)

def likeness(x, y, way=None, span=None, k=0.1):
    if way not in (None, "plus", "shift"):
        raise ValueError(way)
    if span is None:
        span = (y.max() - y.min()).item()
    little = (k * span) ** 2
    product = 2 * x * y
    if way == "shift":
        product = product + 1
    return ((product + little) / (x.square() + y.square() + little)).mean()

class Spread(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.lin = torch.nn.Linear(size, size)

    def forward(self, x, weight, largest: Optional[torch.Tensor] = None):
        return self.lin(x) * self._norm(weight, largest)

    def _norm(self, weight, largest: Optional[torch.Tensor] = None):
        if largest is None:
            largest = weight.max()
        return weight / largest
"""


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return installed(tmp_path, monkeypatch, "options_of_calls", OPTIONS)


def test_number_that_a_library_computes_where_it_is_given_none_is_given(options: Any) -> None:
    """The object that the other side of a condition makes is another one."""
    weight, points = nn.Parameter(torch.ones(1)), torch.ones(3, 2)
    given = [False][0]
    lengths = options.Lengths(max_value=4.0) if given else options.Lengths(max_value=None)
    found = culprit(weight, lambda: (lengths(points) * weight + weight).sum())
    assert _verdicts(found, "else options.Lengths(max_value=1.0)") == ["verified"]
    assert not _verdicts(found, "options.Lengths(max_value=1.0) if")


def test_option_by_which_a_librarys_line_is_not_reached_is_tried(options: Any) -> None:
    weight, points = nn.Parameter(torch.ones(1)), torch.ones(3, 2)
    normalise = [True][0]
    lengths = options.Lengths(norm=normalise)
    found = culprit(weight, lambda: (lengths(points) * weight + weight).sum())
    assert "verified" in _verdicts(found, "options.Lengths(norm=False)")
    assert lengths.norm is True


def test_option_is_tried_by_which_a_number_behind_the_line_is_computed(options: Any) -> None:
    x, y = nn.Parameter(torch.full((3,), 1e-30)), torch.zeros(3)
    ways = {"way": None}
    found = culprit(x, lambda: options.likeness(x, y, **ways) + 0 * x.sum())
    passed = _passed(found)
    assert passed["likeness with span=1.0"] in ("verified", "finite")
    assert not any("=None" in title for title in passed)
    assert any("likeness(x, y, **{**ways, 'span': 1.0})" in fix.code for fix in found.fixes)
    assert not any("ways.clamp_min" in title or "ways + " in title for title in passed)


def test_name_that_may_be_none_or_a_tensor_is_told_from_others(options: Any) -> None:
    layer, x, weight = options.Spread(2), torch.ones(3, 2), torch.zeros(3, 1)

    def loss(known: bool = False) -> torch.Tensor:
        largest = None
        if known:
            largest = weight.max().clamp_min(1.0)
        found: torch.Tensor = layer(x, weight, largest=largest)
        return found.sum()

    found = culprit(layer.lin.weight, loss)
    passed = _passed(found)
    assert passed["pass weight.clamp_min(1e-6)"] in ("verified", "finite")
    assert passed["layer with largest=torch.tensor(1.0)"] in ("verified", "finite")


def test_option_of_a_librarys_function_is_tried_and_no_method_that_its_argument_lacks(
    options: Any,
) -> None:
    weight, points = nn.Parameter(torch.ones(1)), torch.zeros(3, 2)

    def loss() -> torch.Tensor:
        held = options.Held(points)
        value: torch.Tensor = options.lengths_of(held) * weight + weight
        return value.sum()

    found = culprit(weight, loss)
    passed = _passed(found)
    assert passed["lengths_of with normalise=False"] in ("verified", "finite")
    assert not [title for title in passed if title.startswith("pass held")]
    assert _verdicts(found, "options.Held(points.clamp_min(1e-6))") in (["verified"], ["finite"])


def test_guard_is_set_on_no_object_that_has_none(options: Any) -> None:
    model, x = nn.Sequential(nn.Linear(2, 2, bias=False)), torch.zeros(3, 2)
    found = culprit(model[0].weight, lambda: options.scaled(model(x)).sum())
    assert not _verdicts(found, "model.p =")


@pytest.mark.parametrize("in_place", [False, True])
def test_term_that_averages_over_nothing_is_left_out_of_a_sum(options: Any, in_place: bool) -> None:
    weight, y = nn.Parameter(torch.ones(4)), torch.tensor([0.3, 0.1, 0.7, 0.2])
    lengths = [3, 0, 4]

    def plain(skipped: bool = False) -> torch.Tensor:
        total = 0.0
        for n in lengths:
            if skipped and not n:
                continue
            kept = torch.arange(4) < n
            total = total + options.mean_where(weight * 1.1, y, kept)
        assert isinstance(total, torch.Tensor)
        return total

    def written(skipped: bool = False) -> torch.Tensor:
        total = torch.zeros(())
        for n in lengths:
            if skipped and not n:
                continue
            kept = torch.arange(4) < n
            total += options.mean_where(weight * 1.1, y, kept)
        return total

    loss = written if in_place else plain
    with nanlab.watch(on_fault="record") as trace:
        for _ in range(2):
            weight.grad = None
            loss().backward()
    assert trace.culprit is not None
    (fix,) = (fix for fix in trace.culprit.fixes if fix.title.startswith("leave the term out"))
    assert fix.code.splitlines()[0] == "if kept.any():"
    assert fix.verified
    weight.grad = None
    right = loss(True)
    right.backward()
    replay = trace.replay(fix)
    assert replay.loss == right.item()
    (gradient,) = replay.gradients.values()
    assert weight.grad is not None and torch.equal(gradient, weight.grad)


def test_term_is_not_left_out_where_none_would_be_left(options: Any) -> None:
    weight, y = nn.Parameter(torch.ones(4)), torch.tensor([0.3, 0.1, 0.7, 0.2])

    def loss() -> torch.Tensor:
        total = 0.0
        for n in (0, 0):
            kept = torch.arange(4) < n
            total = total + options.mean_where(weight * 1.1, y, kept)
        assert isinstance(total, torch.Tensor)
        return total

    found = culprit(weight, loss)
    left = [fix for fix in found.fixes if fix.title.startswith("leave the term out")]
    assert [fix.verdict for fix in left] in ([], ["untried"])


def test_mask_is_no_argument_that_holds_numbers(options: Any) -> None:
    weight, y = nn.Parameter(torch.ones(4)), torch.tensor([0.3, 0.1, 0.7, 0.2])
    kept = torch.zeros(4, dtype=torch.bool)
    found = culprit(weight, lambda: options.mean_where(weight * 1.1, y, kept) + weight.sum())
    passed = _passed(found)
    assert not [title for title in passed if "~y" in title or "~(weight" in title]


@pytest.mark.examples(every=0)
def test_rows_are_left_out_where_a_library_divides_by_their_count(options: Any) -> None:
    torch.manual_seed(0)
    model, x, counts = nn.Linear(3, 4), torch.randn(6, 3), torch.rand(6, 4) + 0.1
    counts[2] = 0.0

    def loss(rows: Any = slice(None)) -> torch.Tensor:
        found: torch.Tensor = options.mean_over(counts[rows], model(x[rows]).softmax(-1))
        return found

    def step() -> None:
        shown, given = x.clone(), counts.clone()
        found = options.mean_over(given, model(shown).softmax(-1))
        found.backward()

    with nanlab.watch(on_fault="record") as trace:
        for _ in range(2):
            model.weight.grad = None
            step()
    assert trace.culprit is not None
    (fix,) = (fix for fix in trace.culprit.fixes if fix.title.startswith("leave out sample 2"))
    assert trace.replay(fix).loss == loss(counts.any(1)).item()


def test_rows_are_left_out_of_a_library_that_pairs_them_by_running_its_own_code(
    options: Any,
) -> None:
    torch.manual_seed(0)
    model, x = nn.Linear(3, 4, bias=False), torch.randn(6, 3)
    x[2] = 0.0

    def step() -> None:
        shown = x.clone()
        z = model(shown)
        loss = options.spread_of_pairs(z)
        loss.backward()

    with nanlab.watch(on_fault="record") as trace:
        for _ in range(2):
            model.weight.grad = None
            step()
    assert trace.culprit is not None
    judge = judge_for(trace, trace.culprit)
    assert isinstance(judge, Judge)
    (fix,) = without_samples(trace, trace.culprit, judge.where, judge.values)
    model.weight.grad = None
    right = options.spread_of_pairs(model(x[x.any(1)]))
    right.backward()
    replay = trace.replay(fix)
    assert fix.verdict == "finite" and replay.loss == pytest.approx(right.item(), rel=1e-6)
    torch.testing.assert_close(next(iter(replay.gradients.values())), model.weight.grad)


def test_option_that_a_librarys_function_hands_on_is_tried_whatever_flag_it_was(
    options: Any,
) -> None:
    weight, x, given = nn.Parameter(torch.ones(3)), torch.zeros(3), [False][0]
    found = culprit(weight, lambda: options.distance(x * weight, x, squared=given) + weight.sum())
    assert library_of(found)[1] == "_root"
    assert "verified" in _verdicts(found, "squared=True")


@pytest.mark.parametrize(
    ("name", "expected"),
    [("model", True), ("data", True), ("made", True), ("x", False), ("shares", False)],
)
def test_a_module_or_a_record_of_tensors_is_no_tensor_to_clamp(name: str, expected: bool) -> None:
    tree = ast.parse(
        "def step(model, data, x):\n"
        "    made = Encoder(3)\n"
        "    out = model(data.pos, x.shape)\n"
        "    shares = nn.Softmax(dim=1)(out)\n"
        "    return library.loss(model, data, made, x, shares)\n"
    )
    call = next(n for n in ast.walk(tree) if isinstance(n, ast.Call) and len(n.args) == 5)
    argument = next(a for a in call.args if isinstance(a, ast.Name) and a.id == name)
    assert libraries._is_object(tree, argument) is expected
