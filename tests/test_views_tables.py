"""Tables show themselves in a notebook and stay DataFrames."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from fake_trace import big_trace, exponent_histogram, fake_trace

import nanlab
from nanlab.views.columns import blocks, sparkline
from nanlab.views.html import ended, near_end, number
from nanlab.views.tables import BLOCK, as_table, browse


def ops_table(faulty: bool = True) -> pd.DataFrame:
    trace = fake_trace(faulty)
    return as_table(trace.ops, "ops", trace)


def test_it_is_the_same_dataframe_underneath() -> None:
    trace = fake_trace()
    table = as_table(trace.ops, "ops", trace)
    assert isinstance(table, pd.DataFrame)
    pd.testing.assert_frame_equal(pd.DataFrame(table), trace.ops)
    assert (table.dtypes == trace.ops.dtypes).all()
    assert table.groupby("op")["nan"].sum().equals(trace.ops.groupby("op")["nan"].sum())
    assert repr(table) == repr(trace.ops)


def test_trouble_is_on_top_with_its_word_line_and_histogram() -> None:
    html = ops_table()._repr_html_()
    first = html.split("<tbody>")[1].split("</tr>")[0]
    assert ">born<" in first
    assert "train.py:6" in first
    assert "█" in first
    assert "rgba" in first


def test_an_order_that_the_user_chose_is_kept() -> None:
    table = ops_table().sort_values("rms", ascending=False)
    first = table._repr_html_().split("<tbody>")[1].split("</tr>")[0]
    assert f">{number(int(table['position'].iloc[0]))}<" in first


def test_what_is_taken_from_a_table_shows_itself_too() -> None:
    born = ops_table().query("status == 'born'")
    assert "1 row<" in born._repr_html_()
    assert "█" in born._repr_html_()
    assert "█" in copy.deepcopy(born)._repr_html_()


def test_without_its_telling_columns_it_shows_as_pandas_does() -> None:
    part = ops_table()[["op", "nan"]]
    assert part._repr_html_() == pd.DataFrame(part)._repr_html_()


@pytest.mark.parametrize("kind", ["ops", "backward", "parameters", "steps"])
def test_whatever_pandas_makes_of_a_table_can_be_shown(kind: str) -> None:
    trace = fake_trace()
    table = as_table(getattr(trace, kind), kind, trace)
    made = [table.T, pd.concat([table, table], axis=1), table.isna(), table.describe()]
    made += [table.drop(columns=name) for name in table.columns]
    for each in made:
        assert "<table" in (each._repr_html_() or "")
        assert repr(each)
    assert table.T._repr_html_() == pd.DataFrame(table.T)._repr_html_()


def test_a_pickled_table_leaves_the_trace_behind() -> None:
    table = ops_table()
    again = pickle.loads(pickle.dumps(table))
    pd.testing.assert_frame_equal(again, table)
    assert again.trace is None
    assert "born" in again._repr_html_()


def test_a_static_table_has_at_most_fifty_rows_and_survives_a_sanitiser() -> None:
    trace = big_trace(200)
    html = as_table(trace.ops, "ops", trace)._repr_html_()
    assert html.count("<tr") == 51
    assert "2,000 rows; trouble first, the top 50 are shown" in html
    assert not any(tag in html for tag in ("<style", "<svg", "<script", "var(--", "position:"))
    assert len(html) < 150_000


def test_text_of_the_program_cannot_become_html() -> None:
    trace = fake_trace()
    trace.ops["module"] = "<img src=x onerror=alert(1)>"
    assert "<img" not in as_table(trace.ops, "ops", trace)._repr_html_()


@pytest.mark.parametrize("kind", ["backward", "steps", "parameters"])
def test_the_other_tables_show_too(kind: str) -> None:
    trace = fake_trace()
    html = as_table(getattr(trace, kind), kind, trace)._repr_html_()
    assert html.count("<tr") == min(50, len(getattr(trace, kind))) + 1


def test_a_loss_that_is_no_number_is_marked() -> None:
    steps = pd.DataFrame({"step": [0, 1], "loss": pd.array([0.5, float("inf")], dtype="Float64")})
    rows = as_table(steps, "steps")._repr_html_().split("<tbody>")[1].split("</tr>")
    assert "background:rgba" not in rows[0].replace("transparent", "")
    assert "background:rgba" in rows[1]


@pytest.mark.parametrize(
    ("kind", "texts", "troubled"),
    [
        ("ops", ["op", "module", "where", "status", "phase", "shape", "dtype"], True),
        ("backward", ["name", "parameter", "module", "where", "status"], True),
        ("parameters", ["parameter"], False),
        ("steps", [], False),
    ],
)
def test_a_long_table_offers_the_filter_and_the_order_that_it_has(
    kind: str, texts: list[str], troubled: bool
) -> None:
    with nanlab.watch() as trace:
        torch.ones(3, requires_grad=True).exp().sum().backward()
    made = browse(getattr(trace, kind))
    assert (made.texts, made.troubled) == (texts, troubled)


def test_a_sparkline_shows_every_value_somewhere() -> None:
    values = np.array([1e-30, 1.0, 1.0, 1e30])
    assert [c != " " for c in blocks(exponent_histogram(values))].count(True) == 3
    assert "4 non-zero finite values" in sparkline(exponent_histogram(values))
    assert blocks(exponent_histogram(np.zeros(3))).strip() == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567, "1,234,567"),
        (0.0, "0"),
        (1.5e-9, "1.50e-9"),
        (3.14159, "3.14"),
        (65504.0, "65,504"),
        (pd.NA, "–"),
    ],
)
def test_numbers_read_easily(value: object, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), "NaN"),
        (float("-inf"), "-inf"),
        (None, "–"),
        (np.int64(1000), "1,000"),
        (2e30, "2e30"),
        (0.00099997, "0.001"),
        (999.7, "1,000"),
    ],
)
def test_numbers_of_every_kind_have_a_text(value: object, text: str) -> None:
    assert number(value) == text


def test_a_long_table_sends_only_the_rows_in_view() -> None:
    trace = big_trace(200)
    made = browse(as_table(trace.ops, "ops", trace))
    assert made.total == 2_000
    assert len(made.block["rows"]) == BLOCK
    made.want = 1_000
    assert made.block["first"] == 1_000
    assert len(str(made.get_state())) < 250_000


@pytest.mark.parametrize("kind", ["steps", "parameters"])
def test_a_long_table_of_steps_opens_at_that_of_the_culprit(kind: str) -> None:
    trace = fake_trace()
    assert trace.culprit is not None
    made = browse(as_table(getattr(trace, kind), kind, trace))
    assert made.frame["step"].iloc[made.selected] == trace.culprit.step
    made.selected = 0  # a click
    assert browse(as_table(fake_trace(faulty=False).steps, "steps", trace)).troubled is False


def test_a_long_path_of_a_module_shows_its_end() -> None:
    trace = fake_trace()
    trace.ops["module"] = "backbone.layers." + "x" * 60 + ".projection"
    html = as_table(trace.ops, "ops", trace)._repr_html_()
    assert f">…{'x' * 28}.projection</span>" in html and 'title="backbone.layers.' in html


def test_a_long_table_filters_and_sorts_in_the_kernel() -> None:
    trace = fake_trace()
    made = browse(as_table(trace.ops, "ops", trace))
    made.needle = "SQRT"
    assert made.total == len(made.frame) == trace.ops["source"].str.contains("sqrt").sum()
    made.needle = ""
    rms = [title for title, _ in made.heads].index("rms")
    made.sort_by = [rms, False]
    assert made.frame["rms"].iloc[0] == trace.ops["rms"].max()
    made.sort_by = [-1, True]
    assert made.frame["status"].iloc[0] == "born"
    made.needle = "no such op"
    assert (made.total, made.block["rows"]) == (0, [])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("train.py:41", "train.py:41"),
        (
            "/home/somebody/" + "projects/" * 6 + "models/head.py:9",
            "…/" + "projects/" * 4 + "models/head.py:9",
        ),
        ("/srv/" + "x" * 60 + ".py:9", "…" + "x" * 54 + ".py:9"),
        ("layers." + "x" * 60 + ".weight", "…" + "x" * 52 + ".weight"),
    ],
)
def test_of_a_long_path_or_name_the_end_is_shown(text: str, shown: str) -> None:
    assert near_end(text) == shown
    assert (text == shown) or f'title="{text}"' in ended(text)


def scaled_training(steps: int) -> nanlab.Trace:
    """Steps of which a loss scaler skips the first; none: a forward pass alone."""
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-12)
    with nanlab.watch(model, shadow="float32", on_fault="record") as trace:
        for _ in range(steps):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(torch.randn(6, 4)).square().mean()
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return trace


def test_a_table_without_rows_has_the_types_that_it_has_with_some() -> None:
    none, some = scaled_training(0), scaled_training(4)
    for name in ("ops", "backward", "parameters", "skips", "edges", "shadow"):
        empty, filled = getattr(none, name), getattr(some, name)
        assert len(filled) and not len(empty), name
        assert empty.dtypes.to_dict() == filled.dtypes.to_dict(), name
    assert not len(none.backward[none.backward.file.str.endswith(".py")])
    assert none.ranks["file"].dtype == some.ops["file"].dtype
