"""What the views cost: a fault until its report is on the screen, a selection in all views, a
backward pass of 10,000 nodes in the stepper, and a table of 2,000 operations.

Run it with ``python benchmarks/views.py``; it needs Chromium and no JupyterLab.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "browser")]

from bare_page import mount  # noqa: E402
from fake_trace import big_trace, fake_trace  # noqa: E402

from nanlab import watch  # noqa: E402
from nanlab.trace import Trace  # noqa: E402
from nanlab.views.report import report  # noqa: E402
from nanlab.views.report_widget import ReportView  # noqa: E402
from nanlab.views.stepper import Stepper, stepper  # noqa: E402
from nanlab.views.tables import as_table, browse, static_table  # noqa: E402
from nanlab.views.underflow import underflow  # noqa: E402

STEP = """() => {
  const next = [...document.querySelectorAll('button')].find((b) => b.textContent === 'Next'), times = [];
  for (let i = 0; i < 100; i++) {
    const start = performance.now();
    next.click();
    document.body.offsetHeight;
    times.push(performance.now() - start);
  }
  return times;
}"""
OPEN_ALL = """() => {
  const start = performance.now();
  for (let i = 0; i < 40; i++) document.querySelector('[aria-expanded="false"] .nl-twist')?.click();
  document.body.offsetHeight;
  return (performance.now() - start) / 40;
}"""


def seconds(action: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def state_bytes(widget: Stepper) -> int:
    state = widget.get_state()
    binary = len(state.pop("edges"))
    return binary + len(json.dumps({k: v for k, v in state.items() if k != "layout"}))


def line(what: str, value: str, limit: str = "") -> None:
    print(f"{what:<58}{value:>12}  {limit}")


def measure_stepper(page: Page) -> None:
    trace = big_trace(10_000)
    made_in, widget = seconds(lambda: stepper(trace))
    shown_in = mount(page, widget) / 1000
    times = page.evaluate(STEP)
    line("stepper, 10,000 nodes: made in the kernel", f"{made_in:.2f} s")
    line("  drawn in the browser", f"{shown_in:.2f} s")
    line("  opens (both)", f"{made_in + shown_in:.2f} s", "limit 1.5 s")
    line("  a step in the browser, median", f"{statistics.median(times):.1f} ms", "limit 50 ms")
    line("  a step in the browser, worst of 100", f"{max(times):.1f} ms")
    line("  state sent", f"{state_bytes(widget) / 1e6:.2f} MB", "limit 3 MB")
    line("  opening a group", f"{page.evaluate(OPEN_ALL):.1f} ms")
    detail = [seconds(lambda i=i: setattr(widget, "position", i))[0] for i in range(1, 51)]
    line("  detail of a node in the kernel, median", f"{1000 * statistics.median(detail):.1f} ms")


def measure_tables(page: Page) -> None:
    trace = big_trace(200)
    table = as_table(trace.ops, "ops", trace)
    static_in, html = seconds(lambda: static_table(table, "ops", trace))
    made_in, widget = seconds(lambda: browse(table))
    shown_in = mount(page, widget) / 1000
    line(
        "table, 2,000 operations: opens (kernel and browser)",
        f"{made_in + shown_in:.2f} s",
        "limit 1 s",
    )
    line("  static stand-in of 50 rows", f"{static_in:.2f} s")
    line("  its HTML", f"{len(html) / 1e3:.0f} kB")


def measure_others(page: Page) -> None:
    trace = fake_trace()
    made_in, widget = seconds(lambda: underflow(trace))
    line("underflow explorer, 102 tensors: opens", f"{made_in + mount(page, widget) / 1000:.2f} s")
    made_in, html = seconds(lambda: report(trace)._repr_html_())
    line("report", f"{made_in:.2f} s", f"{len(html) / 1e3:.0f} kB")


def faulty() -> Trace:
    """A run of a small net that a root of zero ends."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(12)))
    x = torch.randn(64, 32)
    with watch(model, on_fault="record") as trace:
        for i in range(3):
            h = model(x)
            away = h - (h.detach() if i == 2 else h.detach() + 1)
            (away**2).sum(-1).sqrt().mean().backward()
    return trace


def measure_fault(page: Page) -> None:
    """From the fault to the card on the screen, and from there to its fixes; then a selection in
    all views."""
    _ = faulty().culprit  # imports are paid once
    trace = faulty()
    found_in, _ = seconds(lambda: trace.culprit)
    made_in, view = seconds(lambda: ReportView(trace.report()))
    shown_in = mount(page, view) / 1000
    line("fault to report on the screen", f"{found_in + made_in + shown_in:.2f} s", "limit 1 s")
    tried_in, _ = seconds(lambda: trace.report().body())
    line("  its fixes tried, the rest of the page made", f"{tried_in:.2f} s")
    views = [ReportView(trace.report()), stepper(trace), underflow(trace), browse(trace.ops)]
    places = trace.ops.index[trace.ops["phase"] == "backward"][:40]
    times = [seconds(lambda at=at: setattr(trace, "at", int(at)))[0] for at in places]
    told = f"a selection in {len(views)} views, in the kernel, median"
    line(told, f"{1000 * statistics.median(times):.0f} ms", "limit 100 ms")


def main() -> None:
    torch.set_num_threads(1)
    names = (os.environ.get("CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, filter(None, names))), None)
    if path is None:
        sys.exit(
            "no Chromium found; install it (apt-get install chromium) or set CHROMIUM to its path"
        )
    report(fake_trace())._repr_html_()  # imports and fonts are paid once
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1200, "height": 850})
        mount(page, stepper(fake_trace()))
        measure_fault(page)
        measure_stepper(page)
        measure_tables(page)
        measure_others(page)
        browser.close()


if __name__ == "__main__":
    main()
