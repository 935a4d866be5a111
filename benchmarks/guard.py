"""What guard costs: the same steps bare and guarded, in turn, and the memory of the process over
many steps.

    python benchmarks/guard.py [--rounds 15] [--only MLP transformer] [--steps 20000] [--output
    benchmarks/results/guard-cpu.md]

A ratio is the median over the rounds of (guarded / bare) of the same round; the order within a
round alternates. With one thread the clock is the thread's own processor time. Memory: resident set
after a tenth of the steps and after all of them, with the batches drawn anew.
"""

from __future__ import annotations

import argparse
import gc
import logging
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import nanlab

Run = Callable[[bool], None]


def plain(model: nn.Module, batches: list[Any], loss_of: Callable[..., torch.Tensor]) -> Run:
    """An ordinary loop."""
    optimizer = torch.optim.AdamW(model.parameters())

    def run(guarded: bool) -> None:
        loader = nanlab.guard(batches, model, optimizer) if guarded else batches
        for x, y in loader:
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()

    return run


def mlp(steps: int = 4000) -> Run:
    """Half a millisecond a step."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
    )
    batches = [(torch.randn(96, 64), torch.randint(0, 10, (96,))) for _ in range(steps)]
    return plain(model, batches, nn.functional.cross_entropy)


def transformer() -> Run:
    """Four layers, d 256, batch 8, sequence 64."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = nn.Sequential(nn.TransformerEncoder(layer, 4), nn.Linear(256, 10))
    batches = [(torch.randn(8, 64, 256), torch.randint(0, 10, (8, 64))) for _ in range(16)]
    return plain(
        model, batches, lambda out, y: nn.functional.cross_entropy(out.flatten(0, 1), y.flatten())
    )


def trainer() -> Run:
    """GPT-2 of four layers, d 256, in transformers.Trainer."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    from nanlab.integrations.transformers import NanlabCallback

    ids = torch.randint(0, 2000, (64, 128), generator=torch.Generator().manual_seed(0))
    rows = [{"input_ids": row, "labels": row} for row in ids]
    arguments = TrainingArguments(
        "build/benchmark",
        per_device_train_batch_size=4,
        max_steps=16,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        logging_strategy="no",
    )

    def run(guarded: bool) -> None:
        torch.manual_seed(0)
        model = GPT2LMHeadModel(
            GPT2Config(vocab_size=2000, n_positions=128, n_embd=256, n_layer=4, n_head=4)
        )
        callbacks = [NanlabCallback()] if guarded else []
        Trainer(model=model, args=arguments, train_dataset=rows, callbacks=callbacks).train()

    return run


def lightning() -> Run:
    """A small network in Lightning, about a millisecond a step."""
    import lightning

    from nanlab.integrations.lightning import NanlabCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(
                nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)
            )

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters())

    torch.manual_seed(0)
    batches = [(torch.randn(64, 64), torch.randint(0, 10, (64,))) for _ in range(1000)]

    def run(guarded: bool) -> None:
        module = Module()
        fit = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[NanlabCallback()] if guarded else [],
        )
        fit.fit(module, torch.utils.data.DataLoader(batches, batch_size=None))

    return run


PROGRAMS = {  # and the steps of one run
    "MLP": (mlp, 4000),
    "transformer": (transformer, 16),
    "transformers.Trainer": (trainer, 16),
    "Lightning": (lightning, 1000),
}


def seconds(run: Run, guarded: bool) -> float:
    gc.collect()
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    run(guarded)
    return clock() - begin


def ratio(run: Run, rounds: int) -> tuple[float, float, float, float]:
    """(median seconds of a bare run, median of guarded / bare, its quartiles)."""
    run(False)
    run(True)
    bare, found = [], []
    for number in range(rounds):
        order = (False, True) if number % 2 else (True, False)
        taken = {guarded: seconds(run, guarded) for guarded in order}
        bare.append(taken[False])
        found.append(taken[True] / taken[False])
    low, middle, high = statistics.quantiles(found, n=4)
    return statistics.median(bare), middle, low, high


def memory(steps: int) -> tuple[float, float]:
    """Resident MiB after a tenth of the steps, and after all of them."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(), nn.Linear(128, 10)
    )
    optimizer = torch.optim.Adam(model.parameters())
    seen = []

    def batches() -> Iterator[torch.Tensor]:
        for number in range(steps):
            if number in (steps // 10, steps - 1):
                seen.append(resident())
            yield torch.randn(64, 64)

    for x in nanlab.guard(batches(), model, optimizer):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    return seen[0], seen[1]


def resident() -> float:
    gc.collect()
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--steps", type=int, default=20_000, help="of the look at memory; 0: none")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    lines = ["| program | a bare step | guarded / bare | quartiles |", "|---|---|---|---|"]
    for name in options.only:
        make, steps = PROGRAMS[name]
        bare, middle, low, high = ratio(make(), options.rounds)
        lines.append(
            f"| {name} | {bare / steps * 1e3:.2f} ms | {middle:.3f} | {low:.3f} to {high:.3f} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    if options.steps:
        early, late = memory(options.steps)
        lines += [
            "",
            (
                f"Memory: {early:.1f} MiB after {options.steps // 10:,} steps, {late:.1f} MiB after"
                f" {options.steps:,}."
            ),
        ]
    text = "\n".join(lines)
    print(text)
    if options.output:
        head = (
            f"# What guard costs\n\ntorch {torch.__version__}, {options.threads} thread,"
            f" {options.rounds} rounds.\n\n"
        )
        options.output.write_text(f"{head}{text}\n")


if __name__ == "__main__":
    main()
