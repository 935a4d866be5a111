"""Findings and cure of a trace as plain data for a capsule, which runs no source text."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, get_args, get_origin

import numpy as np
import pandas as pd

from nanlab.errors import CapsuleError
from nanlab.findings.rule import Finding, Findings
from nanlab.program.capsule import fits, hints_of
from nanlab.rules.cure import Chain, Cure
from nanlab.trace import Trace

_UNTOLD = "replay"  # the field of a cure that is made anew


def told(trace: Trace) -> dict[str, Any]:
    """The answers of a trace: plain numbers, texts, lists, tuples and tables by name.

    Fixes that were not tried yet are tried.
    """
    chain = trace.chain
    return {
        "findings": _plain(list(trace.own_findings)),
        "hidden": _plain(chain.faults[1:] if chain else []),
        "cure": _plain(chain.cure) if chain and chain.cure else None,
    }


def recalled(answers: Any) -> tuple[Findings, Chain | None]:
    """Findings, faults and cure as told. Raises CapsuleError where the data is none."""
    _expect(isinstance(answers, dict) and answers.keys() == {"findings", "hidden", "cure"})
    found = Findings(_made(answers["findings"], list[Finding]))
    hidden = _made(answers["hidden"], list[Finding])
    cure = None if answers["cure"] is None else _made(answers["cure"], Cure)
    culprit = next((f for f in found if f.harmful), None)
    if culprit is None or not (hidden or cure):
        return found, None
    faults = [culprit, *hidden]
    return found, Chain(faults, [list(each.fixes) for each in faults], cure)


def _plain(value: Any) -> Any:
    """The value in types that a file holds: records and frames as tables; what has none as text."""
    if value is None or value is pd.NA or value.__class__ in (bool, int, float, str):
        return None if value is pd.NA else value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, pd.DataFrame):  # its rows have numbers
        columns = [(str(name), str(c.dtype), _plain(c.tolist())) for name, c in value.items()]
        return {"rows": len(value), "columns": columns}
    if is_dataclass(value):
        told = {f.name: getattr(value, f.name) for f in fields(value) if f.name != _UNTOLD}
        return _plain(told)
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return next((kind(value) for kind in (int, float) if isinstance(value, kind)), str(value))


def _made(value: Any, hint: Any) -> Any:
    """The value of a type that was told. Raises CapsuleError for any other."""
    kind: Any = get_origin(hint) or hint
    inside = get_args(hint)
    if is_dataclass(hint):
        hints = {name: each for name, each in hints_of(kind).items() if name != _UNTOLD}
        _expect(isinstance(value, dict) and value.keys() == hints.keys())
        return kind(**{name: _made(value[name], each) for name, each in hints.items()})
    if hint is pd.DataFrame:
        return _table(value)
    if kind is UnionType and is_dataclass(inside[0]):  # a record or none
        return None if value is None else _made(value, inside[0])
    if inside and is_dataclass(inside[0]):
        _expect(isinstance(value, list | tuple))
        return kind(_made(each, inside[0]) for each in value)
    _expect(fits(value, hint))
    return value


def _table(value: Any) -> pd.DataFrame:
    _expect(isinstance(value, dict) and value.keys() == {"rows", "columns"})
    _expect(fits(value["columns"], list[tuple[str, str, list[Any]]]))
    _expect(all(len(values) == value["rows"] for _, _, values in value["columns"]))
    columns = {name: pd.Series(each, dtype=dtype) for name, dtype, each in value["columns"]}
    return pd.DataFrame(columns)


def _expect(condition: object) -> None:
    if not condition:
        raise CapsuleError("the capsule is damaged: its findings are none")
