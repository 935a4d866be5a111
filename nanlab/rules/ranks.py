"""Faults of other processes in a distributed run, and what arrived from them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd

from nanlab.findings.fault import Fault, bad_values, plural
from nanlab.findings.rule import Edit, Finding, Fix, Match, rule
from nanlab.formats import format_of
from nanlab.trace.ranks import ARRIVED, Ranks, as_sent
from nanlab.trace.recording import Recording

SHOWN = 4  # ranks whose part of a sum is told


@rule(
    family="arrival",
    origins=("rank",),
    example="""
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())  # two ranks here
        batch = torch.zeros(2)
        batch.numpy()[:] = float("nan")  # stands for what rank 1 sent
        dist.recv(batch, 1)  # here
        weight = torch.ones(2, requires_grad=True)
        (batch * weight).sum().backward()
        dist.destroy_process_group()
    """,
    fix={'float("nan")': "1.0"},
)
def from_another_rank(fault: Fault) -> Match | None:
    """A collective brought a bad value from another rank; this one gave finite values.

    Look there: the program of this rank is healthy up to this line.
    """
    stats = fault.recording.stats(fault.position)
    given = [s for s in map(fault.recording.stats, fault.parents(fault.position)) if s is not None]
    name = fault.name or "a collective"
    rows = [_counted("given by this rank", s) for s in given] + [_counted(f"after {name}", stats)]
    bad = bad_values(stats.nan, stats.posinf + stats.neginf)
    return Match(
        f"{name} brought {bad} among {plural(stats.numel, 'value')} from another rank",
        evidence=pd.DataFrame(rows),
    )


def _counted(tensor: str, stats: Any) -> dict[str, Any]:
    return {
        "tensor": tensor,
        "values": stats.numel,
        "NaN": stats.nan,
        "infinite": stats.posinf + stats.neginf,
    }


def across_ranks(recording: Recording, findings: list[Finding]) -> list[Finding]:
    """The findings of this process, and what began before them in another."""
    ranks = recording.ranks
    if ranks is None:
        return findings
    if ranks.overflowed:
        findings = [_overflow_of_sum(recording, f, ranks) or f for f in findings]
    own = [f if f.cause == ARRIVED else replace(f, rank=ranks.rank) for f in findings]
    here, first = [f for f in own if f.cause != ARRIVED], ranks.first
    culprit = next((f for f in here if f.harmful and f.severity == "error"), None)
    if first is None or first["rank"] == ranks.rank:
        return own
    if culprit is not None and culprit.step <= first["step"]:
        return own
    struck = next((f for f in own if f.cause == ARRIVED), None)
    return [_told(ranks, first, struck), *here]


def as_struck(recording: Recording, arrived: Finding, rank: int, world: int) -> dict[str, Any]:
    """What this rank tells the others of a bad value that came from them: of a sum, its part."""
    summed = _overflow_of_sum(recording, arrived, Ranks(rank, world))
    if summed is None:
        return as_sent(arrived, rank)
    limit = format_of(recording.at(arrived.position).dtype).max
    part = {"largest": _largest_given(recording, arrived.position), "limit": limit}
    return as_sent(summed, rank) | part


def _largest_given(recording: Recording, position: int) -> float:
    """The largest value that this rank gave to a collective."""
    given = [s for s in map(recording.stats, recording.parents(position)) if s is not None]
    return max((s.largest for s in given), default=0.0)


def _overflow_of_sum(recording: Recording, finding: Finding, ranks: Ranks) -> Finding | None:
    """A sum over ranks, too large for its dtype though each gave finite values."""
    if finding.cause != ARRIVED or "reduce" not in finding.op:
        return None
    stats, dtype = recording.stats(finding.position), recording.at(finding.position).dtype
    if stats is None or stats.nan or not dtype.is_floating_point:
        return None
    largest, name = _largest_given(recording, finding.position), str(dtype).removeprefix("torch.")
    gave = ", ".join(f"rank {s['rank']} up to {s['largest']:.4g}" for s in ranks.struck[:SHOWN])
    return replace(
        finding,
        cause="dtype-overflow",
        title=(
            f"the sum over {ranks.world} ranks overflows {name}: this rank gave values up to"
            f" {largest:.4g}"
        ),
        explanation=(
            f"Every rank gave finite values ({gave}), and {name} ends at"
            f" {format_of(dtype).max:.5g}."
        ),
        fixes=[
            Fix(
                "divide before the sum instead of after it",
                "tensor /= dist.get_world_size()  # then all_reduce",
            ),
            Fix("sum in float32", "tensor = tensor.float()  # then all_reduce"),
        ],
    )


def _told(ranks: Ranks, first: dict[str, Any], struck: Finding | None) -> Finding:
    """A finding reported by another process, as one of this process.

    struck: the finding of its arrival here, if it arrived.
    """
    came = " It had not arrived here when the run ended."
    if struck is not None:
        came = f" It arrived here by {struck.op}."
    others = "" if len(ranks.told) == 1 else f" Ranks with their own culprit: {_listed(ranks)}."
    names = "severity phase op module step file line source".split()
    told = {name: first[name] for name in names}
    return Finding(
        cause=ARRIVED,
        title=f"rank {first['rank']}: {first['title']}",
        explanation=f"{first['cause']}: {first['explanation']}{came}{others}",
        symptom=struck.symptom if struck is not None else first["symptom"],
        evidence=struck.evidence if struck is not None else pd.DataFrame(),
        path=struck.path if struck is not None else [],
        fixes=[
            Fix(**(fix | {"edits": tuple(Edit(**edit) for edit in fix["edits"])}))
            for fix in first["fixes"]
        ],
        position=struck.position if struck is not None else -1,
        harmful=True,
        rank=first["rank"],
        **told,
    )


def _listed(ranks: Ranks) -> str:
    return ", ".join(map(str, sorted(each["rank"] for each in ranks.told)))
