"""Errors of devices and of their memory, of batches and of the workers that make them."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pandas as pd
import torch

from nanlab.explanations.explanation import (
    Case,
    Explanation,
    advice,
    means,
    operands_frame,
    shape_text,
)
from nanlab.explanations.operands import with_evidence
from nanlab.trace.op import location
from nanlab.trace.recording import Recording

# Errors of batches and of the workers that make them.

_PADDING = (
    "pad to the longest in the collate function",
    (
        "from torch.nn.utils.rnn import pad_sequence\n\n"
        "def collate(batch):\n"
        "    return pad_sequence(batch, batch_first=True, padding_value=0)\n\n"
        "loader = DataLoader(dataset, batch_size=32, collate_fn=collate)"
    ),
)

_RESIZED = (
    "give all pictures one size, where the dataset loads them",
    "transforms.Resize((224, 224))  # Resize(224) alone keeps their proportions",
)


@means(
    r"stack expects each tensor to be equal size, but got \[([\d, ]*)\] at entry (\d+) and \[([\d,"
    r" ]*)\] at entry (\d+)"
)
def unequal_sizes(case: Case) -> Explanation | None:
    """Samples of different length cannot be stacked into one batch."""
    sizes = _sizes(case)
    lengths = [shape[0] for shape in sizes.values() if shape]
    if len(lengths) > 2:
        span = f"; the {len(lengths)} lengths go from {min(lengths)} to {max(lengths)}"
    else:
        span = ""
    frame = pd.DataFrame(
        [{"entry": entry, "shape": shape_text(shape)} for entry, shape in sizes.items()]
    )
    loading = (
        "collate" in case.failure.source
        or "DataLoader" in case.failure.text
        or "batch" in case.failure.facts
    )
    title = (
        f"entry {case.match[2]} has shape [{case.match[1]}] and entry {case.match[4]} has shape "
        f"[{case.match[3]}]{span}"
    )
    told = _unequal(case, title, loading, frame)
    pictures = all(len(shape) == 3 for shape in sizes.values())
    if pictures and len({shape[1:] for shape in sizes.values()}) > 1:
        return replace(told, fixes=[*advice(_RESIZED), *told.fixes])
    return told


@means(r"default_collate: batch must contain .*; found <class '([\w.]+)'>")
def not_collated(case: Case) -> Explanation | None:
    """The samples of a batch hold something that is no number and no text."""
    kind = case.match[1].rpartition(".")[2]
    found = [name for name, type_ in case.failure.facts.get("sample", {}).items() if type_ == kind]
    where = f"`{found[0]}` of a sample" if found else "a part of a sample"
    what = "None" if kind == "NoneType" else f"of class {kind}"
    key = repr(found[0]) if found else "key"
    none = (
        "leave the field out, or return a number for it",
        f"sample.pop({key})  # in __getitem__, where it is None",
    )
    other = (
        "make a tensor of it, or join the samples by a function of your own",
        f"sample[{key}] = torch.as_tensor(...)  # in __getitem__, or DataLoader(collate_fn=...)",
    )
    return case.explain(
        "wrong-argument",
        f"{where} is {what}: the DataLoader cannot join it to a batch",
        "The default collate function joins tensors, arrays, numbers and texts.",
        fixes=advice(none if kind == "NoneType" else other),
    )


@means("Trying to resize storage that is not resizable")
def unequal_in_worker(case: Case) -> Explanation | None:
    """The same in a worker, which joins the samples in shared memory."""
    if "collate" not in case.failure.text:
        return None
    title = "a DataLoader worker could not join the samples of a batch: their shapes differ"
    return _unequal(case, title, True, pd.DataFrame())


def _unequal(case: Case, title: str, loading: bool, frame: pd.DataFrame) -> Explanation:
    who = "The DataLoader's default collate function" if loading else "torch.stack"
    return case.explain(
        "unequal-sizes",
        title,
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
    """Shape of every known entry of the batch, else of the two that the message names."""
    read = [operand.shape for operand in case.failure.operands]
    known = max(read, case.failure.facts.get("batch", []), key=len)
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


# Errors of devices: a CUDA assertion, a device that is not there, memory that is out, tensors
# on two devices.

_BLOCKING = (
    "run the failing step on the CPU, where the message is exact",
    "model.cpu()(batch.cpu())  # after a restart of the kernel",
)


@means(
    r"device-side assert triggered|CUBLAS_STATUS_\w+|CUDNN_STATUS_\w+|illegal memory"
    r" access|unspecified launch failure"
)
def device_failed(case: Case) -> Explanation | None:
    """A kernel stopped the device; the line that reports it is a later one."""
    dead = (
        " The device is lost to this process: restart the kernel before anything else runs on it."
    )
    bad = case.failure.bad
    if bad is not None:
        return with_evidence(case, bad, dead)
    memory = "CUBLAS_STATUS_ALLOC_FAILED" in case.match[0] or "NOT_INITIALIZED" in case.match[0]
    free = (
        " cuBLAS also says so when memory is out: if nvidia-smi shows no free memory, use a smaller"
        " batch."
        if memory
        else ""
    )
    return case.explain(
        "device-failure",
        f"{case.match[0]}: a kernel failed on the device, at an earlier line than the one shown",
        "CUDA runs behind the program, so that the line that reports a failure is not the one that"
        " caused it. Nearly always an index is outside of an embedding (tokens were added, the"
        f" embedding was not resized) or a label outside of the classes.{free}{dead}",
        fixes=advice(
            (
                "let nanlab check indices before the kernel runs",
                "with nanlab.watch(model):\n    step()",
            ),
            _BLOCKING,
            (
                "make CUDA wait, to see the right line",
                "CUDA_LAUNCH_BLOCKING=1 python train.py  # set before torch is imported",
            ),
            (
                "tokens were added to the tokenizer: resize the embedding",
                "model.resize_token_embeddings(len(tokenizer))",
            ),
        ),
    )


@means(
    r"Attempting to deserialize object on (?:a )?(\w+) device(?: (\d+) but"
    r" torch\.cuda\.device_count\(\) is (\d+)"
    r"| but torch\.\w+\.is_available\(\) is False)?"
)
def missing_device(case: Case) -> Explanation | None:
    """A file was saved on a device that this machine does not have."""
    match = case.match
    here = _device_here()
    saved = f"{match[1].lower()}:{match[2]}" if match[2] else match[1].lower()
    of_file = case.failure.facts.get("saved_from", "")
    saved = of_file if of_file.startswith(match[1].lower()) else saved
    if match[3]:
        has = f"{match[3]} CUDA device{'' if match[3] == '1' else 's'}"
    else:
        has = f"no {match[1]} device"
    return case.explain(
        "missing-device",
        f"the file was saved from {saved}, and this machine has {has}",
        "torch.load puts each tensor on the device it was saved from unless map_location says"
        " another.",
        fixes=advice(
            (
                f"load to the device that is here: {here}",
                f'state = torch.load(path, map_location="{here}")',
            ),
            (
                "load to the CPU, then move the model",
                'model.load_state_dict(torch.load(path, map_location="cpu"))\nmodel.to(device)',
            ),
        ),
    )


def _device_here() -> str:
    """The device to load to: read without starting CUDA."""
    return "cuda:0" if torch.cuda.device_count() else "cpu"


@means(
    r"out of memory|[Cc]an't allocate memory|not enough memory: you tried to allocate|Cannot"
    r" allocate memory"
)
def out_of_memory(case: Case) -> Explanation | None:
    """Memory is out, on the device or on the host."""
    text = case.failure.text
    cuda = "CUDA" in text or "HIP" in text
    asked = re.search(r"[Tt]ried to allocate ([\d.]+) (\w+)", text)
    size = _readable(*asked.groups()) if asked else ""
    total = re.search(r"total capacity of ([\d.]+ \w+)", text)
    of = f" of {total[1]}" if total else ""
    largest = _largest(case.recording) if case.recording is not None else pd.DataFrame()
    return case.explain(
        "out-of-memory",
        f"{size or 'memory'} more {'on the device' + of if cuda else 'of host memory'} could not be"
        f" had{case.inside}",
        "What a training step holds is parameters, gradients and optimizer state, and the"
        " activations that backward needs; only these grow with the"
        f" batch.{' The table shows the largest results.' if len(largest) else ''}",
        evidence=largest,
        fixes=advice(
            (
                "a smaller batch, its gradients accumulated",
                (
                    "(criterion(model(x), y) / accumulate).backward()  # optimizer.step() every"
                    " `accumulate` batches"
                ),
            ),
            (
                "keep no graph alive: add numbers, not losses",
                "total += loss.item()  # not total += loss",
            ),
            (
                "recompute activations instead of keeping them",
                "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
            ),
            (
                "half precision",
                'with torch.autocast("cuda", torch.bfloat16):\n    loss = criterion(model(x), y)',
            ),
            ("no graph in evaluation", "with torch.inference_mode():\n    model(x)"),
        ),
    )


def _readable(number: str, unit: str) -> str:
    return f"{int(number) / 2**30:,.1f} GiB" if unit == "bytes" else f"{number} {unit}"


def _largest(recording: Recording, count: int = 8) -> pd.DataFrame:
    """The operations with the largest results."""
    seen: dict[tuple[str, int], tuple[int, str, str]] = {}
    for row in recording.all_ops():
        seen.setdefault((row.name, row.place), (0, "", ""))
        numel = math.prod(row.shape)
        if numel > seen[row.name, row.place][0]:
            seen[row.name, row.place] = (
                numel,
                " x ".join(map(str, row.shape)),
                location(row.file, row.line),
            )
    order = sorted(seen.items(), key=lambda item: -item[1][0])[:count]
    return pd.DataFrame(
        [
            {"op": key[0], "elements": n, "shape": shape, "where": where}
            for key, (n, shape, where) in order
        ]
    )


@means(
    r"Expected all tensors to be on the same device(?:, but (?:found at least two devices, "
    r"|got \w+ is on )(\S+?),? (?:and |different from other tensors on )(\S+?)[!,\s(])?"
)
def mixed_devices(case: Case) -> Explanation | None:
    """An operation got tensors of two devices."""
    failure = case.failure
    if failure.operands or failure.facts.get("inputs"):
        operands = [*failure.operands, *failure.facts.get("inputs", [])]
    else:
        operands = []
    named = sorted({o.device for o in operands}) or [d for d in case.match.groups() if d]
    what = " and ".join(named) if len(named) > 1 else "two devices"
    own = failure.facts.get("parameter_devices")
    parameters = f" The parameters of the module are on {', '.join(own)}." if own else ""
    return case.explain(
        "mixed-devices",
        f"an operation got tensors on {what}{case.inside}",
        f"All operands must be on one device.{parameters} Usually the batch was not moved, or a"
        " tensor was made in forward() without device=.",
        evidence=operands_frame(operands),
        fixes=advice(
            ("move the batch to the model", "x = x.to(next(model.parameters()).device)"),
            (
                "make tensors where their operands are",
                "mask = torch.ones(n, device=x.device)  # or x.new_ones(n)",
            ),
            (
                "constants of a module: register them, so that model.to() moves them",
                'self.register_buffer("scale", torch.ones(n))',
            ),
        ),
    )
