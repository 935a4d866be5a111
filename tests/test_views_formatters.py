"""What a notebook shows of nanlab's own objects, in a real IPython shell."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

import nanlab
from nanlab.explanations import Explanation
from nanlab.rules import Finding, Fix
from nanlab.views import register_formatters
from nanlab.views.html import CODE, sentence
from nanlab.views.results import scale_advice


@pytest.fixture
def shell() -> Iterator[InteractiveShell]:
    made = InteractiveShell.instance()
    made.display_formatter.active_types = ["text/plain", "text/html"]
    register_formatters(made)
    register_formatters(made)
    yield made
    InteractiveShell.clear_instance()


def finding() -> Finding:
    places = {
        "phase": "forward",
        "op": "log",
        "node": 1,
        "module": "",
        "step": 0,
        "file": "a.py",
        "line": 3,
    }
    return Finding(
        "log-of-zero",
        "error",
        "log of 3 zeros",
        "-inf",
        **places,
        source="y = x.log()",
        symptom="loss-inf",
    )


def test_a_trace_shows_its_verdict_and_its_doors(shell: InteractiveShell) -> None:
    with nanlab.watch(on_fault="record") as trace:
        torch.ones(3, requires_grad=True).exp().sum().backward()
    data, _ = shell.display_formatter.format(trace)
    assert "No harmful NaN" in data["text/html"]
    assert "stepper()" in data["text/html"]


@pytest.mark.parametrize(
    ("scale", "words"), [(1.0, ["in use: 1 (2^0)"]), (2.0**30, ["2^30", "gradients overflow"])]
)
def test_a_loss_scale_shows_its_advice_in_one_line_and_as_a_chart(
    shell: InteractiveShell, scale: float, words: list[str]
) -> None:
    result = SimpleNamespace(
        advised=(2.0, 1024.0), headroom=3 if scale == 1 else -7, used=scale, dtype="float16"
    )
    told = scale_advice(result)
    assert "from 2 (2^1) to 1,024 (2^10)" in told
    assert all(word in told for word in words)
    model = torch.nn.Linear(2, 1)
    with nanlab.watch(model) as trace:
        model(torch.ones(3, 2)).mean().backward()
    data, _ = shell.display_formatter.format(trace.loss_scale())
    assert data["text/plain"].startswith("<nanlab.LossScale: a loss scale ")
    assert "\n" not in data["text/plain"]
    assert "<img" in data["text/html"] and "2^40" in data["text/html"]


def test_no_loss_scale_to_advise_is_said() -> None:
    result = SimpleNamespace(advised=None, headroom=None, used=1000.0, dtype="float16")
    assert (
        scale_advice(result)
        == "no loss scale keeps every gradient below the largest float16; in use: 1,000"
    )


def test_a_finding_shows_as_a_card_and_as_text(shell: InteractiveShell) -> None:
    data, _ = shell.display_formatter.format(finding())
    assert "</code> of 3 zeros" in data["text/html"]
    assert "a.py:3" in data["text/plain"]
    assert "y = x.log()" in data["text/plain"]


def test_a_widget_shows_a_static_view_first_and_itself_below(shell: InteractiveShell) -> None:
    with nanlab.watch(on_fault="record") as trace:
        torch.zeros(3, requires_grad=True).sqrt().sum().backward()
    with capture_output() as caught:
        result = shell.run_cell("from IPython.display import display")
        shell.push({"trace": trace})
        result = shell.run_cell("trace.stepper()", silent=False)
    assert result.success
    assert len(caught.outputs) == 2
    static, live = caught.outputs
    assert result.result.fallback in static.data["text/html"]
    assert "SqrtBackward0" in static.data["text/html"]
    assert (
        live.data["application/vnd.jupyter.widget-view+json"]["model_id"] == result.result.model_id
    )
    assert "text/html" in live.data


@pytest.mark.parametrize(
    ("text", "op", "shown"),
    [
        ("division by zero", "div", "Division by zero"),
        ("log of 3 zeros", "log", '<code style="{CODE}">log</code> of 3 zeros'),
        ("use `x.log1p()` here", "", 'Use <code style="{CODE}">x.log1p()</code> here'),
        ("nanlab.safe.sqrt: finite", "", "nanlab.safe.sqrt: finite"),
        ("a ` alone", "", "A ` alone"),
        ("x < 0", "", "x &lt; 0"),
    ],
)
def test_a_sentence_begins_with_a_capital_and_code_is_set_as_code(
    text: str, op: str, shown: str
) -> None:
    assert sentence(text, op) == shown.replace("{CODE}", CODE)


def test_an_explanation_says_which_of_its_fixes_were_tried() -> None:
    tried, untried = Fix("pad first", "pad(x)", "verified"), Fix("another way", "y = x")
    both = Explanation("shape", "two sizes", "why", fixes=[tried, untried])
    assert "fix (verified): pad first\n    pad(x)" in str(both)
    assert "fix: another way\n    y = x" in str(both)
    assert ">verified<" in both._repr_html_()
    assert "outcome" not in Explanation("shape", "two sizes", "why", fixes=[untried])._repr_html_()


def test_what_is_handed_out_shows_its_line_a_picture_and_a_table(shell: InteractiveShell) -> None:
    model, y = torch.nn.Linear(4, 3), torch.tensor([0, 1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(i: float = 1.0) -> torch.Tensor:
        optimizer.zero_grad()
        out = model(torch.ones(2, 4)) / i
        loss = torch.nn.functional.cross_entropy(out * 3e4, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    with nanlab.watch(model) as trace:
        step(), step(0.0)  # type: ignore[func-returns-value]
    with nanlab.watch(model, on_fault="record") as other:
        step()
    advice = nanlab.advise_eps(lambda x, eps: (x + eps).sqrt(), torch.tensor([0.0, 1.0]))
    assert trace.culprit is not None and shell.display_formatter is not None
    compared = nanlab.compare(step)
    expected = {
        "Replay of step 1": trace.replay(),
        "of 1 step clipped": trace.clipping(),
        "float32": compared,
        "results compared": nanlab.diff(trace, other),
        "is harmless": advice,
        trace.culprit.fixes[0].verdict: trace.culprit.fixes[0],
    }
    pictured = (type(trace.clipping()), type(compared), type(advice))
    for words, shown in expected.items():
        html = shell.display_formatter.format(shown)[0]["text/html"]
        assert words in html, words
        assert ("data:image/svg+xml" in html) == isinstance(shown, pictured)
