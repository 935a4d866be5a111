"""Try it: a fix on the recorded step, before and after side by side."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape

import pytest
import torch
from fake_trace import fake_trace
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import nanlab
from nanlab.rules import Edit, Fix
from nanlab.rules.cure import Cure
from nanlab.trace import Trace
from nanlab.views.card import cure_block
from nanlab.views.html import number
from nanlab.views.report import report
from nanlab.views.report_widget import Attempt, ReportView, attempt_of, edited, tried


def text_of(html: str) -> str:
    return re.sub(r"<[^>]+>", " ", html)


def faulty() -> Trace:
    layer = torch.nn.Linear(3, 2)
    with nanlab.watch(layer, on_fault="record") as trace:
        h = layer(torch.ones(4, 3))
        square = ((h - h.detach()) ** 2).sum(-1)
        square.sqrt().sum().backward()
    return trace


def of(trace: Trace, fix: int) -> Attempt:
    """A fix of the culprit."""
    found = attempt_of(trace, f"0.{fix}")
    assert found is not None
    return found


def two_faults() -> Trace:
    """A root and a norm of the same zeros, each of which spoils every gradient."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(3, 2)
    with nanlab.watch(layer, on_fault="record") as trace:
        h = layer(torch.ones(4, 3))
        away = h - h.detach()
        distance = (away**2).sum(-1).sqrt()
        angle = torch.acos(1 - (away * 2).sum(-1) ** 2)
        (distance.sum() + angle.sum()).backward()
    return trace


def test_loss_and_gradients_stand_side_by_side() -> None:
    trace = faulty()
    assert trace.culprit is not None
    at = next(i for i, fix in enumerate(trace.culprit.fixes) if "nanlab.safe.sqrt" in fix.code)
    told = text_of(tried(trace, of(trace, at)))
    assert re.search(r"gradients not finite\s+2 of 2\s+none of 2", told)
    assert "+         nanlab.safe.sqrt(square).sum().backward()" in told


def test_a_fix_that_fails_is_seen_to_fail() -> None:
    trace = two_faults()
    assert trace.culprit is not None
    at = next(
        i for i, fix in enumerate(trace.culprit.fixes) if fix.verdict == "fails" and fix.edits
    )
    told = text_of(tried(trace, of(trace, at)))
    assert re.search(r"gradients not finite\s+2 of 2\s+2 of 2", told)
    assert "Verdict: fails. " in told


def test_two_faults_of_a_step_are_cured_by_one_button_and_each_is_tried_beside_the_cure() -> None:
    trace = two_faults()
    cure = trace.cure
    assert cure is not None and len(cure.fixes) == 2 and cure.verified
    html = trace.report()._repr_html_()
    card = html.split('class="nl-card')[1].split("<details")[0]
    assert re.findall('data-try="([^"]*)"', card) == ["cure"]
    assert f'data-copy="{escape(cure.diff())}"' in card, "what is copied is what is tried"
    assert "Several faults in this step, cured together" in text_of(card)
    for edit in cure.edits:
        assert re.search(
            rf"{edit.first}\s+-\s+{re.escape(escape(edit.old.strip()))}", text_of(card)
        )
        assert re.search(
            rf"{edit.first}\s+\+\s+{re.escape(escape(edit.text.strip()))}", text_of(card)
        )
    whole = attempt_of(trace, "cure")
    assert whole is not None
    assert re.search(r"gradients not finite\s+2 of 2\s+none of 2", text_of(tried(trace, whole)))
    alone = text_of(tried(trace, of(trace, 0)))
    assert re.search(r"gradients not finite\s+2 of 2\s+2 of 2\s+none of 2", alone)
    hidden = trace.findings[1]
    assert hidden.cause == "sqrt-at-zero" and {f.verdict for f in hidden.fixes} <= {
        "untried",
        "fails",
    }
    tries = re.findall('data-try="([^"]*)"', html)
    assert {"cure", "0.0", "1.0"} <= set(tries) and len(tries) == len(set(tries))


@pytest.mark.parametrize(
    ("verdict", "why", "told"),
    [
        (
            "finite",
            "the loss is 3.2e-05, its limit 0",
            "finite : An epsilon. The loss is 3.2e-05, its limit 0.",
        ),
        (
            "untried",
            "the step was not recorded",
            "untried : An epsilon. The step was not recorded.",
        ),
        ("fails", "line 31 overflows too", "The one fix tried does not make the step finite."),
    ],
)
def test_a_fix_that_is_not_verified_says_so_in_words(verdict: str, why: str, told: str) -> None:
    trace = fake_trace()
    fixes = [Fix("an epsilon", "y = (x + 1e-9).sqrt()", verdict=verdict, why=why)]  # type: ignore[arg-type]
    trace.findings[0] = replace(trace.findings[0], fixes=fixes)
    card = report(trace)._repr_html_().split('class="nl-card')[1].split("<details")[0]  # type: ignore[arg-type]
    assert told in " ".join(text_of(card).split())
    assert "verified" not in card


def test_edits_that_leave_a_step_finite_and_wrong_are_not_called_a_cure() -> None:
    parts = [
        Fix(name, name, edits=(Edit("train.py", n, n, "y", "x"),)) for n, name in enumerate("ab", 1)
    ]
    edits = tuple(edit for part in parts for edit in part.edits)
    wrong = cure_block(Cure(parts, edits, "finite", "the loss is 1, its limit 2"))
    assert "cured" not in text_of(wrong) and "no cure known; these edits come nearest" in text_of(
        wrong
    )
    assert "The loss is 1, its limit 2." in text_of(wrong)
    assert "cured together" in text_of(cure_block(Cure(parts, edits, "verified")))


def test_the_cure_of_one_fault_is_called_as_its_fix() -> None:
    fix = Fix("an epsilon", "y", edits=(Edit("train.py", 1, 1, "y", "x"),))
    told = text_of(cure_block(Cure([fix], fix.edits, "verified")))
    assert "An epsilon" in told and "in this step" not in told


def test_the_card_is_shown_before_its_fixes_were_tried_and_again_when_they_were() -> None:
    InteractiveShell.instance()
    try:
        trace = faulty()
        view = ReportView(trace.report())
        assert "Trying fixes on the recorded step" in view.html and view.issue == ""
        assert trace.culprit is not None and not trace.culprit.fixes.tried  # type: ignore[attr-defined]
        with capture_output() as shown:
            view._ipython_display_()
        early = [each.data["text/html"] for each in shown.outputs]
        assert "Trying fixes" in early[0], "first the card as it is known at once"
        assert "Copy fix" not in early[0]
        assert 'data-try="0.0"' in view.html and "Trying fixes" not in view.html
        assert trace.culprit.fixes[0].title in view.issue
        assert "verified" in early[-1], "the static page is that with the fixes in the end"
    finally:
        InteractiveShell.clear_instance()


def test_a_fix_that_cannot_be_written_into_the_program_says_why_it_was_not_tried() -> None:
    trace = faulty()
    found = trace.culprit
    assert found is not None
    found.fixes.append(nanlab.rules.Fix("another rate", "lr=0.1"))
    assert (
        text_of(tried(trace, of(trace, len(found.fixes) - 1)))
        .strip()
        .startswith("Not tried: the fix")
    )


def test_the_page_asks_and_is_told() -> None:
    trace = faulty()
    view = ReportView(trace.report())
    view.asked = ["0.0", 1]
    assert view.tried["key"] == "0.0"
    assert "with the fix" in view.tried["html"]
    for wrong in ("7.0", "0.99", "what", ""):
        view.asked = [wrong, 2]
        assert view.tried["key"] == "0.0", "what is not there is not tried"


def test_a_number_that_is_clicked_leads_back_to_where_it_was_born() -> None:
    trace = faulty()
    view = ReportView(trace.report())
    born = trace.culprit
    assert born is not None
    later = trace.ops[(trace.ops["phase"] == "backward") & (trace.ops["nan"] > 0)].iloc[-1]
    view.clicked = [int(later["position"]), "bad", 1]
    told = text_of(view.whence)
    assert "Where the first bad element came from" in told and "= NaN" in told
    assert f":{born.line}" in told.split("=")[-1] or str(born.line) in told
    assert f'data-position="{born.position}"' in view.whence, "the way ends where it was born"
    largest = trace.ops[trace.ops["op"] == "addmm"].iloc[0]
    view.clicked = [int(largest["position"]), "largest", 2]
    tensor = trace.tensor(int(largest["position"]))
    assert f"= {number(float(tensor.flatten()[tensor.abs().argmax()]))}" in text_of(view.whence)
    view.clicked = [10**6, "bad", 3]
    assert "no row at position" in text_of(view.whence)


def test_the_edited_cell_is_the_cell_with_the_new_line() -> None:
    shell = InteractiveShell.instance()
    try:
        shell.run_line_magic("load_ext", "nanlab")
        lines = [
            "%%nanwatch -q",
            "import torch",
            "x = torch.zeros(3, requires_grad=True)",
            "x.sqrt().sum().backward()",
        ]
        shell.run_cell("\n".join(lines), store_history=True)
        trace = nanlab.last
        assert trace is not None and trace.culprit is not None
        fix = next(i for i, each in enumerate(trace.culprit.fixes) if each.edits)
        text = edited(trace, of(trace, fix))
        assert text.splitlines()[:3] == lines[:3]
        assert text.splitlines()[3] == trace.culprit.fixes[fix].edits[0].text
    finally:
        InteractiveShell.clear_instance()
