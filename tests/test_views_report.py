"""The report: culprit, evidence, path and fixes; and what it says when all is well, or when a part of it fails."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from fake_trace import Builder, FakeTrace, Finding, fake_trace

import nanlab
from nanlab.views.report import report

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


def test_one_sentence_says_what_where_and_when() -> None:
    html = report(fake_trace())._repr_html_()
    sentence = re.sub(r"<[^>]+>", "", html.split("Watched")[0])
    assert "derivative of sqrt at 0 is infinite" in sentence
    assert "train.py:6, in loss, step 2, backward" in sentence


def test_source_has_two_lines_on_either_side() -> None:
    html = report(fake_trace())._repr_html_()
    for text in ("h = self.encoder(x)", "scores = h @ self.keys.T", "return loss"):
        assert text in html
    assert "→&nbsp;6" in html


def test_fixes_say_what_became_of_them() -> None:
    html = report(fake_trace())._repr_html_()
    assert html.count(">verified<") == 2
    assert ">fails<" in html
    assert ">untried<" in html
    assert "3 of 4 re-run" in html
    assert "distortion: the largest relative change of an element that was healthy" in html


def test_that_a_fix_failed_is_said_once() -> None:
    x = torch.zeros(4, requires_grad=True)
    with nanlab.watch() as trace:
        x.sqrt().sum().backward()
    shown = trace.report()
    assert "(fails): an epsilon after the root instead of inside: the gradient stays infinite" in repr(shown)
    assert "tried, and failed" not in repr(shown) + shown._repr_html_()
    failed = next(row for row in shown._repr_html_().split("<tr") if ">fails<" in row)
    assert re.findall(r">([^<>]+)</td>", failed) == ["–", "–"], "an infinite gradient has no largest one"


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
    assert "of the report failed" not in html
    assert "Table of 20 training steps" in html
    assert "20 rows; the last 15 are shown" in html
    assert "40 rows; the last 15 are shown" in html


def test_code_and_title_of_a_fix_wrap_so_that_no_column_is_cut_off() -> None:
    table = next(t for t in report(fake_trace())._repr_html_().split("<table") if ">largest gradient<" in t)
    rows = table.split("<tr")[2:]
    assert rows and all("white-space:pre-wrap" in row and "white-space:normal" in row for row in rows)


def test_evidence_samples_and_path_are_shown() -> None:
    html = report(fake_trace())._repr_html_()
    assert "samples 0, 1, 2" in html
    assert html.index('<b style="font-family:monospace">sqrt') < html.index('<b style="font-family:monospace">addmm')
    assert "21 non-finite values" in html


def test_the_caption_of_the_evidence_counts_all_offending_elements() -> None:
    x = torch.cat([torch.zeros(981), torch.ones(19)]).requires_grad_()
    with nanlab.watch(on_fault="record") as trace:
        x.log().sum().backward()
    assert "the first 12 of 981 elements" in trace.report()._repr_html_()


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


def test_the_path_begins_at_an_origin_whatever_its_status_is() -> None:
    html = report(fake_trace())._repr_html_()
    path = html.split("Path, from the origin")[1].split("Offending rows")[0]
    assert ">origin<" in path and ">seen<" in path
    assert ">born<" not in path


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

    html = report(Broken(**{k: v for k, v in vars(fake_trace()).items() if k != "findings"}))._repr_html_()
    assert "the part &#x27;verdict&#x27; of the report failed (KeyError" in html
    assert "Operations: 102 results" in html


def test_the_file_is_whole_offline_and_in_one_piece(tmp_path: Path) -> None:
    path = report(fake_trace()).to_html(tmp_path / "report.html")
    html = path.read_text("utf-8")
    assert html.startswith("<!doctype html>")
    assert re.findall(r'(?:src|href)="(?!data:)', html) == []
    assert "http" not in html
    assert len(html) < 300_000
    balance = Balance()
    balance.feed(html)
    assert balance.open == []


@pytest.mark.parametrize("faulty", [True, False])
def test_html_survives_a_sanitiser(faulty: bool) -> None:
    html = report(fake_trace(faulty))._repr_html_()
    assert not any(tag in html for tag in ("<style", "<svg", "<script", "var(--", "color-mix", "position:"))


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
    assert "of the report failed" not in trace.report()._repr_html_()


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
    assert f"{trace.recording.end} operation results; 6 training steps; forward, backward, optimizer" in text
    kept = f"Operations: {len(trace.ops)} results kept of {trace.recording.end}<"
    assert kept in trace.report()._repr_html_()
