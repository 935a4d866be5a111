"""What happened at one backward node, told in a sentence from its numbers."""

from __future__ import annotations

from typing import Any

import pandas as pd

from nanlab.trace.nodes import ACCUMULATES
from nanlab.views._html import number, plural


def story(row: pd.Series[Any], numel: int = 0, forward_bad: int = 0) -> str:
    """The local story of a row of ``trace.backward``.

    numel: elements of its outgoing gradient, 0 if unknown. forward_bad: non-finite values in the
    forward result.
    """
    if row.get("name") == ACCUMULATES:
        return _received(row)
    nan_in, inf_in, nan_out, inf_out = (
        _count(row, f"grad_{part}") for part in ("in_nan", "in_inf", "out_nan", "out_inf")
    )
    if not nan_in + inf_in and nan_out + inf_out:
        return _born(row, nan_out, inf_out, forward_bad)
    if nan_in + inf_in and not nan_out + inf_out:
        return f"Healed: {_bad(nan_in, inf_in)} came in, and every outgoing value is finite."
    if inf_in and not nan_in and nan_out:
        return (
            f"Turned: {_bad(0, inf_in)} came in and became {_bad(nan_out, inf_out)}; 0 × inf and"
            " inf − inf are NaN."
        )
    if nan_in + inf_in:
        return (
            f"Carried: {_bad(nan_in, inf_in)} came in, {_bad(nan_out, inf_out)} went on. Its origin"
            " is further up."
        )
    return _finite(row, numel)


def _received(row: pd.Series[Any]) -> str:
    """What a parameter's gradient gets."""
    name = str(row.get("parameter") or "a leaf tensor")
    nan, inf = _count(row, "grad_in_nan"), _count(row, "grad_in_inf")
    if nan + inf:
        return f"{name} receives {_bad(nan, inf)}: the optimizer would write them."
    rms = row.get("grad_in_rms")
    size = "" if rms is None or pd.isna(rms) else f", rms {number(float(rms))}"
    return f"{name} receives its gradient: every value is finite{size}."


def _born(row: pd.Series[Any], nan: int, inf: int, forward_bad: int) -> str:
    if forward_bad or row.get("status") == "carried":
        held = (
            f"; the forward result already holds {plural(forward_bad, 'non-finite value')}"
            if forward_bad
            else ""
        )
        return f"Carried from forward: finite gradients came in, {_bad(nan, inf)} went out{held}."
    zeros = _count(row, "grad_in_zero")
    if nan and not inf and zeros:
        told = f"{_bad(nan, 0)}; {plural(zeros, 'zero')} came in"
        return f"Born here: incoming 0, local derivative inf, product NaN ({told})."
    if nan and inf and zeros:
        return (
            "Born here: the local derivative is inf. Times an incoming 0 it is NaN, else inf"
            f" ({_bad(nan, inf)})."
        )
    if inf and not nan:
        return (
            f"Born here: finite came in, local derivative or product inf ({_bad(0, inf)} went out)."
        )
    return (
        f"Born here: only finite values came in, {_bad(nan, inf)} went out; the local derivative is"
        " not a number."
    )


def _finite(row: pd.Series[Any], numel: int) -> str:
    flushed, zeros = _count(row, "fp16_zero"), _count(row, "grad_out_zero")
    told = "Finite in, finite out"
    if numel and zeros == numel:
        return f"{told}; every outgoing value is 0, so no signal passes."
    if not pd.isna(row["gain"]):
        told += f"; rms × {float(row['gain']):.3g}"
    if flushed:
        share = f" ({100 * flushed / numel:.3g} %)" if numel else ""
        told += f"; float16 would flush {plural(flushed, 'value')}{share} to zero"
    return told + "."


def _bad(nan: int, inf: int) -> str:
    return " and ".join(
        part for part in (f"{nan:,} NaN" if nan else "", f"{inf:,} inf" if inf else "") if part
    )


def _count(row: pd.Series[Any], name: str) -> int:
    value = row.get(name)
    return 0 if value is None or pd.isna(value) else int(value)
