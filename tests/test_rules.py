"""Every rule shows its example and stays silent on its fix."""

from __future__ import annotations

import re
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import nanlab
from nanlab.analysis.provenance import harmful_origins
from nanlab.findings.fault import finding_of
from nanlab.findings.rule import ranked
from nanlab.rules import BUILTIN, Fault, Match, Rule, diagnose, rule
from nanlab.trace import Trace

SETUP = "import numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def run(program: str, path: Path) -> Trace:
    """Watch a program that lies in a file of its own, so that its lines are found."""
    path.write_text(SETUP + textwrap.dedent(program) + "\n")
    torch.manual_seed(0)
    code = compile(path.read_text(), str(path), "exec")
    with nanlab.watch(on_fault="record") as trace:
        exec(code, {"__name__": path.stem})
    return trace


def marked(path: Path) -> list[int]:
    return [
        i for i, line in enumerate(path.read_text().splitlines(), 1) if re.search(r"# here\b", line)
    ]


def by_name(rules: Any) -> list[Any]:
    return [pytest.param(r, id=r.name) for r in rules if r.example]


@pytest.mark.parametrize("subject", by_name(BUILTIN))
def test_example_of_a_rule_shows_its_cause_on_the_marked_line(
    subject: Rule, tmp_path: Path
) -> None:
    path = tmp_path / "example.py"
    trace = run(subject.example, path)
    found = [f for f in trace.findings if f.cause == subject.name]
    assert found, [f"{f.cause}: {f}" for f in trace.findings] + trace.notes
    assert found[0].line in marked(path)
    assert found[0].severity == subject.severity
    assert found[0].explanation.startswith(subject.explanation)
    assert not trace.notes


@pytest.mark.examples(every=4)
@pytest.mark.parametrize("subject", by_name(BUILTIN))
def test_fix_of_a_rule_is_silent(subject: Rule, tmp_path: Path) -> None:
    trace = run(subject.fix, tmp_path / "fix.py")
    assert [f"{f.cause}: {f}" for f in trace.findings if f.severity == "error"] == []
    assert not trace.notes


@pytest.mark.parametrize("subject", [pytest.param(r, id=r.name) for r in BUILTIN])
def test_rule_has_an_explanation_an_example_and_a_fix(subject: Rule) -> None:
    assert subject.explanation
    assert "# here" in subject.example
    assert subject.fix


LOG_OF_ZERO = """
    p = torch.tensor([0.0, 0.5], requires_grad=True)
    p.log().sum().backward()  # here
"""


def test_failing_rule_is_a_note_and_the_others_run(tmp_path: Path) -> None:
    @rule("error", family="training", more_specific_than=("training", "scaler-misuse"))
    def broken(fault: Any) -> str:
        """Fails."""
        return {}["x"]

    trace = run(LOG_OF_ZERO, tmp_path / "program.py")
    findings = diagnose(trace, rules=[*BUILTIN, broken])
    assert [f.cause for f in findings] == ["log-of-zero"]
    assert trace.notes == ["rule 'broken' failed (KeyError: 'x'); the other rules ran"]


def test_rule_of_the_user_names_the_cause_before_the_builtin_ones(tmp_path: Path) -> None:
    @rule("error")
    def empty_class(fault: Any) -> str | None:
        """A class without examples."""
        return f"{fault.count} empty class" if fault.forward == "log" else None

    trace = run(LOG_OF_ZERO, tmp_path / "program.py")
    found = diagnose(trace, rules=[*BUILTIN, empty_class])
    assert [(f.cause, f.title, f.op) for f in found] == [("empty-class", "1 empty class", "log")]


def test_rule_over_the_trace_reports_rows(tmp_path: Path) -> None:
    @rule("note")
    def many_zeros(trace: Any) -> Any:
        """Rows that hold zeros."""
        for row in trace.ops[trace.ops.op == "log"].itertuples():
            yield row.position, f"{row.op} of {row.numel} values"

    trace = run(LOG_OF_ZERO, tmp_path / "program.py")
    found = [f for f in diagnose(trace, rules=[many_zeros]) if f.cause == "many-zeros"]
    assert [(f.title, f.op, f.line, f.severity, f.harmful) for f in found] == [
        ("log of 2 values", "log", 7, "note", False)
    ]


def test_parameter_of_a_rule_is_called_fault_or_trace() -> None:
    with pytest.raises(nanlab.NanlabError, match="'fault' or 'trace', got wrong\\(x\\)"):

        @rule("error")
        def wrong(x: Any) -> None: ...


def test_evidence_lists_the_first_twenty_elements_and_counts_all(tmp_path: Path) -> None:
    trace = run(
        "p = torch.zeros(4, 25, requires_grad=True)\n(p + 0).log().sum().backward()",
        tmp_path / "program.py",
    )
    evidence = trace.culprit.evidence
    assert len(evidence) == 20 and evidence.attrs["total"] == 100
    assert evidence["index"].tolist() == [(0, i) for i in range(20)]
    assert evidence["x"].tolist() == [0.0] * 20
    assert evidence["value"].tolist() == [-float("inf")] * 20


def test_base_that_several_exponents_meet_counts_once(tmp_path: Path) -> None:
    program = """
        base = torch.tensor([-0.5, 0.5, 1.0], requires_grad=True)
        (base[None] ** torch.tensor([[0.5], [0.25], [1.5], [2.5]])).sum().backward()
    """
    assert run(program, tmp_path / "program.py").culprit.title.startswith(
        "1 negative base (lowest -0.5) among 3 "
    )


def test_samples_are_indices_of_the_batch(tmp_path: Path) -> None:
    program = """
        x = torch.ones(6, 3)
        x[[1, 4]] = 0.0
        w = torch.ones(3, requires_grad=True)
        (x * w).sum(1).log().sum().backward()
    """
    trace = run(program, tmp_path / "program.py")
    assert trace.culprit.samples == [1, 4]
    assert isinstance(trace.culprit, nanlab.rules.Finding)
    assert Match("x").position is None


def test_evidence_of_a_root_at_zero_leaves_out_what_only_overflowed(tmp_path: Path) -> None:
    program = """
        x = torch.tensor([1e-6, 0.0, 4.0, 0.0], dtype=torch.float16, requires_grad=True)
        (x.sqrt().float() * 6e4).sum().backward()
    """
    found = run(program, tmp_path / "program.py").culprit
    assert found.cause == "sqrt-at-zero" and "2 zeros among 4" in found.title
    assert found.evidence["index"].tolist() == [1, 3]
    assert found.evidence["root"].tolist() == [0.0, 0.0]
    assert "Its derivative there is inf; incoming 60000 × inf = inf." in found.explanation


def test_where_of_a_library_function_or_elsewhere_is_no_trap(tmp_path: Path) -> None:
    program = """
        z = torch.tensor([0.0, 2.0, -3.0], requires_grad=True)
        y = z.sign() * z.abs().sqrt()  # here
        u = nanlab.safe.div(y, z)
        v = torch.where(u > 0, u, 2 * u)
        v.sum().backward()
    """
    trace = run("import nanlab\n" + textwrap.dedent(program), tmp_path / "program.py")
    assert trace.culprit.cause == "sqrt-at-zero"
    assert trace.culprit.line in marked(tmp_path / "program.py")


@pytest.mark.parametrize("after", ["lin(h)", "torch.relu(lin(h))", "h @ h.T"])
def test_repair_behind_a_matrix_product_is_seen(after: str, tmp_path: Path) -> None:
    program = f"""
        lin = nn.Linear(2, 2)
        w = torch.ones(2, requires_grad=True)
        x = w * torch.tensor([[0.0, 0.0], [1.0, 2.0]])
        h = x / x.sum(1, keepdim=True)  # here
        torch.nan_to_num({after}).sum().backward()
    """
    trace = run(program, tmp_path / "program.py")
    assert trace.culprit.cause == "repair-forward-only"
    assert trace.culprit.line in marked(tmp_path / "program.py")


SCALER = """
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=0.125)
    for i in range({steps}):
        opt.zero_grad()
        half = net(torch.ones(3, 4)).half()
        scaler.scale((half.float() * 1e8).sum()).backward()
        scaler.step(opt)
        scaler.update()
"""


def test_single_skipped_step_below_scale_one_is_a_warning_that_names_the_scale_that_fits(
    tmp_path: Path,
) -> None:
    trace = run(SCALER.format(steps=1), tmp_path / "program.py")
    assert trace.culprit is None
    assert [(f.cause, f.severity, f.title.split(": ")[0]) for f in trace.findings] == [
        ("loss-scale-overflow", "warning", "the loss scale fell to 0.0625")
    ]
    # 1e8 * 2**-11 < 65504 < 1e8 * 2**-10
    assert "they fit at 2^-11 " in trace.findings[0].explanation


def test_dynamic_scaler_that_collapses_is_not_said_to_try_no_smaller_scale(tmp_path: Path) -> None:
    found = run(SCALER.format(steps=4), tmp_path / "program.py").culprit
    assert found.title.startswith(
        "the loss scale fell from 0.125 to 0.0078125, and the gradients overflow in 4"
    )
    assert any("float32" in fix.title for fix in found.fixes)
    smaller = [fix for fix in found.fixes if fix.title.startswith("a loss scale of")]
    assert all(fix.verified for fix in smaller)  # said where the step was run again with it


@pytest.mark.parametrize(("size", "found"), [(1e-4, ["dtype-underflow"]), (1.0, [])])
def test_whole_tensor_that_its_float32_twin_shows_flushed_is_an_error(
    size: float, found: list[str]
) -> None:
    layer = nn.Linear(8, 8, bias=False)
    nn.init.constant_(layer.weight, 3e-5)
    with (
        nanlab.watch(layer, shadow="float32", on_fault="record") as trace,
        torch.autocast("cpu", dtype=torch.float16),
    ):
        layer(torch.full((4, 8), size))
    errors = [f for f in trace.findings if f.severity == "error"]
    assert [f.cause for f in errors] == found
    assert [(f.op, f.symptom) for f in errors] == [("mm", "silent-underflow")] * len(found)
    assert [f.line > 0 and "layer(" in f.source for f in errors] == [True] * len(found)


def test_derivative_of_a_reciprocal_that_overflows_is_a_division_by_a_tiny_number(
    tmp_path: Path,
) -> None:
    program = """
        v = torch.tensor([1e-30, 1.0], requires_grad=True)
        (1 / v).sum().backward()
    """
    found = run(program, tmp_path / "program.py").culprit
    assert (found.cause, found.phase, found.op) == ("div-by-tiny", "backward", "reciprocal")
    assert found.evidence["index"].tolist() == [0]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("kind", ["Adam", "Adagrad", "Adadelta"])
def test_an_update_that_divided_by_zero_shows_what_it_divided(kind: str, foreach: bool) -> None:
    model = nn.Linear(4, 2)
    optimizer = getattr(torch.optim, kind)(model.parameters(), 1e-2, eps=0.0, foreach=foreach)
    with nanlab.watch(model, on_fault="record") as trace:
        model(
            torch.tensor([[1.0, 0.0, 2.0, 0.0]])
        ).sum().backward()  # two inputs are zero, and so their weights' gradients
        optimizer.step()
    culprit = trace.culprit
    assert culprit is not None and culprit.cause == "optimizer-arithmetic"
    assert culprit.title.endswith("divided by zero at 4 elements of 8")
    assert culprit.evidence["index"].tolist() == [(0, 1), (0, 3), (1, 1), (1, 3)]
    assert (culprit.evidence["divisor"] == 0).all() and culprit.evidence["value"].isna().all()


class ByTrust(torch.optim.Optimizer):
    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad * (p.norm() / p.grad.norm()), alpha=-group["lr"])


@pytest.mark.parametrize(
    "zeroed",
    [torch.zero_, lambda w: w.fill_(0.0), lambda w: w.mul_(0.0), lambda w: w.copy_(w - w)],
    ids=["zero_", "fill_", "mul_", "copy_"],
)
def test_an_update_that_stays_zero_is_told_however_its_parameter_became_zero(zeroed: Any) -> None:
    with nanlab.watch() as trace:
        layer = nn.Linear(4, 4)
        with torch.no_grad():
            zeroed(layer.bias)
        optimizer = ByTrust(layer.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            layer(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
    assert not trace.notes
    assert trace.culprit is not None and trace.culprit.cause == "optimizer-arithmetic"


@pytest.mark.parametrize(("small", "cause"), [(1e-9, "eps-underflow"), (0.0, "log-of-zero")])
@pytest.mark.parametrize(
    "guarded",
    [
        lambda x, small: x.half().clamp_min(small),
        lambda x, small: x.half() + small,
        lambda x, small: x.clamp(small * 1e-37),  # below the smallest float32
        lambda x, small: 1 - (1 - x).clamp(small, 1 - small),
    ],
    ids=["floor", "sum", "float32", "one minus"],
)
def test_whether_an_epsilon_vanished_is_told_by_its_number_however_it_is_written(
    guarded: Any, small: float, cause: str
) -> None:
    x = torch.tensor([0.0, 0.5, 1.0], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        guarded(x, small).log().sum().backward()
    assert trace.culprit is not None and trace.culprit.cause == cause


def _root_of_squares(*parts: torch.Tensor) -> torch.Tensor:
    return torch.sqrt(sum(part * part for part in parts))


@pytest.mark.parametrize(
    ("divided", "cause"),
    [
        (lambda v, d: v / v.norm(), "norm-at-zero"),
        (lambda v, d: v / (v.square().sum() + 0.0).sqrt().clamp_min(0.0), "norm-at-zero"),
        (lambda v, d: v[0] / _root_of_squares(v[0], v[1]), "norm-at-zero"),
        (lambda v, d: v[0] / torch.hypot(v[0], v[1]), "norm-at-zero"),
        (lambda v, d: (v @ d) / (v.norm() * d.norm()), "norm-at-zero"),
        (lambda v, d: torch.complex(v, v) / torch.complex(v, v).abs(), "norm-at-zero"),
        (lambda v, d: v * (1 / v.norm()), "norm-at-zero"),
        (lambda v, d: v * v.square().sum().rsqrt(), "norm-at-zero"),
        (lambda v, d: d / (1 - (v + 0.5).square().sum()).sqrt(), "div-by-zero"),
        (lambda v, d: (d + 1) / (v * d).sum().abs(), "div-by-zero"),
        (lambda v, d: (d * 2).mean() / v.norm(), "div-by-zero"),
        (lambda v, d: (v + 3) / (v.sum() - 1 + 1), "div-by-zero"),
    ],
    ids=(
        "norm sum hypot-by-hand hypot cosine magnitude reciprocal rsqrt one-minus product other"
        " plain".split()
    ),
)
def test_a_norm_is_named_only_where_a_vector_is_divided_by_its_own_length(
    divided: Any, cause: str
) -> None:
    v = torch.zeros(4, requires_grad=True)
    d = torch.full((4,), 2.0, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        divided(v * 1.0, d * 1.0).abs().sum().backward()
    culprit = trace.culprit
    assert culprit is not None and (culprit.cause, culprit.phase) == (cause, "forward")


@pytest.mark.parametrize(
    ("zeros", "said"), [(1, "1 element of 4 was divided"), (2, "2 elements of 4 were divided")]
)
def test_the_verb_of_a_title_agrees_with_the_number_of_elements(zeros: int, said: str) -> None:
    rows = torch.ones(4, 1)
    rows[:zeros] = 0.0
    rows.requires_grad_()
    with nanlab.watch(on_fault="record") as trace:
        (rows / rows.norm(dim=1, keepdim=True)).sum().backward()
    assert trace.culprit is not None and trace.culprit.title.startswith(said)


@pytest.mark.parametrize(
    ("power", "phase"), [(0.5, "backward"), (-0.5, "forward"), (0.5 + 0.25j, "backward")]
)
def test_a_fractional_power_of_a_complex_zero_is_told_with_its_base(
    power: complex, phase: str
) -> None:
    z = torch.tensor([0j, 1 + 1j], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        (z**power).abs().square().sum().backward()
    culprit = trace.culprit
    assert culprit is not None and (culprit.cause, culprit.phase) == ("pow-fraction-at-zero", phase)
    assert culprit.explanation and culprit.evidence["base"].map(complex).tolist() == [0j]


def test_the_largest_argument_of_a_complex_exponential_is_a_number() -> None:
    z = torch.tensor([100 + 5j, 1 + 0j], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        torch.exp(z).abs().sum().backward()
    assert trace.culprit is not None and "(largest 100+5j)" in trace.culprit.title


def test_a_power_in_place_that_is_masked_in_place_is_repaired_in_its_forward_pass_only() -> None:
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        root = (x * 1.0).pow_(-0.5)
        root.masked_fill_(root == float("inf"), 0.0)
        root.sum().backward()
    assert trace.culprit is not None and trace.culprit.cause == "repair-forward-only"
    assert "masked_fill" in trace.culprit.title


def test_the_derivative_of_a_hidden_product_is_its_other_factor() -> None:
    x = torch.tensor([0.0, 2.0], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        torch.where(x > 0, (2 - 1 / x) * (x + 3), x).sum().backward()  # at 0: -inf × 3
    culprit = trace.culprit
    assert culprit is not None and culprit.cause == "where-grad-trap"
    assert "derivative there is -inf; incoming 0 × -inf = NaN" in culprit.explanation


class _Moment:
    """An update by hand that divides by a layer's second moment."""

    def __init__(self, parameters: Any, eps: float) -> None:
        self.parameters, self.eps = list(parameters), eps

    @torch.no_grad()
    def step(self) -> None:
        for p in self.parameters:
            p.sub_(0.1 * p.grad / (p.grad.square().sum().sqrt() + self.eps))


def test_an_epsilon_that_vanished_in_an_update_by_hand_is_the_optimizers() -> None:
    layer = nn.Linear(3, 2).half()
    optimizer = _Moment(layer.parameters(), eps=1e-9)  # below half of the smallest float16, 2**-25
    with nanlab.watch(layer, on_fault="record") as trace:
        (layer(torch.zeros(2, 3).half()).float() * 0.0).sum().backward()
        optimizer.step()
    culprit = trace.culprit
    assert culprit is not None and (culprit.phase, culprit.cause) == (
        "optimizer",
        "optimizer-eps-underflow",
    )


@pytest.mark.parametrize(("momentum", "phase"), [(True, "init"), (False, "data")])
def test_memory_never_written_is_init_in_an_optimizers_state_and_data_in_an_input(
    momentum: bool, phase: str
) -> None:
    layer = nn.Linear(3, 2)
    buffer = None
    torch.use_deterministic_algorithms(True)  # memory never written is filled with NaN
    try:
        with nanlab.watch(layer, on_fault="record") as trace:
            for i in range(2):
                late = torch.empty(2, 3) if i else torch.ones(2, 3)
                layer.zero_grad()
                layer(torch.ones(2, 3) if momentum else late).sum().backward()
                with torch.no_grad():
                    if momentum and buffer is None and i:
                        buffer = torch.empty_like(layer.weight)
                    if buffer is not None:
                        layer.weight -= buffer.mul_(0.9).add_(layer.weight.grad)
                    else:
                        layer.weight -= 0.1 * layer.weight.grad
    finally:
        torch.use_deterministic_algorithms(False)
    culprit = trace.culprit
    assert culprit is not None and (culprit.cause, culprit.phase) == ("uninitialised-memory", phase)


def test_of_two_rules_that_fit_one_example_one_says_that_it_is_the_more_specific(
    tmp_path: Path,
) -> None:
    """Where neither does, the order in which they stand in the source would decide."""
    unclear = set()
    judges = [one for one in ranked(BUILTIN) if one.over == "fault"]
    for subject in judges:
        trace = run(subject.example, tmp_path / f"{subject.name}.py")
        for origin in harmful_origins(trace.recording):
            fault = Fault(trace, origin, finding_of(trace, origin))
            fitting = [one for one in judges if one.matches(fault) != []]
            for one, other in pairwise(fitting):
                if one.family == other.family and one.name != other.name:
                    own = (
                        one.family in one.more_specific_than
                        and other.family not in other.more_specific_than
                    )
                    if other.name not in one.more_specific_than and not own:
                        unclear.add((one.name, other.name))
    assert unclear == set()


def _written(model: nn.Linear, optimizer: torch.optim.Optimizer, text: str) -> nanlab.Trace:
    """Three steps; after the last backward the statement is executed."""
    names = {"w": model.weight, "torch": torch, "nan": float("nan"), "inf": float("inf")}
    with nanlab.watch(model) as trace:
        for i in range(3):
            optimizer.zero_grad()
            model(torch.randn(5, 4)).mean().backward()
            if i == 2:
                exec(text, names)  # HERE
            optimizer.step()
    return trace


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("w.grad[0, 0] = nan", "1 NaN"),
        ("w.grad[0].fill_(nan)", "4 NaNs"),
        ("w.grad *= nan", "16 NaNs"),
        ("w.grad = torch.full((4, 4), nan)", "16 NaNs"),
        ("w.grad.data[1] = torch.tensor(nan)", "4 NaNs"),
        ("w.grad[0, 0] = inf", "1 infinity"),
    ],
)
def test_what_the_program_writes_into_a_gradient_is_no_parameters_fault(
    kind: Any, text: str, count: str
) -> None:
    model = nn.Linear(4, 4)
    found = _written(model, kind(model.parameters(), 0.1), text).culprit
    assert found is not None and (found.cause, found.phase) == ("poisoned-gradient", "optimizer")
    assert found.title == f"the program wrote {count} into the gradient of weight, of 16 values"
    assert found.step == 2 and found.op != "step"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("with torch.no_grad(): w[0, 0] = nan", "1 NaN"),
        ("w.data.fill_(nan)", "16 NaNs"),
        ("with torch.no_grad(): w.copy_(torch.full((4, 4), nan))", "16 NaNs"),
    ],
)
def test_what_the_program_writes_into_a_parameter_is_told_where_it_was_written(
    text: str, count: str
) -> None:
    model = nn.Linear(4, 4)
    found = _written(model, torch.optim.Adam(model.parameters(), 0.1), text).culprit
    assert found is not None and found.cause == "poisoned-parameter"
    assert found.title == f"the program wrote {count} into the parameter weight"


@pytest.mark.parametrize("used", [torch.mul, torch.add, torch.pow])
def test_a_number_that_is_nan_has_a_cause(used: Any) -> None:
    weight = nn.Parameter(torch.ones(3))
    with nanlab.watch() as trace:
        used(weight, float("nan")).sum().backward()
    assert trace.culprit is not None and trace.culprit.cause == "nan-in-input"
    assert trace.culprit.op == used.__name__


@pytest.mark.parametrize(
    ("used", "op", "what"),
    [
        (lambda x, w: torch.addmm(w[0], x, w), "addmm", "inf - inf"),
        (lambda x, w: torch.addmm(w[0], x, w * 0), "addmm", "0 × inf"),
        (lambda x, w: torch.baddbmm(w[None], x[None], w[None]), "baddbmm", "inf - inf"),
        (lambda x, w: torch.softmax(x * w, 1), "_softmax", "_softmax of infinities"),
        (lambda x, w: F.avg_pool1d((x * w)[None], 2), "avg_pool2d", "of infinities"),
        (lambda x, w: F.layer_norm(x * w, (4,)), "native_layer_norm", "of infinities"),
    ],
    ids=["addmm", "addmm by zeros", "baddbmm", "softmax", "pool", "layer norm"],
)
def test_an_infinity_that_becomes_nan_in_an_operation_has_a_cause(
    used: Any, op: str, what: str
) -> None:
    weight = nn.Parameter(torch.ones(4, 4))
    signs = torch.tensor([1.0, -1.0]).repeat(4, 2)
    with nanlab.watch() as trace:
        used(signs * float("inf"), weight).sum().backward()
    found = trace.culprit
    assert found is not None and found.op == op and what in found.title
    assert found.cause == ("zero-times-inf" if "×" in what else "inf-minus-inf")
    assert len(found.evidence)


@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.fill_(float("nan")),
        lambda w: w.copy_(torch.full((2, 3), float("nan"))),
        lambda w: setattr(w, "data", torch.full((2, 3), float("nan"))),
    ],
)
def test_a_parameter_that_was_filled_during_the_watch_was_not_there_before(
    write: Any,
) -> None:
    net = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with nanlab.watch(on_fault="record") as trace, torch.enable_grad():
        with torch.no_grad():
            write(net.weight)
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    culprit = trace.culprit
    assert culprit is not None and culprit.cause == "poisoned-parameter"
    assert "parameter Linear.weight holds 6 NaNs" in culprit.title
    line = write.__code__.co_firstlineno
    assert culprit.line == line or f"test_rules.py:{line}" in culprit.explanation
    assert "already there" not in culprit.explanation


def an_unrolled_state() -> torch.Tensor:
    step, state = nn.Linear(4, 4), torch.zeros(2, 4)
    with torch.no_grad():
        step.weight.copy_(torch.eye(4) * 8.0)
    for _ in range(60):
        state = torch.relu(step(state)) + 1.0
    return state


def a_power() -> torch.Tensor:
    matrix, vector = torch.full((3, 3), 4.0, requires_grad=True), torch.ones(3, 1)
    for _ in range(60):
        vector = matrix @ vector
    return vector


@pytest.mark.parametrize("make", [an_unrolled_state, a_power])
def test_a_loop_that_grows_beyond_float32_is_told_its_factor(
    make: Any,
) -> None:
    with nanlab.watch(on_fault="record") as trace:
        make().sum().backward()
    culprit = trace.culprit
    assert culprit is not None and culprit.cause == "dtype-overflow"
    factor = 8 if make is an_unrolled_state else 12
    assert f"turns of a loop, by a factor of {factor}" in culprit.explanation
    assert not any("1e-3 or more" in fix.title for fix in culprit.fixes)


def test_a_single_product_beyond_float32_has_not_grown_in_a_loop() -> None:
    w = torch.tensor([1e30], requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        (w * w).sum().backward()
    assert trace.culprit is not None and "turns" not in trace.culprit.explanation


def test_float32_is_no_advice_for_what_vanishes_in_float32() -> None:
    p = torch.full((3, 4), 0.01, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        x = p
        for _ in range(40):
            x = x * p
        x.sum().log().backward()
    assert trace.findings
    assert not any("float32" in fix.title for each in trace.findings for fix in each.fixes)
