"""Notebooks that are run without a page: `jupyter nbconvert --execute`, jupytext and papermill all
run them by nbclient, which throws the outputs away where a cell fails."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

SETUP = """%load_ext nanlab
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 2, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"""
LOOP = """for step in range(30):
    optimizer.zero_grad()
    points = model(torch.randn(6, 4) * (step != 23))
    points.pow(2).sum(1).sqrt().mean().backward()
    optimizer.step()"""
AFTER = "print(step, all(bool(p.isfinite().all()) for p in model.parameters()))"


def executed(folder: Path, magics: list[str], allow_errors: bool) -> tuple[list[Any], str]:
    """The cells as they were run, and the error of their executor."""
    import nbformat  # for which seconds go by, in the process alone that runs this
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    texts = [t for magic in magics for t in (SETUP, f"{magic}\n{LOOP}", AFTER)]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in texts])
    client = NotebookClient(
        notebook, timeout=300, allow_errors=allow_errors, resources={"metadata": {"path": folder}}
    )
    try:
        client.execute(env=os.environ | {"OMP_NUM_THREADS": "1"})
    except CellExecutionError as error:
        return notebook.cells, str(error)
    return notebook.cells, ""


def test_an_executor_that_allows_errors_keeps_the_report_in_the_output_and_goes_on(
    tmp_path: Path,
) -> None:
    magics = ["%%nanwatch model", "%%nanwatch --guard model"]
    cells, error = executed(tmp_path, magics, allow_errors=True)
    assert not error and not list(tmp_path.iterdir())
    for watched, after, place in ((*cells[1:3], "In[2]:5"), (*cells[4:6], "In[5]:5")):
        shown = [o.data for o in watched.outputs if o.output_type == "display_data"]
        text = "\n".join(data.get("text/plain", "") for data in shown)
        assert f"{place}, step 23" in text and "derivative of sqrt" in text
        assert any("Annotated source" in data.get("text/html", "") for data in shown)
        assert after.outputs[0].text == "23 True\n"


def test_an_executor_that_ends_at_errors_leaves_a_page_with_the_report_and_names_it(
    tmp_path: Path,
) -> None:
    _, error = executed(tmp_path, ["%%nanwatch model"], allow_errors=False)
    assert "step 23" in error and "report: nanlab.html" in error
    assert "points.pow(2).sum(1).sqrt()" in (tmp_path / "nanlab.html").read_text()
