"""Errors of batches and of the workers that make them."""

from __future__ import annotations

import re

import pandas as pd

from nanlab.rules.errors._explanation import (
    Case,
    Explanation,
    advice,
    means,
    operands_frame,
    shape_text,
)

_PADDING = (
    "pad to the longest in the collate function",
    (
        "from torch.nn.utils.rnn import pad_sequence\n\n"
        "def collate(batch):\n"
        "    return pad_sequence(batch, batch_first=True, padding_value=0)\n\n"
        "loader = DataLoader(dataset, batch_size=32, collate_fn=collate)"
    ),
)


@means(
    r"stack expects each tensor to be equal size, but got \[([\d, ]*)\] at entry (\d+) and \[([\d,"
    r" ]*)\] at entry (\d+)"
)
def unequal_sizes(case: Case) -> Explanation | None:
    """Samples of different length cannot be stacked into one batch."""
    sizes = _sizes(case)
    lengths = [shape[0] for shape in sizes.values() if shape]
    span = (
        f"; the {len(lengths)} lengths go from {min(lengths)} to {max(lengths)}"
        if len(lengths) > 2
        else ""
    )
    frame = pd.DataFrame(
        [{"entry": entry, "shape": shape_text(shape)} for entry, shape in sizes.items()]
    )
    loading = (
        "collate" in case.failure.source
        or "DataLoader" in case.failure.text
        or "batch" in case.failure.facts
    )
    who = "The DataLoader's default collate function" if loading else "torch.stack"
    return case.explain(
        "unequal-sizes",
        f"entry {case.match[2]} has shape [{case.match[1]}] and entry {case.match[4]} has shape "
        f"[{case.match[3]}]{span}",
        f"{who} makes one tensor of all entries, and these must be of one shape. Sequences of"
        " different length are padded first; hand the lengths or a mask on, so that padding counts"
        " neither in attention nor in the loss.",
        evidence=frame,
        fixes=advice(
            _PADDING,
            (
                "in transformers: let the collator pad",
                (
                    "DataCollatorWithPadding(tokenizer)  # or tokenizer(texts, padding=True,"
                    " return_tensors='pt')"
                ),
            ),
            (
                "or join them one after the other",
                "torch.cat(tensors)  # where there is no batch dimension to make",
            ),
        ),
    )


def _sizes(case: Case) -> dict[int, tuple[int, ...]]:
    """Shape of every entry of the batch where it is known, else of the two that the message
    names."""
    known = [operand.shape for operand in case.failure.operands] or case.failure.facts.get(
        "batch", []
    )
    if len(known) >= 2:
        return dict(enumerate(known))
    match = case.match
    return {int(match[at + 1]): _shape(match[at]) for at in (1, 3)}


def _shape(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text))


@means(
    r"Sizes of tensors must match except in dimension (\d+)\. (?:Expected size (\d+) but got"
    r"|Got) (?:size )?(\d+)(?: for tensor number (\d+))?"
)
def unequal_in_cat(case: Case) -> Explanation | None:
    """Tensors that are joined differ in another dimension."""
    match = case.match
    which = f"tensor {match[4]}" if match[4] else "one of the tensors"
    return case.explain(
        "unequal-sizes",
        f"{which} has size {match[3]} where the others have {match[2] or 'another'}",
        f"torch.cat joins along dimension {match[1]}; in all others the sizes must be equal. Either"
        " another dimension was meant, or the tensors need padding.",
        evidence=operands_frame(case.failure.operands),
        fixes=advice(
            (
                "join along the other dimension",
                f"torch.cat(tensors, dim={1 - int(match[1]) if int(match[1]) < 2 else 0})",
            ),
            _PADDING,
        ),
    )


@means(
    r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\) (?:is killed by signal: (.+?)\.|exited"
    r" unexpectedly)"
    r"|[Uu]nexpected bus error encountered in worker"
)
def worker_died(case: Case) -> Explanation | None:
    """A DataLoader worker was ended by the operating system."""
    text = case.failure.text
    if "bus error" in text.lower() or "shared memory" in text.lower() or "shm" in text:
        title = "a DataLoader worker ran out of shared memory"
        why = (
            "Workers hand batches over in /dev/shm, and it is full: containers have 64 MB of it"
            " unless told otherwise."
        )
        first = (
            "give the container more shared memory",
            "docker run --shm-size=8g ...  # or --ipc=host",
        )
    elif case.match[2] and "Killed" in case.match[2]:
        title = "a DataLoader worker was killed, most likely because the machine ran out of memory"
        why = (
            "The kernel ends a process when memory is out. Each worker has a copy of the dataset"
            " object, which grows as its Python objects are touched."
        )
        first = (
            "keep the data in arrays, not in lists of Python objects",
            "self.items = np.array(items)  # shared by the workers, not copied",
        )
    else:
        title = "a DataLoader worker died without an error of its own"
        why = (
            "It crashed in native code, was killed, or could not import the main script (a class of"
            " a notebook)."
        )
        first = (
            "run the dataset in the main process to see its own error",
            "DataLoader(dataset, num_workers=0)",
        )
    return case.explain(
        "worker-died",
        title,
        why,
        fixes=advice(
            first,
            (
                "fewer workers, fewer batches ahead",
                "DataLoader(dataset, num_workers=2, prefetch_factor=2)",
            ),
            (
                "share tensors through files instead",
                'torch.multiprocessing.set_sharing_strategy("file_system")',
            ),
        ),
    )
