"""Where tensors are computed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import torch

from nanlab.explanations.site import Candidate, Site, Tensor, callee, spliced
from nanlab.explanations.trial import Source

_REFUSED = re.compile(
    r"not compiled with \w+ enabled|No CUDA GPUs|no NVIDIA driver|not linked|of device string"
)
_HERE = '"cuda" if torch.cuda.is_available() else "cpu"'


def on_device_here(site: Site) -> Iterator[Candidate]:
    """A device that is not there as the one of a tensor at hand, that the program chose, or that
    is there: where one was asked for, and everywhere."""
    own = {id(n) for n in site.raising[0].parts()}
    for source in site.program.texts if _REFUSED.search(site.text) else ():
        pairs: list[tuple[ast.AST, str]] = []
        seen: set[int] = set()  # those that are given, compared, or chosen already
        for node in source.nodes:
            if callee(node) == "cuda" and isinstance(node, ast.Call):
                of = source.part(node.func)[: -len(".cuda")]
                pairs.append((node, f"{of}.to({_device(site, source, node)})"))
            elif isinstance(node, ast.Call) and callee(node) not in _CHOOSING:
                given = [k.value for k in node.keywords if k.arg == "device"]
                given += node.args if callee(node) == "to" else []
                new = _device(site, source, node) if any(map(_is_cuda, given)) else ""
                pairs += [(each, new) for each in given if _is_cuda(each)]
                seen |= {id(each) for each in given}
            elif isinstance(node, (ast.Compare, ast.IfExp)):
                seen |= {id(each) for each in ast.walk(node)}
        nodes = [n for n in source.nodes if _is_cuda(n) and id(n) not in seen]
        pairs += [(node, _HERE) for node in nodes]
        alone = [pair for pair in pairs if id(pair[0]) in own]
        yield Candidate(0.3, spliced(source, alone))
        yield Candidate(0.32, spliced(source, pairs))


def loaded_here(site: Site) -> Iterator[Candidate]:
    """A file that was saved from a device that is not there, loaded to the one that the program
    chose, or that is there."""
    for place in site.raising if "deserialize object on" in site.text else ():
        for call in (c for c in place.calls() if callee(c) == "load"):
            given = [k.value for k in call.keywords if k.arg == "map_location"]
            here = _device(site, place.source, call)
            here = '"cpu"' if here == _HERE and not torch.cuda.is_available() else here
            if given:
                yield place.replaced(0.3, (given[0], here))
            else:
                yield place.added(0.3, call, f"map_location={here}")


# What is given the device that the program chooses.
_CHOOSING = ("device", "autocast", "GradScaler")


def _is_cuda(node: ast.AST) -> bool:
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    return isinstance(value, str) and re.fullmatch(r"(cuda|gpu|mps|xpu)(:\d+)?", value) is not None


def _device(site: Site, source: Source, node: ast.AST) -> str:
    """The device of what a function was given, the one that the program chose, or the one here."""
    place = site.place(source, node, 0.0)  # type: ignore[arg-type]
    function, names = place.function, place.names().items()
    inside = place.frame.f_code.co_name == getattr(function, "name", "")
    given = [each.arg for each in function.args.args] if function is not None and inside else []
    tensors = [n for n in given if isinstance(place.frame.f_locals.get(n), Tensor)]
    if tensors:
        return f"{tensors[0]}.device"
    chosen = [
        n for n, v in names if isinstance(v, torch.device) or ("dev" in n and str(v) == "cpu")
    ]
    return chosen[0] if chosen else _HERE
