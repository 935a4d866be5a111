"""The widgets on a bare page, without kernel: what they draw, how they behave by keyboard, whom
they leave out."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

sys.path.insert(0, str(Path(__file__).parent))
from bare_page import mount
from fake_trace import Builder, big_trace, fake_trace

import nanlab
from nanlab.analysis.precision import cast_shares, format_bins
from nanlab.views.charts import dense
from nanlab.views.report import report
from nanlab.views.report_widget import ReportView
from nanlab.views.stepper import stepper
from nanlab.views.tables import as_table, browse
from nanlab.views.underflow import FORMATS, underflow

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def bare(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1100, "height": 800}, reduced_motion="reduce")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    page.close()
    assert errors == []


def widgets() -> dict[str, Any]:
    trace = fake_trace()
    return {
        "stepper": stepper(trace),
        "underflow": underflow(trace),
        "table": browse(as_table(trace.ops, "ops", trace)),
        "report": ReportView(report(trace)),
    }


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [f"{v['id']}: {v['nodes'][0]['html'][:150]}" for v in found]


@pytest.mark.parametrize("name", ["stepper", "underflow", "table", "report"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing_against_it(bare: Page, name: str, dark: bool) -> None:
    mount(bare, widgets()[name], dark)
    bare.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert violations(bare) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_against_the_report_file(
    browser: Browser, tmp_path: Path, scheme: str
) -> None:
    page = browser.new_page(color_scheme=scheme, offline=True)
    page.goto(report(fake_trace()).to_html(tmp_path / "report.html").as_uri())
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    found = violations(page)
    page.close()
    assert found == []


def test_the_static_picture_of_the_stepper_fits_a_notebook_in_a_window_of_1280(bare: Page) -> None:
    bare.unroute_all()
    bare.goto("about:blank")
    bare.set_content(f'<div style="width:1060px">{stepper(fake_trace()).static_html()}</div>')
    wide = bare.locator("div:has(> table)").last
    assert wide.evaluate("node => node.scrollWidth - node.clientWidth") <= 0


def test_buttons_lead_to_the_columns_of_a_table_that_are_out_of_sight(bare: Page) -> None:
    trace = fake_trace()
    last = bare.locator(".nl-browse thead th").last
    more, back = (bare.get_by_role("button", name=n) for n in ("More columns", "Columns to the"))
    try:
        bare.set_viewport_size({"width": 640, "height": 800})
        mount(bare, browse(as_table(trace.ops, "ops", trace)))
        expect(back).to_be_disabled()
        more.click()
        expect(back).to_be_enabled()
        bare.locator(".nl-scroller").evaluate("node => { node.scrollLeft = 9999; }")
        expect(more).to_be_disabled()
        expect(last).to_be_in_viewport(ratio=0.9)
        back.click()
        expect(more).to_be_enabled()
        bare.set_viewport_size({"width": 2600, "height": 800})
        expect(more).to_be_hidden()
    finally:
        bare.set_viewport_size({"width": 1100, "height": 800})


def test_a_filter_without_a_hit_says_so_in_the_table(bare: Page) -> None:
    trace = fake_trace()
    view = browse(as_table(trace.ops, "ops", trace))
    view.needle = "no such thing"
    mount(bare, view)
    expect(bare.locator(".nl-browse tbody")).to_have_text("No row holds “no such thing”.")


def test_the_static_picture_is_hidden_also_where_the_notebook_puts_it_later(bare: Page) -> None:
    """A notebook that is opened again may draw the widget before the page has the picture."""
    view = stepper(fake_trace())
    mount(bare, view)
    bare.evaluate(
        """name => {
            const area = (child) => `<div class="jp-OutputArea">${child}</div>`;
            const picture = (id) =>
                `<div class="jp-OutputArea-child" id="${id}"><p class="${name}">static</p></div>`;
            document.querySelector('main').insertAdjacentHTML('beforeend',
                area(picture('ours') + '<div id="cell"></div>') + area(picture('copy')));
            document.getElementById('cell').append(document.getElementById('host'));
        }""",
        view.fallback,
    )
    expect(bare.locator("#ours")).to_be_hidden()
    expect(bare.locator("#copy")).to_be_visible()  # of another notebook, without the widget
    bare.evaluate("window.leave()")
    expect(bare.locator("#ours")).to_be_visible()


def test_first_bad_next_previous_and_slider_move_one_selection(bare: Page) -> None:
    mount(bare, stepper(fake_trace()))
    tree, slider = (
        bare.get_by_role("tree", name="Backward graph"),
        bare.get_by_role("slider", name="Backward step"),
    )
    chosen = tree.get_by_role("treeitem", selected=True)
    expect(chosen).to_contain_text("SqrtBackward0")
    expect(bare.get_by_label("Backward pass")).to_be_hidden()  # there is but one in this step
    bare.get_by_role("button", name="Next").click()
    expect(chosen).to_contain_text("SumBackward1")
    bare.get_by_role("button", name="Previous").click()
    bare.get_by_role("button", name="Previous").click()
    expect(chosen).to_contain_text("MeanBackward0")
    expect(bare.get_by_role("button", name="Previous")).to_be_disabled()
    bare.get_by_role("button", name="First bad").click()
    expect(chosen).to_contain_text("SqrtBackward0")
    slider.fill("17")
    expect(slider).to_have_attribute("aria-valuetext", "18 of 18: AccumulateGrad")
    expect(chosen).to_contain_text("encoder.0")
    assert bare.evaluate("window.model.get('position')") == 17


def test_groups_open_and_close_and_keep_their_worst_status(bare: Page) -> None:
    mount(bare, stepper(fake_trace()))
    tree = bare.get_by_role("tree", name="Backward graph")
    group = tree.get_by_role("treeitem", name="encoder.2")
    expect(group).to_have_attribute("aria-expanded", "false")
    expect(group).to_contain_text("carried")
    before = tree.get_by_role("treeitem").count()
    group.get_by_text("encoder.2").click()
    expect(group).to_have_attribute("aria-expanded", "true")
    expect(tree.get_by_role("treeitem")).to_have_count(before + 4)
    expect(tree.get_by_role("treeitem", name="ReluBackward0")).to_have_attribute("aria-level", "3")


def test_the_keyboard_alone_walks_the_graph_and_keeps_its_keys(bare: Page) -> None:
    mount(bare, stepper(fake_trace()))
    bare.evaluate(
        "window.heard = []; document.addEventListener('keydown', (e) => window.heard.push(e.key))"
    )
    tree = bare.get_by_role("tree", name="Backward graph")
    chosen = tree.get_by_role("treeitem", selected=True)
    tree.focus()
    for key, text in [
        ("Home", "MeanBackward0"), ("ArrowDown", "SqrtBackward0"), ("ArrowUp", "MeanBackward0"), ("End", "encoder.0"),
        ("ArrowRight", "ReluBackward0"), ("ArrowLeft", "encoder.0"), ("Home", "MeanBackward0"), ("n", "SqrtBackward0"),
        ("n", "SumBackward1"), ("a", "SumBackward1"), ("d", "SumBackward1"), ("d", "SumBackward1"),
    ]:  # fmt: skip
        bare.keyboard.press(key)
        expect(chosen, key).to_contain_text(text)
    bare.keyboard.press("/")
    expect(bare.get_by_role("searchbox", name="Find node")).to_be_focused()
    assert bare.evaluate("window.heard") == []
    bare.keyboard.press("Control+s")
    assert bare.evaluate("window.heard") == ["Control", "s"] or bare.evaluate("window.heard") == [
        "s"
    ]


def test_plain_keys_are_marked_as_the_widgets_own_before_a_capturing_notebook_hears_them(
    bare: Page,
) -> None:
    mount(bare, stepper(fake_trace()))
    bare.evaluate(
        """window.seen = []; document.addEventListener('keydown',
        (e) => window.seen.push([e.key, e.target.hasAttribute('data-lm-suppress-shortcuts')]), true)"""
    )
    bare.get_by_role("tree", name="Backward graph").focus()
    for key in ("d", "Escape"):
        bare.keyboard.press(key)
    bare.keyboard.press("Control+s")
    seen = bare.evaluate("window.seen")
    assert [pair for pair in seen if pair[0] != "Control"] == [
        ["d", True],
        ["Escape", False],
        ["s", False],
    ]


def test_a_node_shows_what_it_saved_and_a_leaf_its_parameter(bare: Page) -> None:
    net = torch.nn.Linear(2, 2)
    with nanlab.watch(net, on_fault="record") as trace:
        (0 * net(torch.ones(1, 2))).sqrt().sum().backward()
    mount(bare, stepper(trace))
    saved = bare.get_by_role("region", name="Saved for backward")
    expect(saved.get_by_role("row", name="_saved_result")).to_contain_text("result")
    bare.get_by_role("searchbox", name="Find node").fill("weight")
    expect(bare.get_by_role("treeitem", selected=True)).to_contain_text("AccumulateGrad")
    expect(bare.get_by_role("region", name="Selected node")).to_contain_text("weight")


def test_the_first_loss_is_told_and_found_by_a_button(bare: Page) -> None:
    x = torch.tensor([1e-5, 1e-6, 0.5]).half()
    with nanlab.watch(on_fault="record") as trace:
        big = torch.full((64,), 1e-7)
        (x * x).sum()
        (big / 100).half()
    made = underflow(trace)
    made.selected = 2
    mount(bare, made)
    expect(bare.get_by_text("Signal is lost first at")).to_contain_text(
        "flushes 66.7 % of its non-zero values"
    )
    bare.get_by_role("button", name="First loss").click()
    at = bare.evaluate("window.model.get('selected')")
    assert (made.rows.iloc[at]["op"], made.rows.iloc[at]["dtype"]) == ("mul", "float16")


def test_find_node_opens_the_group_and_goes_on_with_enter(bare: Page) -> None:
    mount(bare, stepper(fake_trace()))
    search = bare.get_by_role("searchbox", name="Find node")
    search.fill("addmm")
    chosen = bare.get_by_role("treeitem", selected=True)
    expect(chosen).to_contain_text("AddmmBackward0")
    expect(bare.get_by_text("1 of 3")).to_be_visible()
    first = bare.evaluate("window.model.get('position')")
    search.press("Enter")
    expect(bare.get_by_text("2 of 3")).to_be_visible()
    assert bare.evaluate("window.model.get('position')") > first
    search.fill("nothing of this name")
    expect(bare.get_by_text("none found")).to_be_visible()


def test_play_goes_on_by_itself_and_stops_at_the_end(bare: Page) -> None:
    made = stepper(fake_trace())
    mount(bare, made)
    play = bare.get_by_role("button", name="Play")
    bare.get_by_role("slider", name="Backward step").fill("15")
    play.click()
    expect(play).to_have_attribute("aria-pressed", "true")
    bare.wait_for_function("() => window.model.get('position') === 17")
    expect(play).to_have_attribute("aria-pressed", "false")


@pytest.mark.parametrize("colour", ["status", "gain", "underflow"])
def test_colours_change_and_the_words_with_them(bare: Page, colour: str) -> None:
    mount(bare, stepper(fake_trace()))
    bare.get_by_label("Colour by").select_option(colour)
    row = bare.get_by_role("treeitem", selected=True)
    expect(row).to_contain_text(
        {"status": "born", "gain": "born · × 2.01", "underflow": "% flushed"}[colour]
    )
    assert bare.evaluate(
        "document.querySelector('.nl-stepper').classList.contains('nl-by-status')"
    ) == (colour == "status")
    tint = row.locator(".nl-value").evaluate("node => getComputedStyle(node).backgroundColor")
    assert (tint == "rgba(0, 0, 0, 0)") == (colour != "status"), (
        "a number bears no colour of a status"
    )


def test_no_two_edges_share_a_lane_at_one_row(bare: Page) -> None:
    mount(bare, stepper(fake_trace()))
    clashes = bare.evaluate("""async () => {
      const { lanes } = await window.module;
      let seed = 1; const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
      const clashes = [];
      for (let trial = 0; trial < 50; trial++) {
        const n = 60, edges = new Map();
        for (let i = 0; i < 90; i++) {
          const a = random(n - 1), b = a + 1 + random(Math.min(12, n - 1 - a));
          edges.set(a * n + b, [a, b]);
        }
        const { lane } = lanes(n, [...edges.values()]);
        const first = new Map();
        for (const [a, b] of edges.values()) first.set(b, Math.min(a, first.get(b) ?? n));
        for (const [b, a] of first)
          for (let r = a + 1; r < b; r++) if (lane[r] === lane[b]) clashes.push([trial, a, r, b]);
      }
      return clashes;
    }""")
    assert clashes == []


def test_the_browser_counts_shares_as_python_does(bare: Page) -> None:
    trace = fake_trace()
    made = underflow(trace)
    made.chosen = [format_bins(dtype).name for dtype in FORMATS]
    mount(bare, made)
    slider, table = (
        bare.get_by_role("slider", name="Loss scale (log2)"),
        bare.get_by_role("status", name="Shares"),
    )
    for selected, scale in [(0, 0), (0, 24), (5, -16), (9, 40), (20, 7)]:
        bare.get_by_label("Tensor").select_option(str(selected))
        slider.fill(str(scale))
        exponents = trace.histogram(int(made.rows["position"].iloc[selected]))
        for i, dtype in enumerate(FORMATS):
            cast = cast_shares(exponents, dtype, scale)
            cells = table.get_by_role("row").nth(i + 1).get_by_role("cell").all_inner_texts()
            shown = [int(text.split()[-1].replace(",", "")) for text in cells]
            assert shown == [cast.zero, cast.subnormal, cast.normal, cast.overflow, cast.limit]


def test_best_scales_are_taken_over_by_a_click(bare: Page) -> None:
    made = underflow(fake_trace(faulty=False))
    mount(bare, made)
    bare.get_by_role("button", name="for this tensor").click()
    assert bare.evaluate("window.model.get('log2_scale')") == made.tensors[0]["best"]["float16"]
    bare.get_by_role("button", name="gradients").click()
    assert bare.evaluate("window.model.get('log2_scale')") == made.gradients["best"]["float16"]


def test_the_buttons_tell_the_loss_scale_itself(bare: Page) -> None:
    """The slider counts from the scale of the run."""
    made = underflow(fake_trace(faulty=False))
    at = next(i for i, tensor in enumerate(made.tensors) if tensor["scalable"])
    made.tensors = [t | {"run_scale": 16 if t["scalable"] else 0} for t in made.tensors]
    made.gradients = made.gradients | {"run_scale": 16}
    made.selected = at
    mount(bare, made)
    best = made.tensors[at]["best"]["float16"]
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    here = bare.get_by_role("button", name="for this tensor")
    expect(here).to_have_text(f"2{str(best + 16).translate(digits)} for this tensor")
    here.click()
    assert bare.evaluate("window.model.get('log2_scale')") == best
    made.gradients = made.gradients | {"run_scale": None}
    mount(bare, made)
    expect(bare.get_by_role("button", name="for all")).to_contain_text(" × the run’s for all")


def test_a_half_precision_result_stands_beside_its_float32_twin(bare: Page) -> None:
    trace = fake_trace()
    position = int(underflow(trace).rows["position"].iloc[0])
    twin = trace.histogram(position)
    trace.shadow = pd.DataFrame({"position": [position], "flushed": [12], "exponents": [twin]})
    mount(bare, underflow(trace))
    expect(bare.get_by_role("img", name="as it ran, float32")).to_be_visible()
    expect(bare.get_by_role("img", name="its float32 twin")).to_be_visible()
    note = bare.get_by_role("status", name="Shares")
    expect(note).to_contain_text("By histogram. The step is being run again at loss scale 2¹⁶…")
    expect(note).to_contain_text("of the float32 twin")
    assert bare.evaluate("window.model.saved") == [["asked", [0, 0]]]


def test_the_slider_asks_for_one_replay_at_a_time_and_shows_its_answer(bare: Page) -> None:
    made = underflow(fake_trace())
    mount(bare, made)
    slider = bare.get_by_role("slider", name="Loss scale (log2)")
    for scale in range(1, 6):
        slider.fill(str(scale))
    asked = "window.model.saved.filter(each => each[0] === 'asked').map(each => each[1])"
    assert bare.evaluate(asked) == [[0, 0]]
    counts = {"numel": 9, "zero": 4, "subnormal": 3, "normal": 2, "overflow": 0}
    answer = {"reason": "", "data": made.tensors[0]["data"], "twin": None}
    answer["shares"] = {"float16": counts}
    reply = "answer => window.model.set('replayed', answer)"
    bare.evaluate(reply, answer | {"of": [0, 0]})
    assert bare.evaluate(asked) == [[0, 0], [0, 5]]
    bare.evaluate(reply, answer | {"of": [0, 5]})
    note = bare.get_by_role("status", name="Shares")
    expect(note).to_contain_text("By replay: the step was run again at loss scale 2")
    cells = note.get_by_role("row").nth(1).get_by_role("cell").all_inner_texts()
    assert [int(text.split()[-1]) for text in cells] == [4, 3, 2, 0]
    slider.fill("6")
    bare.evaluate(reply, {"of": [0, 6], "reason": "it was not recorded"})
    expect(note).to_contain_text("By histogram: it was not recorded.")


def test_the_drawn_bars_carry_every_value(bare: Page) -> None:
    made = underflow(fake_trace())
    mount(bare, made)
    titles = bare.locator(".nl-plots figure svg rect title").all_text_contents()
    drawn = sum(int(title.split(": ")[1].split()[0].replace(",", "")) for title in titles)
    assert drawn == made.tensors[0]["data"]["numel"]


def heights(page: Page) -> dict[str, float]:
    """Height of each bar of the first histogram by its count, as a share of the tallest."""
    found = page.locator(".nl-plots figure svg").first.evaluate(
        "svg => [...svg.querySelectorAll('.nl-bar')].map(b => [b.textContent.split(': ')[1],"
        " b.height.baseVal.value])"
    )
    most = max(height for _, height in found)
    return {text.split()[0]: height / most for text, height in found}


def test_heights_are_shares_of_an_axis_and_logarithmic_by_a_click(bare: Page) -> None:
    build = Builder()
    values = np.repeat(np.array([0.2, 5.0], dtype=np.float32), [990, 10])
    build.op(values, step=0, phase="forward", op="mul", module="", line=4)
    mount(bare, underflow(build.trace([], [])))
    drawn = heights(bare)
    assert drawn["10"] == pytest.approx(10 / 990, abs=0.02), (
        "one in a hundred looks like one in a hundred"
    )
    axis = bare.locator(".nl-plots figure svg .nl-axis").all_text_contents()
    assert {"25 %", "50 %", "75 %"} & set(axis)
    log = bare.get_by_role("button", name="log")
    log.click()
    expect(log).to_have_attribute("aria-pressed", "true")
    assert heights(bare)["10"] > 0.3
    assert {"10", "100"} <= set(bare.locator(".nl-plots figure svg .nl-axis").all_text_contents())


def test_tensors_are_found_by_words_and_stand_by_module(bare: Page) -> None:
    made = underflow(fake_trace())
    mount(bare, made)
    select = bare.get_by_role("combobox", name="Tensor")
    modules = list(dict.fromkeys(t["module"] or "outside any module" for t in made.tensors))
    assert select.locator("optgroup").evaluate_all("groups => groups.map(g => g.label)") == modules
    bare.get_by_role("searchbox", name="Search").fill("sqrt step 1")
    wanted = [
        i for i, t in enumerate(made.tensors) if "sqrt" in t["label"] and "step 1" in t["label"]
    ]
    offered = select.locator("option").evaluate_all("options => options.map(o => Number(o.value))")
    assert sorted(offered) == sorted({0, *wanted}), "the tensor at hand stays in the list"
    expect(bare.get_by_role("status", name="Matches")).to_have_text(
        f"{len(wanted)} of {len(made.tensors)} tensors"
    )
    select.select_option(str(wanted[0]))
    assert bare.evaluate("window.model.get('selected')") == wanted[0]


def test_a_table_asks_for_the_rows_in_view_only(bare: Page) -> None:
    trace = big_trace(200)
    made = browse(as_table(trace.ops, "ops", trace))
    mount(bare, made)
    assert bare.locator("tbody tr").count() < 60
    bare.get_by_role("region", name="Table").evaluate("(node) => { node.scrollTop = 1000 * 23; }")
    bare.wait_for_function(
        "() => window.model.saved.some(([name, value]) => name === 'want' && value > 900)"
    )
    bare.get_by_role("button", name="rms").click()
    assert bare.evaluate("window.model.get('sort_by')")[0] == [
        title for title, _ in made.heads
    ].index("rms")
    bare.get_by_role("searchbox", name="Filter").fill("sqrt")
    bare.wait_for_function("() => window.model.get('needle') === 'sqrt'")


@pytest.mark.parametrize("name", ["stepper", "underflow", "table", "report"])
def test_a_widget_cleans_up_after_itself_and_brings_the_static_picture_back(
    bare: Page, name: str
) -> None:
    made = widgets()[name]
    mount(bare, made)
    shown = bare.evaluate(
        """async (name) => {
      window.leave();
      const still = Object.assign(document.createElement('div'), { className: name, textContent: 'static' });
      document.body.append(still);
      const widget = (await window.module).default, host = document.createElement('div');
      const model = new window.model.constructor({ ...window.model.state });
      const leave = widget.render({ model, el: host });
      const shown = () => getComputedStyle(still).display, during = shown();
      leave();
      return [during, shown(), Object.values(model.handlers).flat().length];
    }""",
        made.fallback,
    )
    assert shown == ["none", "block", 0]


def test_the_static_picture_takes_no_room_until_a_widget_would_have_come(bare: Page) -> None:
    made = stepper(fake_trace())
    bare.unroute_all()
    bare.goto("about:blank")
    bare.set_content(made._summary()["text/html"])
    static = bare.locator(f".{made.fallback}")
    heights = bare.evaluate(
        "name => [document.querySelector('.' + name).offsetHeight]", made.fallback
    )
    assert heights == [0]
    bare.wait_for_function(
        "name => document.querySelector('.' + name).offsetHeight > 300", arg=made.fallback
    )
    expect(static).to_be_visible()


@pytest.mark.parametrize(
    "counts", ["102 NaN, 13 inf, 13 −inf", "61,530 NaN, 9,990 inf, 9,990 −inf"]
)
def test_the_digits_at_the_right_of_a_line_s_operations_are_not_cut(
    bare: Page, counts: str
) -> None:
    mount(bare, ReportView(report(fake_trace())))
    bare.evaluate("document.querySelector('.nl-more').open = true")
    bare.evaluate(
        """text => { for (const cell of document.querySelectorAll('.nl-chosen-line td:nth-child(4)'))
            cell.textContent = text.replace(/ (?=NaN|inf|−)/g, '\u00a0'); }""",
        counts,
    )
    wide = bare.locator(".nl-chosen-line .nl-wide")
    assert wide.evaluate("node => node.scrollWidth - node.clientWidth") <= 0


@pytest.mark.examples(every=3)
@pytest.mark.parametrize("width", [900, 784])
@pytest.mark.parametrize("name", ["stepper", "underflow", "table", "report"])
def test_a_narrow_notebook_cuts_nothing_off(bare: Page, name: str, width: int) -> None:
    """784 px are what JupyterLab leaves of a window of 900."""
    bare.set_viewport_size({"width": width, "height": 800})
    try:
        mount(bare, widgets()[name])
        bare.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        over = bare.evaluate(
            """() => [...document.querySelectorAll('#host *')].filter((node) => {
            const scrolls = (p) => p && (/auto|scroll|hidden/.test(getComputedStyle(p).overflowX) || scrolls(p.parentElement));
            return node.getBoundingClientRect().right > innerWidth && !scrolls(node.parentElement);
        }).map((node) => node.outerHTML.slice(0, 120))"""
        )
        assert over == []
        if name == "report" and width < 800:
            code = bare.get_by_role("region", name="Annotated source").bounding_box()
            beside = bare.locator(".nl-beside").bounding_box()
            assert code is not None and beside is not None
            assert beside["y"] >= code["y"] + code["height"], "one below the other"
    finally:
        bare.set_viewport_size({"width": 1100, "height": 800})


def step_time(page: Page) -> float:
    """Milliseconds of a step back and forth in the stepper: the least of several."""
    return float(
        page.evaluate(
            """() => { const [back, forth] = [...document.querySelectorAll('button')].slice(2, 4);
        const round = () => { const start = performance.now();
            for (const button of [forth, back]) { button.click(); document.body.offsetHeight; }
            return performance.now() - start; };
        return Math.min(...Array.from({ length: 12 }, round)); }"""
        )
    )


def test_a_step_among_ten_thousand_nodes_takes_no_longer_than_among_fifty(bare: Page) -> None:
    mount(bare, stepper(fake_trace()))
    small = step_time(bare)
    mount(bare, stepper(big_trace()))
    assert bare.get_by_role("treeitem").count() < 60
    assert step_time(bare) < 8 * small + 5


def test_formats_reach_the_browser_as_they_are() -> None:
    exponents = fake_trace().histogram(0)
    assert sum(dense(exponents)["counts"]) == exponents.sum()
    assert asdict(format_bins(torch.float16)) == {
        "name": "float16",
        "zero_limit": -25,
        "normal_limit": -15,
        "overflow_limit": 15,
    }


def test_bars_have_the_colours_of_what_their_values_became(bare: Page) -> None:
    """Exactly 2^-25 rounds to 0 in float16, and what is above it in the same bin does not."""
    factor = torch.tensor([2.0**-26, 2.0**-25, 2.0**-25, 1.5 * 2.0**-25])
    leaf = torch.ones(4, requires_grad=True)
    with nanlab.watch() as trace:
        (leaf * factor).sum().backward()
    made = underflow(trace)
    made.selected = next(
        i for i, tensor in enumerate(made.tensors) if tensor["label"].startswith("mul · gradient")
    )
    for scale, bars in ((0, {"zero": 3, "subnormal": 1}), (3, {"zero": 0, "subnormal": 4})):
        made.log2_scale = scale
        made._answer(made.selected, scale)
        mount(bare, made)
        found = dict.fromkeys(bars, 0)
        for name in bars:
            titles = bare.locator(f".nl-plots .nl-bar.nl-{name}:not(.nl-band) title")
            found[name] = sum(int(t.split(": ")[1].split()[0]) for t in titles.all_text_contents())
        assert found == bars
        cells = bare.get_by_role("status", name="Shares").get_by_role("row").nth(1)
        assert [cells.locator(f".nl-share-{name}").inner_text().split()[-1] for name in bars] == [
            str(count) for count in bars.values()
        ]
        assert bare.get_by_text("the limits move instead").count() == (scale > 0)


@pytest.mark.parametrize("width", [1164, 524, 468])
def test_no_remark_lies_on_the_code_and_nothing_scrolls_the_page(bare: Page, width: int) -> None:
    bare.set_viewport_size({"width": width, "height": 900})
    mount(bare, ReportView(report(fake_trace())))
    bare.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    over = bare.evaluate(
        """[...document.querySelectorAll('.nl-line')].filter((line) => {
          const [text, remark] = ['.nl-text', '.nl-remark'].map((n) => line.querySelector(n)?.getBoundingClientRect());
          return remark && remark.top < text.bottom - 1; }).length"""
    )
    wide = bare.evaluate("document.documentElement.scrollWidth - innerWidth")
    tops = bare.evaluate(
        """[...document.querySelectorAll('.nl-buttons')].map((n) =>
          new Set([...n.children].map((b) => b.getBoundingClientRect().top)).size)"""
    )
    bare.set_viewport_size({"width": 1100, "height": 800})
    assert (over, wide <= 0, {*tops}) == (0, True, {1})
