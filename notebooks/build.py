"""Run the notebooks of this folder and keep what they show: `python notebooks/build.py [names or
parts of names]`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).resolve().parent
SECONDS_PER_CELL = 120


def execute(source: Path, folder: Path = HERE) -> nbformat.NotebookNode:
    """The notebook at ``source`` after a run from top to bottom in a fresh kernel that works in
    ``folder``.

    Old outputs go first. Widgets are kept as their static pictures only: their state would ask for
    a kernel, or for a script from the network. Raises nbclient's CellExecutionError at a failing
    cell without the tag raises-exception.
    """
    notebook = nbformat.read(source, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=SECONDS_PER_CELL,
        # no remark on how kernel and client talk
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        record_timing=False,
        store_widget_state=False,
        resources={"metadata": {"path": str(folder)}},
    )
    # the nanlab of this checkout
    places = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    # sums in the same order on every machine
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    client.execute(env=os.environ | one_thread | {"PYTHONPATH": os.pathsep.join(places)})
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = joined(cell.outputs)
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {
                "name": "python3",
                "display_name": "Python 3 (ipykernel)",
                "language": "python",
            },
            # without the version: a rebuild elsewhere changes nothing
            "language_info": {"name": "python"},
        }
    )
    return notebook


def joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """The outputs of a cell with the pieces of one stream put together, however they happened to
    arrive."""
    kept: list[nbformat.NotebookNode] = []
    for output in outputs:
        if (
            kept
            and output.output_type == kept[-1].output_type == "stream"
            and output.name == kept[-1].name
        ):
            kept[-1].text += output.text
        else:
            kept.append(output)
    return kept


def chosen(names: list[str]) -> list[Path]:
    """The numbered notebooks whose file name contains one of ``names``; all of them without names.
    Others are the user's."""
    notebooks = sorted(HERE.glob("[0-9][0-9]-*.ipynb"))
    return [
        path
        for path in notebooks
        if not names or any(Path(name).stem in path.name for name in names)
    ]


def main(names: list[str]) -> None:
    paths = chosen(names)
    if not paths:
        sys.exit(f"no notebook in {HERE.name}/ matches {' '.join(names) or '*.ipynb'}")
    for path in paths:
        begin = time.perf_counter()
        nbformat.write(execute(path), path)
        print(f"{path.name}  {time.perf_counter() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
