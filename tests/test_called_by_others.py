"""Programs whose own lines are run by others: a library that computes later, torch.jit, an autograd
graph inside of another, vmap, generate()."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nanlab
from nanlab.findings.rule import Edit, Finding, Fix

BAD = 3  # the step in which a fault is planted


def culprit_of(trace: Any) -> Finding:
    assert trace.culprit is not None
    return trace.culprit


def trained(model: nn.Module, loss_of: Any, steps: int = 5) -> Any:
    """A watched training in which the input of one step is zero."""
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with nanlab.watch(model) as trace:
        for i in range(steps):
            optimizer.zero_grad()
            loss_of(torch.randn(2, 3) * (i != BAD)).backward()
            optimizer.step()
    return trace


# -- a library runs the user's function first, and computes with what it named later
# ------------------------------------------------------------

LIBRARY = """
class Inference:
    def __init__(self, model):
        self.model = model

    def named(self, name, scale, value):
        self.sites[name] = scale, value

    def step(self, *args):
        self.sites = {}
        model = self.model
        model(self, *args)
        return self.total(model)

    def total(self, model):
        return sum(self.density(*site) for site in self.sites.values())

    def density(self, scale, value):
        return (value / scale).square().sum() + scale.log().sum()
"""


@pytest.fixture
def inference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "later_densities.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.delitem(sys.modules, "later_densities", raising=False)
    return __import__("later_densities").Inference


def test_what_a_library_computes_later_is_told_at_the_line_that_named_it(inference: Any) -> None:
    weight = torch.ones(3, requires_grad=True)

    def model(run: Any, x: torch.Tensor) -> None:
        run.named("first", weight.exp(), x)
        run.named("second", weight * x.abs().amax(), x)  # NAMED

    run, optimizer = inference(model), torch.optim.SGD([weight], 0.01)
    with nanlab.watch() as trace:
        for i in range(5):
            optimizer.zero_grad()
            run.step(torch.full((3,), float(i != BAD))).backward()
            optimizer.step()
    found = culprit_of(trace)
    assert found.source.endswith("# NAMED") and found.step == BAD
    assert found.library is not None and found.library[2] == "Inference.density"
    assert "The operation ran later, at" in found.explanation and "run.step(" in found.explanation


def test_what_a_library_computes_at_once_is_told_at_the_line_of_its_call(inference: Any) -> None:
    weight = torch.ones(3, requires_grad=True)
    run = inference(None)
    with nanlab.watch() as trace:
        scale = weight * 0.0
        run.density(scale, torch.ones(3)).backward()  # CALL
    found = culprit_of(trace)
    assert found.source.endswith("# CALL") and "later" not in found.explanation


def test_a_sample_site_of_pyro_is_told_by_its_line() -> None:
    pyro = pytest.importorskip("pyro")
    dist = pytest.importorskip("pyro.distributions")
    infer = pytest.importorskip("pyro.infer")
    pyro.clear_param_store()
    spread, data = [1.0], torch.randn(8)

    def model() -> None:
        mean = pyro.sample("mean", dist.Normal(0.0, 1.0))
        scale = torch.tensor(spread[0])
        with pyro.plate("data", 8):
            pyro.sample("seen", dist.Normal(mean, scale, validate_args=False), obs=data)  # SITE

    def guide() -> None:
        mean = pyro.param("m", torch.tensor(0.1))
        pyro.sample("mean", dist.Normal(mean, 1.0))

    svi = infer.SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), infer.Trace_ELBO())
    with nanlab.watch() as trace:
        for i in range(5):
            spread[0] = float(i != BAD)
            svi.step()
    found = culprit_of(trace)
    assert (found.cause, found.step) == ("log-of-zero", BAD)
    assert found.source.endswith("# SITE") and found.source.startswith('pyro.sample("seen"')
    assert any("scale.clamp_min(" in fix.code for fix in found.fixes)


# -- torch.jit
# ------------------------------------------------------------


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squares = self.layer(x).square()
        return squares.sum(1).sqrt().mean()  # ROOT


def logarithms(x: torch.Tensor) -> torch.Tensor:
    squares = x * x
    return torch.log(squares).mean()  # LOG


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_a_root_in_a_scripted_module_is_told_at_its_own_line_with_a_fix_of_that_line() -> None:
    model = torch.jit.script(Scripted())
    found = culprit_of(trained(model, lambda x: model(x)))
    assert (found.cause, found.op, found.step) == ("sqrt-at-zero", "sqrt", BAD)
    assert found.source.endswith("# ROOT") and "torch.jit compiled this line" in found.explanation
    codes = [fix.code for fix in found.fixes]
    assert codes and all(code.startswith("return ") for code in codes), codes


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_a_logarithm_in_a_scripted_function_is_told_at_its_own_line() -> None:
    scripted, model = torch.jit.script(logarithms), nn.Linear(3, 3, bias=False)
    found = culprit_of(trained(model, lambda x: scripted(model(x))))
    assert (found.cause, found.step) == ("log-of-zero", BAD)
    assert found.source.endswith("# LOG") and found.fixes


# -- a graph inside of the backward pass of another
# ------------------------------------------------------------


class Adjoint(torch.autograd.Function):
    """Euler's steps of an equation; their gradients come from steps back in time."""

    @staticmethod
    def forward(ctx: Any, field: nn.Module, y: torch.Tensor, *weights: torch.Tensor) -> Any:
        ctx.field = field
        for _ in range(4):
            y = y + 0.1 * field(y)
        ctx.save_for_backward(y, *weights)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        y, *weights = ctx.saved_tensors
        sums = [torch.zeros_like(w) for w in weights]
        for _ in range(4):
            with torch.enable_grad():
                at = y.detach().requires_grad_()
                slope = ctx.field(at)
                back, *parts = torch.autograd.grad(slope, (at, *weights), grad)
            y, grad = y - 0.1 * slope.detach(), grad + 0.1 * back
            sums = [s + 0.1 * p for s, p in zip(sums, parts, strict=True)]
        return None, grad, *sums


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, y: torch.Tensor) -> torch.Tensor:
        return self.layer(y) * y.square().sum(1, keepdim=True).sqrt()  # ROOT


def test_a_root_inside_of_an_adjoint_method_is_told_at_its_own_line() -> None:
    field = Field()
    found = culprit_of(trained(field, lambda x: Adjoint.apply(field, x, *field.parameters()).sum()))
    assert (found.cause, found.op, found.step) == ("sqrt-at-zero", "sqrt", BAD)
    assert found.source.endswith("# ROOT")


# -- steps that others count
# ------------------------------------------------------------


def test_a_step_of_vmapped_gradients_has_its_number() -> None:
    def length(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (w * x).square().sum().sqrt()  # ROOT

    weight = torch.ones(3)
    with nanlab.watch() as trace:
        for i in range(5):
            xs = torch.randn(4, 3)
            if i == BAD:
                xs[2] = 0.0
            slopes = torch.func.vmap(torch.func.grad(length), (None, 0))(weight, xs)
            weight = weight - 0.01 * slopes.mean(0)
    found = culprit_of(trace)
    assert (found.cause, found.step) == ("sqrt-at-zero", BAD)
    assert found.source.endswith("# ROOT")


def test_a_token_of_generate_is_a_step() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=50, n_positions=32, n_embd=16, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config).eval()
    start, bad = 3, 4  # tokens given; the new one that goes bad

    class Cooled(transformers.LogitsProcessor):  # type: ignore[misc,name-defined]
        def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            heat = float(ids.shape[1] != start + bad)
            return scores * heat / heat  # COOLED

    with pytest.raises(RuntimeError), nanlab.watch(model) as trace:
        model.generate(
            torch.zeros(1, start, dtype=torch.long),
            max_new_tokens=8,
            do_sample=True,
            logits_processor=[Cooled()],
            pad_token_id=0,
        )
    found = culprit_of(trace)
    assert (found.cause, found.step) == ("div-by-zero", bad)
    assert found.source.endswith("# COOLED")


def test_an_edit_is_tried_beside_a_file_whose_functions_have_long_docstrings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "steps_apart.py").write_text(
        'def step(loss_of, w):\n    """Run one step.\n\n    Nothing else.\n    """\n'
        "    loss_of(w).backward()\n"
    )
    text = (
        "import steps_apart\n\ndef loss_of(w, bits=4):\n    q = w * 2.0\n    return q.sum()\n\n"
        "steps_apart.step(loss_of, w)\n"
    )
    path = tmp_path / "program_apart.py"
    path.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    w = torch.ones(3, requires_grad=True)
    with nanlab.watch() as trace:
        exec(compile(text, str(path), "exec"), {"w": w, "__name__": "program_apart"})

    def edited(new: str) -> Fix:
        return Fix(new, new, edits=(Edit(str(path), 4, 4, new, "    q = w * 2.0"),))

    assert trace.replay(edited("q = w * 3.0")).loss == 9.0
    with pytest.raises(nanlab.NotReplayable, match="bits is not known"):
        trace.replay(edited("q = w * 2.0 ** bits"))
