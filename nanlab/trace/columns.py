"""The types of columns."""

from __future__ import annotations

import pandas as pd


def typed(frame: pd.DataFrame, text: str = "", whole: str = "", real: str = "") -> pd.DataFrame:
    """The table; without rows its columns have the types that they have with some."""
    if len(frame):
        return frame
    types = dict.fromkeys(text.split(), "str") | dict.fromkeys(whole.split(), "int64")
    return frame.astype(types | dict.fromkeys(real.split(), "float64"))
