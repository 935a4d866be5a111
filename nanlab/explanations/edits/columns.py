"""Columns of tables that are read from files: marks of what is missing, how numbers are written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from nanlab.explanations.edits.names import SPELLINGS
from nanlab.explanations.site import (
    MISSING,
    Candidate,
    Site,
    Tensor,
    callee,
    elements,
    spliced,
    with_more,
)

_OF_TEXTS = re.compile("numpy.object_|could not convert string to float|numpy.str_")
_FILLED = re.compile(
    r"\.(dropna|fillna|interpolate|isna|isnull|notna|notnull|[fb]fill)\(|nan_to_num"
)
_COLUMNS: Any = (np.ndarray, pd.Series, pd.api.extensions.ExtensionArray)
_MARKS = 3  # texts that say that a value is missing


def read_as_numbers(site: Site) -> Iterator[Candidate]:
    """A table read with what its files write for a missing value, or with the signs of its numbers:
    a column with other values is one of texts."""
    if not _OF_TEXTS.search(site.text):
        return
    values = [v for frame, _ in site.frames for v in frame.f_locals.values()]
    columns = [c for v in values if isinstance(v, pd.DataFrame) for c in _texts_of(v)]
    options = [*_options([*columns])]
    for source in site.program.texts if options else ():
        missing = "" if _FILLED.search(source.text) else ".dropna()"
        for node in source.nodes:
            if not isinstance(node, ast.Call) or not re.match("read_[a-z]", callee(node)):
                continue
            own = {keyword.arg for keyword in node.keywords}
            for option in (o for o in options if o.partition("=")[0] not in own):
                more = missing if option.startswith("na_values") else ""
                call, text = with_more(source, node, option)
                yield Candidate(0.2, spliced(source, [(call, text + more)]))


def dummies_as_numbers(site: Site) -> Iterator[Candidate]:
    """A column for each kind of something as numbers: as truth values, beside columns of numbers,
    they make a table one of objects. The kinds in one column as their numbers."""
    for source in site.program.texts if "numpy.object_" in site.text else ():
        for node in source.nodes:
            if isinstance(node, ast.Call) and callee(node) == "get_dummies":
                if not any(keyword.arg == "dtype" for keyword in node.keywords):
                    pair = with_more(source, node, "dtype=float")
                    yield Candidate(0.22, spliced(source, [pair]))
            elif callee(node) == "astype" and re.search(r"\(.category.\)$", source.part(node)):
                text = f"{source.part(node)}.cat.codes"
                yield Candidate(0.22, spliced(source, [(node, text)]))
            elif callee(node) == "Categorical":
                yield Candidate(0.22, spliced(source, [(node, f"{source.part(node)}.codes")]))


def words_as_classes(site: Site) -> Iterator[Candidate]:
    """The number of each word among all, where a tensor was made of an array or a column of
    words."""
    told = re.search("dimensions 'str'|data type 'str'|numpy.(object_|str_)", site.text)
    for place in site.raising[:1] if told is not None else ():
        names = {
            value.__name__: n for n, value in place.names().items() if value is np or value is pd
        }
        for node in (n for call in place.calls() for n in call.args[:1]):
            value = place.value(node)
            words = [*value] if isinstance(value, _COLUMNS) and np.ndim(value) else []
            if not words or not all(isinstance(w, str) and not _is_number(w) for w in words):
                continue
            near, text = replace(place, distance=0.0), place.text(node)
            if "pandas" in names:
                yield near.replaced(
                    0.3, (node, f"{names['pandas']}.factorize({text}, sort=True)[0]")
                )
            if "numpy" in names:
                numbers = f"{names['numpy']}.unique({text}, return_inverse=True)[1]"
                yield near.replaced(0.32, (node, numbers))


def of_what_is_missing(site: Site) -> Iterator[Candidate]:
    """A category of its own for what is missing in a column, whose number is -1 else: where the
    categories are made, or before they are counted."""
    known = (f.f_locals.get("input") for f in site.inner if f.f_code.co_name == "embedding")
    if not any(isinstance(v, Tensor) and -1 in elements(v) for v in known):
        return
    for place in site.statements():
        for call in (c for c in place.calls() if callee(c) == "astype"):
            column: Any = call.func.value  # type: ignore[attr-defined]
            values, text = place.value(column), place.text(column)
            missing = isinstance(values, pd.Series) and values.isna().any()
            if not missing or not re.search(r"\(.category.\)$", place.text(call)):
                continue
            words = all(isinstance(each, str) for each in values.dropna().unique())
            filled = f'{text}.fillna("missing")' if words else f"{text}.fillna(-1)"
            at = replace(place, distance=0.0)
            yield at.replaced(0.2, (column, filled))
            read = [p for p in site.statements() if text in p.text(p.statement)]
            if isinstance(column, ast.Subscript) and read[0].source is place.source:
                yield replace(read[0], distance=0.0).written(0.25, f"{text} = {filled}\n{{}}")


def spelled_as_keys(site: Site) -> Iterator[Candidate]:
    """The words of a column as a dict has them that numbers them: for others ``map`` gives NaN."""
    missing = re.search(r"-9223372036854775808|non-finite|NA|nan", site.text) is not None
    for place in site.statements():
        for call in (c for c in place.calls() if callee(c) == "map" and len(c.args) == 1):
            if not isinstance(call.func, ast.Attribute):
                continue
            column, table = call.func.value, call.args[0]
            known = place.value(table)
            written = [getattr(key, "value", None) for key in getattr(table, "keys", ())]
            keys = [*known] if isinstance(known, dict) else written
            values = place.value(column)
            column_of = values.dropna().tolist() if isinstance(values, pd.Series) else []
            words = {each for each in column_of if isinstance(each, str)}
            unknown = values is MISSING and missing and all(isinstance(k, str) for k in keys)
            forms = SPELLINGS.items() if keys and (words - {*keys} or unknown) else ()
            texts = words or {key for key in keys if isinstance(key, str)}
            for far, (form, spelling) in enumerate(forms):
                if {*map(spelling, texts)} <= {*keys}:
                    text = place.text(column) + form.replace(".", ".str.")
                    own = replace(place, distance=0.0)
                    yield own.replaced(0.2 + 0.2 * unknown + 0.02 * far, (column, text))


def _texts_of(table: pd.DataFrame) -> Iterator[list[str]]:
    """The different texts of each column of a table that has some."""
    for _, column in table.items():
        texts = [each for each in column.unique() if isinstance(each, str)]
        if texts and not isinstance(column.dtype, pd.CategoricalDtype):
            yield texts


def _options(columns: list[list[str]]) -> Iterator[str]:
    """How a table is read where all texts of a column, or most, say numbers."""
    marks: list[str] = []
    for texts in columns:
        others = [each for each in texts if not _is_number(each)]
        forms = (("thousands", r"\d{1,3}(,\d{3})+(\.\d+)?"), ("decimal", r"\d+,\d+"))
        for sign, form in forms if others else ():
            if all(re.fullmatch(rf"\s*-?{form}\s*", each) for each in others):
                yield f'{sign}=","'
                others = []
                break
        if len(others) <= _MARKS and 2 * len(others) <= len(texts):
            marks += (each for each in others if each not in marks)
    if marks:
        given: Any = marks[0] if len(marks) == 1 else marks
        yield "na_values=" + repr(given).replace("'", '"')


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
