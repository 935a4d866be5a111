"""The report: culprit, evidence, path and fixes; and what it says when all is well, or when a part
of it fails."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from fake_trace import Builder, FakeTrace, Finding, fake_trace

import nanlab
from nanlab.findings.rule import Edit, Fix
from nanlab.rules import Path as Path_
from nanlab.views.card import fix_block
from nanlab.views.details import steps_chart
from nanlab.views.evidence import operand_names
from nanlab.views.report import report
from nanlab.views.results import comparison_html
from nanlab.views.text import reproduction_of

VOID = {"img", "meta", "br"}


class Balance(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag


def text_of(html: str) -> str:
    return re.sub(r"<[^>]+>", "", re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL))


def card_of(html: str) -> str:
    return html.split('class="nl-card')[1].split("<details")[0]


def faulty(rows: int = 128) -> nanlab.trace.Trace:
    """A distance of equal points, in each of the rows."""
    layer = torch.nn.Linear(3, 2)
    x = torch.arange(3.0 * rows).reshape(rows, 3)
    with nanlab.watch(layer, on_fault="record") as trace:
        h = layer(x)
        square = ((h - h.detach()) ** 2).sum(-1)
        distance = square.sqrt()
        distance.mean().backward()
    return trace


def test_the_card_says_what_where_and_when_and_has_the_best_fix_and_the_samples() -> None:
    card = text_of(card_of(report(fake_trace())._repr_html_()))
    assert "train.py:6 The derivative of sqrt at 0 is infinite" in card
    assert "in loss · step 2 · backward · NaN in a gradient · sqrt-at-zero" in card
    assert "verified: nanlab.safe.sqrt, whose gradient at 0 is 0" in card
    assert "distance = nanlab.safe.sqrt(square)" in card
    assert "In the batch: samples 0–2 (3 of 512)" in card


def test_the_card_has_three_lines_of_code_the_middle_one_marked() -> None:
    card = card_of(report(fake_trace())._repr_html_())
    assert re.findall(r"(?:→| )\s*(\d+) </span>", card) == ["5", "6", "7"]
    assert len(re.findall("nl-hit", card)) == 1
    assert "distance = torch.sqrt" in card.split("nl-hit")[1].split("</span>\n")[0]


def test_everything_but_the_card_is_in_one_closed_fold() -> None:
    html = report(fake_trace())._repr_html_()
    outer = html.split("<details")[1:]
    assert outer[0].startswith(' class="nl-more">') and "open" not in outer[0].split(">")[0]
    assert html.rstrip().endswith("</details></div>")


def test_fixes_bear_the_verdicts_of_the_contract_and_why() -> None:
    html = report(fake_trace())._repr_html_()
    tags = re.findall(r'nl-tag nl-\w+" title="[^"]+">(verified|finite|fails|untried)<', html)
    assert sorted(tags) == ["fails", "untried", "verified", "verified"]
    assert len(re.findall('class="nl-fix"', html)) == 4


def test_the_best_fix_stands_on_the_card_wherever_it_is_in_the_list() -> None:
    trace = fake_trace()
    trace.findings[0].fixes.reverse()
    assert "nanlab.safe.sqrt" in card_of(report(trace)._repr_html_()) or "1e-12" in card_of(
        report(trace)._repr_html_()
    )


def test_samples_are_counted_against_the_batch() -> None:
    assert "In the batch: all 128 samples" in text_of(faulty().report()._repr_html_())


def test_evidence_says_once_what_is_the_same_in_all_and_uses_the_names_of_the_source() -> None:
    trace = faulty()
    told = text_of(trace.report()._repr_html_().split(">Evidence<")[1])[:200]
    assert "128 elements, all with root = 0, incoming gradient = 0.00781, value = inf" in told
    with nanlab.watch(on_fault="record") as trace:
        probability = torch.cat([torch.zeros(3), torch.ones(2)]).requires_grad_()
        torch.log(probability).sum().backward()
    told = text_of(trace.report()._repr_html_().split(">Evidence<")[1])[:200]
    assert "3 elements, all with probability = 0" in told


@pytest.mark.parametrize(
    ("source", "op", "names"),
    [
        ("y = square.sqrt()", "sqrt", ["square"]),
        ("return torch.exp(0.5 * logvar)", "exp", ["0.5 * logvar"]),
        ("for a in (num / den):", "div", ["num", "den"]),
        ("z = a.exp() + b.exp()", "exp", []),
        ("p = F.log_softmax(scores, -1)", "_log_softmax", ["scores", "-1"]),
        ("broken (", "exp", []),
    ],
)
def test_operands_are_named_as_on_the_line_where_it_says_so_once(
    source: str, op: str, names: list[str]
) -> None:
    assert operand_names(source, op) == names


def test_the_code_is_annotated_with_where_it_began_and_where_it_went() -> None:
    trace = faulty()
    html = trace.report()._repr_html_()
    assert 'role="region" aria-label="Annotated source"' in html
    lines = {
        int(n): kind
        for kind, n in re.findall(r'nl-line nl-is-(\w+)"[^>]*data-place="[^"]*:(\d+)"', html)
    }
    found = trace.culprit
    assert found is not None and lines[found.line] == "culprit"
    assert lines[found.line - 1] in ("turned", "carried"), "the square's gradient is inf times 0"
    assert f"→ line {found.line - 1}" in text_of(html)
    assert html.count('class="nl-strip"') >= 3


def test_the_path_is_told_a_line_at_a_time() -> None:
    html = report(fake_trace())._repr_html_()
    path = text_of(html.split("From birth to symptom")[1].split("</ol>")[0])
    assert "train.py:6 sqrt → pow" in path
    assert "train.py:4 addmm backward · 21 bad" in path


def test_a_run_without_one_finite_loss_still_has_its_steps() -> None:
    model = torch.nn.Linear(2, 1)
    model.weight.data.fill_(float("nan"))
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters(), 0.1)
    with nanlab.watch(model, on_fault="record", keep=20) as trace:
        for _ in range(20):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(3, 2)).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
    html = trace.report()._repr_html_()
    assert 'class="nl-note"' not in html
    assert "Table of 20 training steps" in html
    assert "20 rows; the last 8" in html and "40 rows; the last 8" in html
    assert "loss not finite from step 0 on" in html


def test_a_gradient_norm_that_is_not_finite_is_told_where_the_loss_is() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with nanlab.watch(model, on_fault="record") as trace:
        for i in range(3):
            optimizer.zero_grad()
            out = model(torch.ones(4, 3))
            lost = out if i == 0 else out - out
            (lost.sum().square().sqrt() + out.sum()).backward()
    html = steps_chart(trace.steps)
    assert "gradient norm not finite from step 1 on" in html and "loss not finite" not in html


def test_a_comparison_shows_where_the_low_precision_overflows() -> None:
    layer = torch.nn.Linear(4, 4)

    def step(size: float) -> torch.Tensor:
        out = layer(torch.full((2, 4), size))
        loss = (out * out * out).float().tanh().mean()
        loss.backward()
        return loss

    runs = (functools.partial(step, size) for size in (300.0, 1.0))
    over, within = (nanlab.compare(run, dtype=torch.float16) for run in runs)
    assert over.table["overflowed"].any() and not within.table["overflowed"].any()
    assert "%3Eoverflow%3C/text" in comparison_html(over)
    assert "%3Eoverflow%3C/text" not in comparison_html(within)


def test_the_backward_pass_shown_is_the_bad_one_and_says_where_it_turned_bad() -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)
    with nanlab.watch(on_fault="record", keep=20) as trace:
        (0 * x.sqrt()).sum().backward()
        (x * x).sum().backward()
    frame = trace.backward
    assert frame["backward_pass"].nunique() == 2
    html = trace.report()._repr_html_()
    first = frame[frame["backward_pass"] == frame["backward_pass"].min()]
    assert f"Backward pass of step {first['step'].iloc[0]}: {len(first)} nodes" in html
    assert "not%20finite%20from%20Sqrt" in html or "not finite from Sqrt" in html


def test_a_healthy_run_says_so_in_one_line_with_what_was_covered() -> None:
    text = repr(report(fake_trace(faulty=False)))
    assert len(text.splitlines()) == 1
    assert "No harmful NaN" in text
    assert "102 operation results; 3 training steps; forward, backward; 0.03 s" in text


def test_what_never_trained_is_not_called_a_training_step() -> None:
    model = torch.nn.Linear(3, 2)
    with nanlab.watch(model) as once:
        model(torch.ones(3))
    with nanlab.watch(model) as turns:
        for _ in range(4):
            model(torch.ones(3))
    assert "; no training step; forward; " in repr(once.report())
    assert "; 4 turns of a loop, no training step; forward; " in repr(turns.report())


def test_a_forecast_is_the_headline_of_a_run_without_a_culprit() -> None:
    w = torch.nn.Parameter(torch.ones(4))
    with nanlab.watch(on_fault="record") as trace:
        for i in range(12):
            w.grad = None
            (0.1 * w * 3.0**i).half().float().mean().backward()
    trace.findings[:] = [f for f in trace.findings if f.severity == "warning"]
    html = trace.report()._repr_html_()
    assert 'class="nl-card nl-warning"' in html
    assert "on its way out of float16: " in text_of(card_of(html))


def test_the_run_up_tells_how_the_operand_came_to_its_size_and_what_threw_it() -> None:
    weight = torch.nn.Parameter(torch.tensor([0.1, 0.2]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with nanlab.watch(on_fault="record") as trace:
        for push in (0.0, 0.1, -700.0, 0.0):
            optimizer.zero_grad()
            rate = weight * 1.0
            (rate.exp().sum() + push * weight.sum()).backward()
            optimizer.step()
    assert trace.culprit is not None
    told = text_of(trace.report()._repr_html_().split(">Run-up</div>")[1])
    assert told.startswith("rate reached ") and "at step 3" in told
    assert "exp overflows float32 above 88.7" in told
    assert "The update of step 2 moved" in told


def test_the_run_up_of_softmax_tells_of_no_overflow() -> None:
    weight = torch.nn.Parameter(torch.tensor([0.1, 0.2]))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    with nanlab.watch(on_fault="record") as trace:
        for push in (1.0, 1.0, 1.0, 1000.0):
            optimizer.zero_grad()
            scores = weight * torch.tensor([push, 4 * push])
            scores.softmax(0).log().sum().backward()
            optimizer.step()
    assert trace.culprit is not None
    told = text_of(trace.report()._repr_html_().split(">Run-up</div>")[1])
    assert told.startswith("scores reached 800 at step 3") and "overflows" not in told


def test_the_run_up_of_exp_counts_only_values_that_could_overflow() -> None:
    weight = torch.nn.Parameter(torch.tensor([0.1, 0.2]))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    with nanlab.watch(on_fault="record") as trace:
        for push in (1.0, 1.0, 1.0, 1000.0):
            optimizer.zero_grad()
            rate = weight * torch.tensor([push, -4 * push])
            rate.exp().sum().backward()
            optimizer.step()
    assert trace.culprit is not None
    told = text_of(trace.report()._repr_html_().split(">Run-up</div>")[1])
    assert told.startswith("rate reached 100 at step 3")


def test_the_run_up_of_a_saturated_result_is_that_of_what_saturated_it() -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with nanlab.watch(on_fault="record") as trace:
        for push in (0.0, 0.1, -700.0, 0.0):
            optimizer.zero_grad()
            score = weight * 1.0
            loss = -(1 - torch.sigmoid(score)).log().sum()
            (loss + push * weight.sum()).backward()
            optimizer.step()
    assert trace.culprit is not None and trace.culprit.cause == "log-of-zero"
    told = text_of(trace.report()._repr_html_().split(">Run-up</div>")[1])
    assert told.startswith("score reached ") and "at step 3" in told


def test_nothing_watched_is_not_called_healthy_training() -> None:
    assert "Nothing was watched" in repr(report(Builder().trace([], [])))


def test_what_nanlab_says_of_itself_is_shown() -> None:
    trace = fake_trace()
    trace.notes.append("the recorder failed (KeyError: 3) & disarmed itself")
    assert "KeyError: 3) &amp; disarmed" in report(trace)._repr_html_()
    assert "KeyError: 3" in repr(report(trace))


def test_a_part_that_fails_becomes_a_note_and_the_rest_shows() -> None:
    class Broken(FakeTrace):
        @property
        def findings(self) -> list[Finding]:
            raise KeyError("x")

        @findings.setter
        def findings(self, value: list[Finding]) -> None:
            pass

    html = report(
        Broken(**{k: v for k, v in vars(fake_trace()).items() if k != "findings"})
    )._repr_html_()
    assert "the part &#x27;card&#x27; of the report failed (KeyError" in html
    assert "Operations: 102 results" in html


def test_the_file_is_whole_offline_and_in_one_piece(tmp_path: Path) -> None:
    path = report(fake_trace()).to_html(tmp_path / "report.html")
    html = path.read_text("utf-8")
    assert html.startswith("<!doctype html>")
    assert re.findall(r'(?:src|href)="(?!data:)', html) == []
    assert "http" not in html.replace("xmlns='http://www.w3.org/2000/svg'", "")
    assert len(html) < 300_000
    balance = Balance()
    balance.feed(html)
    assert balance.open == []


@pytest.mark.parametrize("is_faulty", [True, False])
def test_what_a_sanitiser_takes_away_leaves_no_stray_text(is_faulty: bool) -> None:
    html = report(fake_trace(is_faulty))._repr_html_()
    body = html.split("</style>")[1]
    assert not any(tag in body for tag in ("<style", "<script", "<button", "var(--"))
    assert all(not text_of(svg) for svg in re.findall(r"<svg class.*?</svg>", body))


def autoencoder() -> nanlab.trace.Trace:
    """A program of two faults, and an update that caused them."""
    torch.manual_seed(3)
    encoder, decoder = torch.nn.Linear(64, 16), torch.nn.Linear(8, 64)
    optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.5)
    images = torch.rand(3, 32, 64) * 20
    with nanlab.watch(torch.nn.ModuleList([encoder, decoder])) as trace:
        for x in images:
            optimizer.zero_grad()
            mu, logvar = encoder(x).chunk(2, dim=1)
            std = torch.exp(logvar)
            loss = (decoder(mu + std * torch.randn_like(std)) - x).pow(2).mean()
            kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
            (loss + kl).backward()
            optimizer.step()
    return trace


@pytest.mark.parametrize("program", [faulty, autoencoder])
def test_a_saved_report_has_at_most_sixty_kilobytes(
    tmp_path: Path, program: Callable[[], nanlab.trace.Trace]
) -> None:
    trace = program()
    assert trace.culprit is not None
    assert len(trace.report()._repr_html_()) < 60_000
    assert trace.report().to_html(tmp_path / "report.html").stat().st_size < 60_000


def test_a_long_path_prints_six_stations_and_how_many_more() -> None:
    stations = [
        {"op": f"op{i}", "phase": "forward", "file": "a.py", "line": i, "nonfinite": i}
        for i in range(5000)
    ]
    trace = fake_trace()
    trace.findings[0].path = stations
    text = repr(report(trace))
    assert "path: op0 → op1 → op2 → op3 → op4 → ... 4,994 more → op4999" in text
    assert len(repr(Path_(stations)).splitlines()) == 7


def test_findings_and_fixes_print_a_line_for_each() -> None:
    trace = faulty()
    assert re.match(r"0  error: the derivative of sqrt at 128 zeros", repr(trace.findings))
    assert trace.culprit is not None
    assert repr(trace.culprit.fixes).startswith("0  verified: ")
    assert len(repr(trace.culprit)) < 200


def test_text_report_gives_the_line_and_the_fix() -> None:
    text = repr(report(fake_trace()))
    assert "distance = torch.sqrt(((a - b) ** 2).sum(-1))" in text
    assert "fix (verified)" in text
    assert "path: sqrt → pow → addmm" in text


def test_memory_that_nobody_wrote_has_an_empty_histogram_and_the_report_is_whole() -> None:
    x = torch.zeros(2, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        torch.empty(3)
        x.sqrt().sum().backward()
    row = trace.ops.query("op == 'empty'").index[0]
    assert trace.histogram(int(row)).empty
    assert 'class="nl-note"' not in trace.report()._repr_html_()


def test_what_was_watched_counts_the_steps_that_were_folded_too() -> None:
    x = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.SGD([x], 0.1)
    with nanlab.watch(keep=1) as trace:
        for _ in range(6):
            optimizer.zero_grad()
            (x * 2).sum().backward()
            optimizer.step()
    text = repr(trace.report())
    assert len(trace.ops) < trace.recording.end
    assert (
        f"{trace.recording.end} operation results; 6 training steps; forward, backward, optimizer"
        in text
    )
    kept = f"Operations: {len(trace.ops)} results kept of {trace.recording.end}<"
    assert kept in trace.report()._repr_html_()


def test_the_card_names_the_update_that_threw_a_parameter_just_before() -> None:
    weight = torch.nn.Parameter(torch.tensor([0.1]))
    optimizer = torch.optim.SGD([weight], 1.0)
    with nanlab.watch() as trace:
        for _ in range(2):
            optimizer.zero_grad()
            (weight.exp() - 1000 * weight).sum().backward()
            optimizer.step()
    assert trace.culprit is not None and trace.culprit.cause == "exp-overflow"
    card = text_of(report(trace).early())
    assert "Just before: " in card
    assert "the update of step 0 changed" in card.replace("The update", "the update")


@pytest.mark.parametrize(
    ("size", "told"),
    [
        # the ceiling of float16 is 65,504, just below 2^16; the floor 2^-14
        (
            65_000.0,
            r"largest result is less than 0\.1 bits below its maximum, at test_views_report",
        ),
        (2.0**12, r"largest result is 4\.0 bits below its maximum, at test_views_report.py:\d+"),
        (
            2.0**20,
            r"Not safe in float16: test_views_report.py:\d+ \(\w+\) is 4\.0 bits above its maximum",
        ),
    ],
)
def test_a_healthy_run_says_how_near_to_the_limits_of_float16_it_came(
    size: float, told: str
) -> None:
    with nanlab.watch() as trace:
        torch.full((3,), size) * 1.0
    assert trace.culprit is None
    assert re.search(told, repr(trace.report()))


def test_a_mask_of_the_lowest_number_says_nothing_about_headroom() -> None:
    with nanlab.watch() as trace:
        scores = torch.full((2, 2), 2.0**12) * 1.0
        masked = scores.masked_fill(torch.eye(2, dtype=torch.bool), torch.finfo(scores.dtype).min)
        torch.softmax(masked, -1)
    told = repr(trace.report())
    assert "Room in float16: the largest result is 4.0 bits below its maximum" in told


def test_a_minimal_reproduction_is_a_dozen_lines_that_fail_by_themselves() -> None:
    points = torch.nn.Parameter(torch.tensor([[1.0, 2.0], [1.0, 2.0], [4.0, 6.0]]))
    with nanlab.watch(on_fault="record") as trace:
        distance = (points[:, None] - points[None]).pow(2).sum(-1).sqrt()
        distance.mean().backward()
    program = reproduction_of(trace, trace.culprit)
    assert len(program.splitlines()) <= 12
    assert "torch.sqrt(" in program
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "AssertionError" in run.stderr
    assert "inf" in run.stdout


def test_fix_of_two_places_is_shown_and_copied_as_a_diff() -> None:
    edits = tuple(Edit("net.py", at, at, f"y{at} = 1", f"x{at} = 0") for at in (4, 9))
    html = fix_block(Fix("two lines", "y4 = 1\ny9 = 1", edits=edits), 0)
    assert "nl-diff" in html and "@@ -9,1 +9,1 @@" in html
    assert "nl-diff" not in fix_block(Fix("one line", "y4 = 1", edits=edits[:1]), 0)


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_what_torch_warned_of_in_the_run_is_not_printed_again(
    capfd: pytest.CaptureFixture[str],
) -> None:
    x = torch.ones(1, 3, requires_grad=True)
    with nanlab.watch(on_fault="record") as trace:
        (x.var(0) + torch.std_mean(x, 0)[0] + torch.cov(x.T)).sum().backward()
    capfd.readouterr()
    assert trace.culprit is not None and trace.cure is None
    trace.why(trace.culprit.position)
    text = str(trace.report()) + trace.report()._repr_html_()
    assert "std" in text and not capfd.readouterr().err
