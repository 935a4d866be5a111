"""Findings and cure of a trace as plain data for a capsule, which runs no source text."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import pandas as pd

from nanlab.errors import CapsuleError
from nanlab.findings.rule import Edit, Finding, Findings, Fix, Severity, Verdict
from nanlab.rules.cure import Chain, Cure

if TYPE_CHECKING:
    from nanlab.trace import Trace

_TEXTS = ("cause", "title", "explanation", "phase", "op", "module", "file", "source", "symptom")
_NUMBERS = ("step", "line", "position")


def told(trace: Trace) -> dict[str, Any]:
    """The answers of a trace: plain numbers, texts, lists, tuples and tables by name.

    Fixes that were not tried yet are tried.
    """
    chain = trace.chain
    return {
        "findings": [_finding(each) for each in trace.own_findings],
        "hidden": [_finding(each) for each in chain.faults[1:]] if chain else [],
        "cure": _cure(chain.cure) if chain and chain.cure else None,
    }


def recalled(answers: Any) -> tuple[Findings, Chain | None]:
    """Findings, faults and cure as told. Raises CapsuleError where the data is none."""
    _expect(isinstance(answers, dict) and answers.keys() == {"findings", "hidden", "cure"})
    found = Findings(_read_finding(each) for each in _list(answers["findings"]))
    hidden = [_read_finding(each) for each in _list(answers["hidden"])]
    cure = None if answers["cure"] is None else _read_cure(answers["cure"])
    culprit = next((f for f in found if f.harmful), None)
    if culprit is None or not (hidden or cure):
        return found, None
    faults = [culprit, *hidden]
    return found, Chain(faults, [list(each.fixes) for each in faults], cure)


def _finding(finding: Finding) -> dict[str, Any]:
    plain = {f.name: _plain(getattr(finding, f.name)) for f in fields(finding)}
    plain["fixes"] = [_fix(each) for each in finding.fixes]
    plain["evidence"] = _table(finding.evidence)
    return plain


def _fix(fix: Fix) -> dict[str, Any]:
    return {name: _plain(value) for name, value in asdict(fix).items()}


def _cure(cure: Cure) -> dict[str, Any]:
    plain = {
        f.name: _plain(getattr(cure, f.name))
        for f in fields(cure)
        if f.name not in ("replay", "fixes", "edits")
    }
    edits = [_plain(asdict(each)) for each in cure.edits]
    return plain | {"fixes": [_fix(each) for each in cure.fixes], "edits": edits}


def _table(frame: pd.DataFrame) -> dict[str, Any]:
    """A frame whose rows have numbers: per column its dtype and its values."""
    columns = [(str(name), str(c.dtype), _plain(c.tolist())) for name, c in frame.items()]
    return {"rows": len(frame), "columns": columns}


def _plain(value: Any) -> Any:
    """The value in types that a file holds; what has none as text."""
    if value is None or value is pd.NA or value.__class__ in (bool, int, float, str):
        return None if value is pd.NA else value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, tuple):
        return tuple(_plain(each) for each in value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    return next((kind(value) for kind in (int, float) if isinstance(value, kind)), str(value))


# -- reading


def _expect(condition: object) -> None:
    if not condition:
        raise CapsuleError("the capsule is damaged: its findings are none")


def _list(value: Any) -> list[Any]:
    _expect(isinstance(value, list))
    return value  # type: ignore[no-any-return]


def _fields(value: Any, kind: type) -> dict[str, Any]:
    _expect(isinstance(value, dict) and value.keys() == {f.name for f in fields(kind)})
    return dict(value)


def _read_finding(value: Any) -> Finding:
    told = _fields(value, Finding)
    _expect(all(isinstance(told[name], str) for name in _TEXTS))
    _expect(all(told[name].__class__ is int for name in _NUMBERS))
    _expect(told["severity"] in get_args(Severity) and isinstance(told["harmful"], bool))
    _expect(all(told[name] is None or told[name].__class__ is int for name in ("node", "rank")))
    _expect(all(each.__class__ is int for each in _list(told["samples"])))
    _expect(all(isinstance(each, dict) for each in _list(told["path"])))
    _expect(told["library"] is None or [*map(type, told["library"])] == [str, int, str])
    told["fixes"] = [_read_fix(each) for each in _list(told["fixes"])]
    told["evidence"] = _read_table(told["evidence"])
    return Finding(**told)


def _read_fix(value: Any) -> Fix:
    told = _fields(value, Fix)
    _expect(all(isinstance(told[name], str) for name in ("title", "code")))
    _check_verdict(told)
    told["edits"] = _read_edits(told["edits"])
    return Fix(**told)


def _read_cure(value: Any) -> Cure:
    _expect(isinstance(value, dict))
    told = _fields({**value, "replay": None}, Cure)
    _check_verdict(told)
    told["fixes"] = [_read_fix(each) for each in _list(told["fixes"])]
    told["edits"] = _read_edits(told["edits"])
    return Cure(**told)


def _check_verdict(told: dict[str, Any]) -> None:
    _expect(told["verdict"] in get_args(Verdict) and isinstance(told["why"], str))
    measures = (told["distortion"], told["gradient_max"])
    _expect(all(each is None or isinstance(each, float) for each in measures))


def _read_edits(value: Any) -> tuple[Edit, ...]:
    _expect(isinstance(value, list | tuple))
    edits = [Edit(**_fields(each, Edit)) for each in value]
    for edit in edits:
        _expect(all(isinstance(each, str) for each in (edit.file, edit.text, edit.old)))
        _expect(all(each.__class__ is int for each in (edit.first, edit.last)))
    return tuple(edits)


def _read_table(value: Any) -> pd.DataFrame:
    _expect(isinstance(value, dict) and value.keys() == {"rows", "columns"})
    _expect(value["rows"].__class__ is int)
    made = {}
    for name, dtype, values in _list(value["columns"]):
        _expect(isinstance(name, str) and isinstance(dtype, str) and isinstance(values, list))
        _expect(len(values) == value["rows"])
        made[name] = pd.Series(values, dtype=dtype)
    return pd.DataFrame(made)
