"""What the README shows is what happens."""

from __future__ import annotations

import contextlib
import io
import linecache
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def blocks() -> list[tuple[str, str]]:
    """(language, text) of each code block of the README."""
    return re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_first_block_prints_what_the_second_shows(tmp_path: Path) -> None:
    (language, code), (_, shown) = blocks()[:2]
    assert language == "python"
    program = tmp_path / "train.py"
    program.write_text(code)
    linecache.checkcache()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(program), "exec"), {"__name__": "readme"})
    assert printed.getvalue().replace(f"{tmp_path}/", "").split() == shown.split()


def test_every_public_name_the_readme_mentions_exists() -> None:
    import nanlab

    text = (ROOT / "README.md").read_text()
    names = set(re.findall(r"`nanlab\.(\w+)", text))
    assert names >= {"safe", "advise_eps", "compare", "explain"}
    assert all(hasattr(nanlab, name) for name in names)
    doors = set(re.findall(r"`trace\.(\w+)", text))
    assert all(hasattr(nanlab.Trace, door) for door in doors)


def test_every_picture_of_the_readme_exists() -> None:
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert len(pictures) == 3
    assert all((ROOT / picture).is_file() for picture in pictures)
