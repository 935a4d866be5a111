"""Programs that train in several processes: each with a fault on one rank, and healthy where
nothing is spoilt.

The line at which the fault is born ends in ``# SPOILT``. A program gets (rank, world, spoil) and
returns the model to watch, or None, and the function that trains it; ``spoil`` says whether to be
faulty.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS, BAD = 5, 3  # training steps, and the one in which the fault is born
Made = tuple[nn.Module | None, Callable[[], None]]


@dataclass(frozen=True)
class Program:
    """A program, and what is true of its fault."""

    make: Callable[[int, int, bool], Made]
    cause: str
    rank: int = 1  # on which it is born
    step: int = BAD
    everywhere: bool = False  # born on each rank at once
    steps: int = STEPS  # of the healthy program
    harmless: bool = False  # it reaches no loss, gradient or parameter


PROGRAMS: dict[str, Program] = {}


def program(cause: str, **facts: Any) -> Callable[[Callable[[int, int, bool], Made]], Any]:
    def enter(make: Callable[[int, int, bool], Made]) -> Any:
        PROGRAMS[make.__name__] = Program(make, cause, **facts)
        return make

    return enter


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def batches(rank: int, count: int = STEPS) -> Iterator[tuple[int, torch.Tensor]]:
    generator = torch.Generator().manual_seed(100 + rank)
    for i in range(count):
        yield i, torch.randn(4, 8, generator=generator)


def factor(rank: int, i: int, spoil: bool, guilty: int = 1, step: int = BAD) -> float:
    return 0.0 if spoil and rank == guilty and i == step else 1.0


def adam(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), 1e-3, **options)


def plain_training(model: nn.Module, rank: int, spoil: bool, guilty: int = 1) -> Callable[[], None]:
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            chance = model(x).softmax(-1).amax(-1) * factor(rank, i, spoil, guilty)
            loss = chance.log().mean().neg()  # SPOILT
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return train


# -- DDP
# ------------------------------------------------------------


@program("log-of-zero")
def ddp(rank: int, world: int, spoil: bool) -> Made:
    model = DistributedDataParallel(network())
    return model, plain_training(model, rank, spoil)


@program("log-of-zero", rank=0)
def ddp_fault_on_rank_0(rank: int, world: int, spoil: bool) -> Made:
    model = DistributedDataParallel(network())
    return model, plain_training(model, rank, spoil, guilty=0)


@program("log-of-zero")
def ddp_gradients_are_views_of_buckets(rank: int, world: int, spoil: bool) -> Made:
    model = DistributedDataParallel(network(), gradient_as_bucket_view=True)
    return model, plain_training(model, rank, spoil)


@program("log-of-zero")
def ddp_many_buckets(rank: int, world: int, spoil: bool) -> Made:
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)))
    net.insert(0, nn.Linear(8, 64))
    model = DistributedDataParallel(net, bucket_cap_mb=0.02)
    return model, plain_training(model, rank, spoil)


@program("log-of-zero")
def ddp_static_graph(rank: int, world: int, spoil: bool) -> Made:
    model = DistributedDataParallel(network(), static_graph=True)
    return model, plain_training(model, rank, spoil)


@program("log-of-zero", everywhere=True)
def ddp_fault_on_every_rank(rank: int, world: int, spoil: bool) -> Made:
    model = DistributedDataParallel(network())
    return model, plain_training(model, rank, spoil, guilty=rank)


class Branches(nn.Module):
    """A network of which each step uses one of two branches."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.left, self.right = nn.Linear(8, 16), nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor, left: bool) -> torch.Tensor:
        hidden = self.body(x).tanh()
        return self.left(hidden) if left else self.right(hidden)


@program("sqrt-at-zero")
def ddp_unused_parameters(rank: int, world: int, spoil: bool) -> Made:
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            out = model(x, i % 2 == 0)
            length = (out * factor(rank, i, spoil)).square().sum(1).sqrt()  # SPOILT
            optimizer.zero_grad()
            length.mean().backward()
            optimizer.step()

    return model, train


@program("log-of-zero")
def ddp_no_sync(rank: int, world: int, spoil: bool) -> Made:
    model = DistributedDataParallel(network())
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            optimizer.zero_grad()
            for part, last in ((x[:2], False), (x[2:], True)):
                with nullcontext() if last else model.no_sync():
                    chance = model(part).softmax(-1).amax(-1) * factor(rank, i, spoil and not last)
                    loss = chance.log().mean().neg()  # SPOILT
                    loss.backward()
            optimizer.step()

    return model, train


@program("log-of-zero")
def ddp_float16_hook(rank: int, world: int, spoil: bool) -> Made:
    model = DistributedDataParallel(network())
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return model, plain_training(model, rank, spoil)


@program("nan-in-input")
def ddp_bad_sample(rank: int, world: int, spoil: bool) -> Made:
    model = DistributedDataParallel(network())
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            if spoil and rank == 1 and i == BAD:
                x[2, 3] = float("nan")
            optimizer.zero_grad()
            model(x).square().mean().backward()  # SPOILT in the network's first line
            optimizer.step()

    return model, train


@program("log-of-zero")
def ddp_loss_scaler(rank: int, world: int, spoil: bool) -> Made:
    model = DistributedDataParallel(network())
    optimizer, scaler = adam(model), torch.amp.GradScaler("cpu", init_scale=64.0)

    def train() -> None:
        for i, x in batches(rank):
            with torch.autocast("cpu", torch.bfloat16):
                out = model(x)
            chance = out.float().softmax(-1).amax(-1) * factor(rank, i, spoil)
            loss = chance.log().mean().neg()  # SPOILT
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    return model, train


@program("log-of-zero")
def ddp_clipped(rank: int, world: int, spoil: bool) -> Made:
    model = DistributedDataParallel(network())
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            chance = model(x).softmax(-1).amax(-1) * factor(rank, i, spoil)
            loss = chance.log().mean().neg()  # SPOILT
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return model, train


@program("log-of-zero")
def ddp_evaluates_on_rank_0(rank: int, world: int, spoil: bool) -> Made:
    model = DistributedDataParallel(network())
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            model.train()
            chance = model(x).softmax(-1).amax(-1) * factor(rank, i, spoil)
            loss = chance.log().mean().neg()  # SPOILT
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if rank == 0 and i % 2 == 0:
                model.eval()
                with torch.no_grad():
                    for _, y in batches(7, 6):
                        model.module(y).square().mean()

    return model, train


# -- FSDP
# ------------------------------------------------------------


@program("log-of-zero")
def fsdp1(rank: int, world: int, spoil: bool) -> Made:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(network(), device_id=torch.device("cpu"))
    return model, plain_training(model, rank, spoil)


@program("log-of-zero")
def fsdp1_keeps_its_parameters(rank: int, world: int, spoil: bool) -> Made:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = FullyShardedDataParallel(
            network(), device_id=torch.device("cpu"), use_orig_params=True
        )
    return model, plain_training(model, rank, spoil)


def sharded(**options: Any) -> nn.Module:
    net = network()
    for part in (net[0], net[2]):
        fully_shard(part, **options)
    return fully_shard(net, **options)


@program("log-of-zero")
def fsdp2(rank: int, world: int, spoil: bool) -> Made:
    model = sharded()
    return model, plain_training(model, rank, spoil)


@program("log-of-zero")
def fsdp2_bfloat16(rank: int, world: int, spoil: bool) -> Made:
    model = sharded(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32, torch.float32))
    return model, plain_training(model, rank, spoil)


@program("div-by-zero")
def fsdp2_fault_in_one_shard(rank: int, world: int, spoil: bool) -> Made:
    model = sharded()
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            for parameter in model.parameters():
                with torch.no_grad():
                    local = parameter.grad.to_local()
                    local.div_(factor(rank, i, spoil) if local.numel() else 1.0)  # SPOILT
            optimizer.step()

    return model, train


# -- collectives by hand
# ------------------------------------------------------------


@program("log-of-zero")
def gradients_summed_by_hand(rank: int, world: int, spoil: bool) -> Made:
    model = network()
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            chance = model(x).softmax(-1).amax(-1) * factor(rank, i, spoil)
            loss = chance.log().mean().neg()  # SPOILT
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
            optimizer.step()

    return model, train


@program("log-of-zero")
def gradients_summed_while_others_are_computed(rank: int, world: int, spoil: bool) -> Made:
    model = network()
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            chance = model(x).softmax(-1).amax(-1) * factor(rank, i, spoil)
            loss = chance.log().mean().neg()  # SPOILT
            optimizer.zero_grad()
            loss.backward()
            works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
            for work in works:
                work.wait()
            optimizer.step()

    return model, train


@program("log-of-zero")
def parameters_averaged_now_and_then(rank: int, world: int, spoil: bool) -> Made:
    model = network()
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            chance = model(x).softmax(-1).amax(-1) * factor(rank, i, spoil)
            loss = chance.log().mean().neg()  # SPOILT
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if i % 2 == 1:
                with torch.no_grad():
                    for parameter in model.parameters():
                        dist.all_reduce(parameter)
                        parameter /= world

    return model, train


@program("div-by-zero")
def embeddings_gathered(rank: int, world: int, spoil: bool) -> Made:
    model = network()
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            out = model(x) * factor(rank, i, spoil)
            direction = out / out.square().sum(1, keepdim=True)  # SPOILT
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                everyone = torch.cat(list(differentiable.all_gather(direction)))
            loss = (direction @ everyone.T).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, train


@program("log-of-zero")
def statistics_over_ranks_normalise(rank: int, world: int, spoil: bool) -> Made:
    model = network()
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            mean = (x.abs().mean(0) * factor(rank, i, spoil)).log()  # SPOILT
            total = functional.all_reduce(mean, "sum", dist.group.WORLD)
            loss = model(x - total / world).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, train


@program("log-of-zero")
def samples_exchanged(rank: int, world: int, spoil: bool) -> Made:
    model = network()
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            mine = (x.abs() * factor(rank, i, spoil)).log()  # SPOILT
            parts = [torch.empty(4 // world, 8) for _ in range(world)]
            dist.all_to_all(parts, list(mine.chunk(world)))
            loss = model(torch.cat(parts)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, train


@program("log-of-zero")
def batch_scattered(rank: int, world: int, spoil: bool) -> Made:
    model = network()
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            mine = (x.abs() * factor(rank, i, spoil)).log()  # SPOILT
            part = torch.empty(4, 8)
            dist.reduce_scatter_tensor(part, mine.repeat(world, 1))
            loss = model(part).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, train


@program("log-of-zero", rank=0)
def batch_sent_by_rank_0(rank: int, world: int, spoil: bool) -> Made:
    model = network()
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            if rank == 0:
                x = (x.abs() * factor(rank, i, spoil, guilty=0)).log()  # SPOILT
                for other in range(1, world):
                    dist.send(x, other)
            else:
                x = torch.empty(4, 8)
                dist.recv(x, 0)
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return model, train


@program("log-of-zero", rank=0)
def weights_broadcast_by_rank_0(rank: int, world: int, spoil: bool) -> Made:
    model = network()
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                if rank == 0:
                    bias = model[2].bias
                    size = bias.abs().amax() * factor(rank, i, spoil, guilty=0)
                    bias.add_(size.log().clamp_max(0.0))  # SPOILT
                for parameter in model.parameters():
                    dist.broadcast(parameter, 0)

    return model, train


@program("log-of-zero", harmless=True)
def metric_logged(rank: int, world: int, spoil: bool) -> Made:
    model = DistributedDataParallel(network())
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            out = model(x)
            optimizer.zero_grad()
            out.square().mean().backward()
            optimizer.step()
            metric = (out.detach().abs().mean() * factor(rank, i, spoil)).log()  # SPOILT
            dist.all_reduce(metric)
            metric.item()

    return model, train


@program("log-of-zero")
def only_rank_1_is_harmed(rank: int, world: int, spoil: bool) -> Made:
    model, own = DistributedDataParallel(network()), nn.Linear(8, 1)
    optimizer, other = adam(model), adam(own)

    def train() -> None:
        for i, x in batches(rank):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            other.zero_grad()
            (own(x).square() * factor(rank, i, spoil)).log().mean().backward()  # SPOILT
            other.step()

    return model, train


@program("dtype-overflow", everywhere=True)
def sum_over_ranks_overflows(rank: int, world: int, spoil: bool) -> Made:
    model = network()
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                half = (parameter.grad * 0.0 + (60000.0 if spoil and i == BAD else 1.0)).half()
                dist.all_reduce(half)  # SPOILT
                parameter.grad.copy_(half / world)
            optimizer.step()

    return model, train


@program("dtype-overflow", everywhere=True)
def unequal_parts_overflow(rank: int, world: int, spoil: bool) -> Made:
    model = network()
    optimizer = adam(model)

    def train() -> None:
        for i, x in batches(rank):
            part = torch.full((4,), (3.3e38 if rank else 3e37) if spoil and i == BAD else 1.0)
            dist.all_reduce(part)  # SPOILT
            optimizer.zero_grad()
            (model(x) * part).square().mean().backward()
            optimizer.step()

    return model, train


@program("dtype-overflow", everywhere=True, step=0, steps=1)
def one_backward_without_a_step(rank: int, world: int, spoil: bool) -> Made:
    def train() -> None:
        weight = torch.ones(4, requires_grad=True)
        part = torch.full((4,), (3.3e38 if rank else 3e37) if spoil else 1.0)
        dist.all_reduce(part)  # SPOILT
        (weight * part).sum().backward()

    return None, train
