"""A verified fix holds in the program itself: its line is rewritten in the source, and the program
is run."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from fixing import holds

import nanlab
from nanlab.rules import Fix

sys.path.insert(0, str(Path(__file__).parent / "corpus"))

import harness

FAULTS = [path.stem for path in harness.case_files(kind="ft")]
QUICK = (
    "f001 f003 f004 f005 f006 f008 f010 f011 f014 f017 f018 f020 f021 f022 f024 f028 f031 f035 f037"
    " f040 f043 f045 f053 f058 f084"
).split()
LOCAL_SHARE = 0.94
# What no rewriting of an operation cures: training rates and schedules, gradients that grow through
# depth or time, the order of the calls of a scaler, a dtype in which updates are lost.
NOT_LOCAL = set("learning-rate exploding-gradient scaler-misuse absorbed-update".split())


def diagnosed(module: ModuleType) -> tuple[nanlab.trace.Trace, Any]:
    given = module.META["phase"] in ("init", "data")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if given:
            with nanlab.watch(on_fault="record") as trace:
                run(module.build()[1], module.META["n_steps"])
        else:
            model, step = module.build()
            with nanlab.watch(model, on_fault="record") as trace:
                run(step, module.META["n_steps"])
        errors = (f for f in trace.findings if f.severity == "error")
        return trace, trace.culprit or next(errors, None)


def run(step: Any, steps: int) -> torch.Tensor:
    loss = torch.zeros(())
    for i in range(steps):
        loss = step(i)
    return loss


def applied(path: Path, fix: Fix, folder: Path) -> ModuleType:
    """The program with the edits of a fix in place."""
    lines = path.read_text().splitlines()
    for edit in sorted(fix.edits, key=lambda e: -e.first):
        lines[edit.first - 1 : edit.last] = edit.rows()
    at = next(i for i, row in enumerate(lines) if row.startswith("import torch"))
    copy = folder / path.name
    copy.write_text("\n".join([*lines[:at], "import nanlab", *lines[at:]]) + "\n")
    return harness.load(copy)


def nonfinite(model: Any, step: Any, loss: torch.Tensor) -> list[str]:
    tensors = {"loss": loss}
    for name, p in harness.parameters(model, step):
        tensors[name] = p
        if p.grad is not None:
            tensors[f"{name}.grad"] = p.grad
    return [
        name for name, t in tensors.items() if t is not None and not bool(torch.isfinite(t).all())
    ]


def check(name: str, folder: Path) -> None:
    path = harness.CASES / f"{name}.py"
    module = harness.load(path)
    _, finding = diagnosed(module)
    if finding is None or finding.line not in harness.markers(path)["ORIGIN"]:
        pytest.skip("no finding on the marked line")
    for fix in finding.fixes:
        if not fix.verified:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, step = applied(path, fix, folder).build()
            loss = run(step, module.META["first_bad_step"] + 1)
        assert not nonfinite(model, step, loss), fix


@pytest.mark.examples(every=4)
@pytest.mark.parametrize("name", [n for n in FAULTS if n[:4] in QUICK])
def test_a_verified_line_put_into_the_program_makes_it_finite(name: str, tmp_path: Path) -> None:
    check(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in FAULTS if n[:4] not in QUICK])
def test_every_verified_line_put_into_its_program_makes_it_finite(
    name: str, tmp_path: Path
) -> None:
    check(name, tmp_path)


# Where a fix of the operation leaves the program as bad as it was.
NOT_CURED = [
    ("f134_clip_logits_unnormalised", "in float32"),
    ("f138_relative_bias_on_finfo_min", "in float32"),
    ("f154_soft_alignment_border", "finite number instead of -inf"),
    ("f163_gp_cholesky_ex", "nanlab.safe.log"),
    ("f199_slerp_of_equal_rotations", "clamp the divisor"),
    ("f306_actnorm_of_dead_channel", "nanlab.safe.log"),
    ("f309_dynamic_ntk_short_sequence", "nanlab.safe.pow"),
    ("f312_coulomb_forces_under_vmap", "nanlab.safe.div"),
    ("f206_softmax_without_maximum_in_half", "clamp the argument"),
]


@pytest.mark.examples(every=4)
@pytest.mark.parametrize(("name", "title"), NOT_CURED)
def test_a_fix_that_cures_its_operation_and_not_the_program_is_not_verified(
    name: str, title: str
) -> None:
    _, finding = diagnosed(harness.load(harness.CASES / f"{name}.py"))
    assert not any(fix.verified for fix in finding.fixes if title in fix.title)


# What stands in the program, and the pattern of the code of the fix whose number takes its place.
SETTINGS = [
    ("t014_static_loss_scale_too_large", "2.0**27", r"\(loss \* ([\d.e+]+)\)"),
    ("t022_scaler_held_at_fixed_scale", "2.0**26", r"init_scale=([\d.e+]+)"),
    ("t064_own_scaler_never_backs_off", "2.0**26", r"init_scale=([\d.e+]+)"),
    ("t034_adamw_eps_fp16_dead_units", "1e-8", r"eps=([\d.e-]+)"),
    ("t035_rmsprop_eps_fp16", "1e-8", r"eps=([\d.e-]+)"),
    ("t036_adam_foreach_eps_fp16", "1e-8", r"eps=([\d.e-]+)"),
    ("t038_fused_adam_eps_zero", "else 0.0", r"eps=([\d.e-]+)"),
]


@pytest.mark.parametrize(("name", "old", "pattern"), SETTINGS)
def test_a_setting_that_holds_put_into_the_program_makes_it_finite(
    name: str, old: str, pattern: str, tmp_path: Path
) -> None:
    path = harness.CASES / f"{name}.py"
    _, finding = diagnosed(harness.load(path))
    # of a scaler of one's own the scale is not known: nothing holds, and advice is offered
    held = [fix.code for fix in finding.fixes if holds(fix)]
    codes = held or [fix.code for fix in finding.fixes if name.startswith("t064")]
    number = repr(float(next(found[1] for code in codes if (found := re.search(pattern, code)))))
    assert old in path.read_text()
    copy = tmp_path / path.name
    copy.write_text(
        path.read_text().replace(old, f"else {number}" if old.startswith("else ") else number)
    )
    module = harness.load(copy)
    model, step = module.build()
    loss = run(step, module.META["n_steps"])
    assert not nonfinite(model, step, loss)


@pytest.mark.slow
def test_most_faults_with_a_local_cure_get_a_verified_fix() -> None:
    verified = {}
    for name in FAULTS:
        module = harness.load(harness.CASES / f"{name}.py")
        if module.META["cause"] in NOT_LOCAL:
            continue
        _, finding = diagnosed(module)
        verified[name] = finding is not None and any(f.verified for f in finding.fixes)
    without = [name for name, found in verified.items() if not found]
    assert 1 - len(without) / len(verified) >= LOCAL_SHARE, without
