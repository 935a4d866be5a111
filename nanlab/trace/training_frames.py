"""Parameters and training steps as DataFrames."""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Any

import numpy as np
import pandas as pd

from nanlab.history import Loss, OptimizerStep, ParameterStep
from nanlab.trace.columns import Array, counts_array, lookup, stat_columns, values_array
from nanlab.trace.nodes import BackwardPass
from nanlab.trace.recording import Recording

_PARAMETER_STATS = ("numel", "nan", "inf", "zero", "rms", "absmax")


def parameter_numbers(recording: Recording, limit: int) -> None:
    """Turn the parameter rows before position ``limit`` into numbers, so that their statistics can
    be folded."""
    rows = [r for r in recording.training.parameters if r.position < limit]
    if rows:
        recording.training.parameters = [
            r for r in recording.training.parameters if r.position >= limit
        ]
        recording.folded_parameters.append(_parameter_columns(recording, rows))


def _parameter_columns(recording: Recording, rows: list[ParameterStep]) -> dict[str, Array]:
    columns: dict[str, Array] = {
        "position": np.array([r.position for r in rows], np.int64),
        "owner": np.array([r.owner for r in rows], np.int64),
        "lr": np.array([np.nan if r.lr is None else r.lr for r in rows], np.float64),
    }
    for name in ("value", "gradient", "used", "update"):
        chosen = [getattr(r, name) for r in rows]
        stats = [
            -1 if c is None else c if name == "update" else recording.stat_of(c) for c in chosen
        ]
        numbers = stat_columns(recording, np.array(stats, np.int64))
        columns[f"{name}_known"] = numbers["known"]
        for stat in _PARAMETER_STATS:
            if stat == "inf":
                column = numbers["posinf"] + numbers["neginf"]
            elif stat == "absmax":
                column = np.fmax(np.abs(numbers["min"]), np.abs(numbers["max"]))
            else:
                column = numbers[stat]
            columns[f"{name}_{stat}"] = column
        columns[f"{name}_stat"] = np.array(stats, np.int64)
    return columns


def parameter_columns(recording: Recording) -> dict[str, Array]:
    """The numbers of every parameter in every step, as arrays of equal length."""
    blocks = [*recording.folded_parameters]
    if recording.training.parameters or not blocks:
        blocks.append(_parameter_columns(recording, recording.training.parameters))
    return {name: np.concatenate([b[name] for b in blocks]) for name in blocks[0]}


def parameters_frame(recording: Recording) -> pd.DataFrame:
    """One row for each parameter and step: its value, its gradient, its update (new value - old
    value)."""
    merged = parameter_columns(recording)
    frame: dict[str, Any] = {
        "step": np.searchsorted(recording.starts, merged["position"], side="right") - 1,
        "parameter": lookup(recording.parameter_names, merged["owner"])
        if recording.parameter_names
        else merged["owner"],
        "numel": counts_array(
            np.maximum(merged["value_numel"], merged["gradient_numel"]),
            merged["value_known"] | merged["gradient_known"],
        ),
    }
    for name in ("value", "gradient", "update"):
        for stat in ("nan", "inf", "zero"):
            frame[f"{name}_{stat}"] = counts_array(
                merged[f"{name}_{stat}"], merged[f"{name}_known"]
            )
        for stat in ("rms", "absmax"):
            frame[f"{name}_{stat}"] = values_array(merged[f"{name}_{stat}"])
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = merged["update_rms"] / merged["value_rms"]
    ratio[~np.isfinite(ratio)] = np.nan
    frame["update_ratio"] = values_array(ratio)
    frame["lr"] = values_array(merged["lr"])
    return pd.DataFrame(frame)


def _position(event: Any) -> int:
    return int(event.position)


def step_numbers(recording: Recording, step: int) -> dict[str, Any]:
    """The summary of one training step."""
    low = recording.starts[step]
    high = recording.starts[step + 1] if step + 1 < len(recording.starts) else recording.end + 1
    history = recording.training

    def within(items: list[Any]) -> list[Any]:
        """Events are in the order of their positions, and there is one or more of each kind a
        step."""
        return items[
            bisect_left(items, low, key=_position) : bisect_left(items, high, key=_position)
        ]

    losses, scales, steps = (
        within(history.losses),
        within(history.scales),
        within(history.optimizer_steps),
    )
    rows = within(history.parameters)
    scale = scales[-1].before if scales else None
    skipped = sum(s.skipped for s in scales)
    norm = _norm(recording, rows, scale if scale and history.scales else 1.0)
    clock, seconds = recording.clock, None
    if step + 1 < len(clock):
        seconds = clock[step + 1] - clock[step]
    bad = [p for p in recording.bad if low <= p < high]
    rates = {s.rates[0] for s in steps if s.rates}
    words = (
        [recording.status.get(p, 0) for p in range(low, high)]
        if recording.status and high - low < 10**6
        else []
    )
    return {
        "step": step,
        "loss": _loss(recording, losses, steps)
        if losses
        else _root_of_gradients(recording, within(recording.passes)),
        "gradient_norm": norm,
        "loss_scale": scale,
        "skipped": skipped,
        "seconds": seconds,
        "optimizer_steps": len(steps),
        "lr": rates.pop() if len(rates) == 1 else None,
        "ops": min(high, recording.end) - low,
        "nonfinite": len(bad),
        "born": words.count(1) + words.count(3),
    }


def _loss(recording: Recording, losses: list[Loss], steps: list[OptimizerStep]) -> float | None:
    """The last loss, and those before it on the same line to whose gradients its own were added.

    Of those that a closure gave to one optimizer step it is the first, which ``Optimizer.step``
    returns: the one before the update.
    """
    inside = [
        loss for loss in losses if any(s.position <= loss.position < s.end for s in steps[-1:])
    ]
    if inside:
        return _unscaled(recording, inside[0])
    total, first = _unscaled(recording, losses[-1]), losses[-1]
    for loss in reversed(losses[:-1]):
        if not first.adds or loss.line != first.line:
            break
        value, first = _unscaled(recording, loss), loss
        total = total + value if total is not None and value is not None else None
    return total


def _unscaled(recording: Recording, loss: Loss) -> float | None:
    """The value of a loss, a loss scale of the program's own divided out."""
    value = recording.value(loss.source)
    by_hand = (
        not loss.scaled
        and loss.line in recording.training.scaled_lines
        and math.frexp(loss.factor)[0] == 0.5
    )
    return value / loss.factor if value is not None and by_hand else value


def _root_of_gradients(recording: Recording, passes: list[BackwardPass]) -> float | None:
    """The last single number whose gradients were asked of ``torch.autograd.grad``, in a step
    without ``backward``."""
    for run in reversed(passes):
        stats = recording.stats(run.roots[0]) if len(run.roots) == 1 else None
        if stats is not None and stats.numel == 1:
            return recording.value(run.roots[0])
    return None


def _norm(recording: Recording, rows: list[ParameterStep], scale: float) -> float | None:
    """Norm of all gradients together, the loss scale divided out; None without gradients."""
    stats = np.array(
        [recording.stat_of(r.gradient) for r in rows if r.gradient is not None], np.int64
    )
    if not len(stats):
        return None
    numbers = stat_columns(recording, stats)
    if numbers["nan"].any():
        return float("nan")
    if numbers["posinf"].any() or numbers["neginf"].any():
        return float("inf")
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.sum(np.nan_to_num(numbers["rms"]) ** 2 * numbers["numel"]))) / scale


def steps_frame(recording: Recording) -> pd.DataFrame:
    """One row for each training step. A NaN or infinite loss stays what it is; <NA> means that
    there was none."""
    rows = [*recording.folded]
    rows += [step_numbers(recording, s) for s in range(len(rows), len(recording.starts))]
    frame = pd.DataFrame(rows)
    for name in ("loss", "gradient_norm", "loss_scale", "seconds", "lr"):
        values = [row[name] for row in rows]
        missing = np.array([v is None for v in values], bool)
        numbers = np.array([0.0 if v is None else v for v in values], np.float64)
        frame[name] = pd.arrays.FloatingArray(numbers, missing)
    return frame
