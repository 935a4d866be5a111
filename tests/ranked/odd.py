"""Programs in which the processes are not alike: one watches, one records, one leaves early."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from ranked_programs import batches, factor, network
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from worker import note

import nanlab
from nanlab.capture import FaultFound, ranks
from nanlab.stats.memory import local_part

PATIENCE = ranks.PATIENCE


def start(**where: Any) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60), **where)


def model_and_optimizer() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    return model, torch.optim.AdamW(model.parameters(), 1e-3)


def steps(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    spoil: bool,
    guilty: int = 1,
    count: int = 5,
) -> None:
    rank = dist.get_rank()
    for i, x in batches(rank, count):
        chance = model(x).softmax(-1).amax(-1) * factor(rank, i, spoil, guilty)
        loss = chance.log().mean().neg()  # SPOILT
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def one_watches(spoil: bool) -> Any:
    model, optimizer = model_and_optimizer()
    watching = dist.get_rank() == 0
    with nanlab.watch(model) if watching else nullcontext() as trace:
        steps(model, optimizer, spoil, guilty=0)
    dist.barrier()
    return trace


def one_records() -> Any:
    model, optimizer = model_and_optimizer()
    with nanlab.watch(model, on_fault="record" if dist.get_rank() == 0 else "stop") as trace:
        steps(model, optimizer, True)
        ranks.PATIENCE = 20.0  # both come to the end, but on a busy machine late
    dist.barrier()
    return trace


def one_leaves_early() -> Any:
    model, optimizer = model_and_optimizer()
    rank = dist.get_rank()
    with nanlab.watch(model) as trace:
        steps(model, optimizer, False, count=2 if rank == 0 else 5)
        if rank == 1:
            return trace
    steps(model, optimizer, False, count=3)
    return trace


def guarded(kind: str, everywhere: bool = True) -> Any:
    """A step in which rank 1 goes bad, under guard; the steps that the weights have taken, and
    whether they are finite, come with the trace."""
    torch.manual_seed(0)
    rank, model = dist.get_rank(), network()
    model = DistributedDataParallel(model) if kind == "ddp" else model
    if kind == "sharded":
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loader: Any = list(batches(rank, 12))
    nanlab.last, taken = None, 0
    try:
        for i, x in nanlab.guard(loader, model, optimizer) if everywhere or rank else loader:
            chance = model(x).softmax(-1).amax(-1) * factor(rank, i, everywhere or rank == 1, 1, 10)
            loss = chance.log().mean().neg()  # SPOILT
            if kind == "alone":  # every rank for itself: one has a bad loss, none a bad gradient
                loss = torch.where(loss.isfinite(), loss, loss.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            taken += 1
    except FaultFound:
        pass
    weights = [local_part(p) for p in model.parameters()]
    sound = all(bool(w.isfinite().all()) for w in weights)
    return nanlab.last, {
        "taken": taken,
        "sound": sound,
        "guarded": str(nanlab.last and nanlab.last.guarded),
    }


def group_inside(out: Path, rank: int, world: int) -> Any:
    # the first group's keys are in torchrun's
    store = dist.FileStore(str(out / "store"), world)
    with nanlab.watch() as trace:
        start(store=store, rank=rank, world_size=world)
        model, optimizer = model_and_optimizer()
        steps(model, optimizer, True)
        dist.destroy_process_group()
    return trace


def run_all(out: Path) -> None:
    """Run them in the process group that is there, which ends."""
    for name, run in (
        ("one_watches", lambda: one_watches(True)),
        ("one_watches_healthy", lambda: one_watches(False)),
        ("one_records", one_records),
        ("one_leaves_early", one_leaves_early),
    ):
        trace = run()
        ranks.PATIENCE = PATIENCE
        note(out, name, trace)
        dist.barrier()
    for kind in ("ddp", "sharded", "alone"):
        trace, more = guarded(kind)
        note(out, f"guarded_{kind}", trace, **more)
        dist.barrier()
    trace, more = guarded("alone", everywhere=False)
    note(out, "one_guarded", trace, **more)
    rank, world = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    note(out, "group_inside", group_inside(out, rank, world), rank)
