"""Where tensors are computed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import torch

from nanlab.explanations.site import (
    Candidate,
    Place,
    Site,
    Tensor,
    callee,
    function_around,
    spliced,
)

_REFUSED = re.compile(
    r"not compiled with \w+ enabled|No CUDA GPUs|no NVIDIA driver|not linked with"
)
_HERE = '"cuda" if torch.cuda.is_available() else "cpu"'


def on_device_here(site: Site) -> Iterator[Candidate]:
    """A device that is not there as the one of a tensor at hand, that the program chose, or that
    is there: where one was asked for, and everywhere."""
    raised = site.raising[0]
    for source in site.program.texts if _REFUSED.search(site.text) else ():
        pairs: list[tuple[ast.AST, str]] = []
        for node in source.nodes:
            first = getattr(node, "lineno", 0)
            place = site.place(source, node, 0.0) if first else raised  # type: ignore[arg-type]
            if callee(node) == "cuda" and isinstance(node, ast.Call):
                of = source.part(node.func)[: -len(".cuda")]
                pairs.append((node, f"{of}.to({_device(site, place, node)})"))
            elif isinstance(node, ast.Call) and callee(node) != "is_available":
                given = [k.value for k in node.keywords if k.arg == "device"]
                chosen = callee(node) in ("device", "autocast", "GradScaler")
                given += node.args if chosen or callee(node) == "to" else []
                for each in (n for n in given if _is_cuda(n)):
                    new = _HERE if chosen else _device(site, place, node)
                    pairs.append((each, new))
            elif isinstance(node, ast.Assign) and _is_cuda(node.value):
                pairs.append((node.value, _HERE))
        own = {id(n) for n in raised.parts()}
        alone = [pair for pair in pairs if id(pair[0]) in own]
        yield Candidate(0.3, spliced(source, alone))
        yield Candidate(0.32, spliced(source, pairs))


def _is_cuda(node: ast.AST) -> bool:
    value = getattr(node, "value", None)
    return isinstance(value, str) and re.fullmatch(r"(cuda|gpu|mps|xpu)(:\d+)?", value) is not None


def _device(site: Site, place: Place, node: ast.AST) -> str:
    """The device of what a function was given, the one that the program chose, or the one here."""
    function = function_around(place.source, node)
    inside = place.frame.f_code.co_name == getattr(function, "name", "")
    given = [each.arg for each in function.args.args] if function is not None and inside else []
    for name in given:
        if isinstance(place.frame.f_locals.get(name), Tensor):
            return f"{name}.device"
    chosen = [n for n, v in place.names().items() if isinstance(v, torch.device)]
    named = [n for n, v in place.names().items() if v == "cpu" and "dev" in n]
    if chosen or named:
        return (chosen or named)[0]
    return f'"{torch.empty(0).device}"' if function is not None else _HERE
