"""Pictures as data addresses, for pages where no script may run."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nanlab.views.plots import GREY, plot_exponents

# A picture cannot follow the theme: texts and axes in a grey that is read on white and on black,
# and nothing behind them.
_BOTH_THEMES: dict[Any, Any] = dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY
)


def picture(draw: Callable[[Axes], object], text: str, height: float = 2.3) -> str:
    """An ``<img>`` of what ``draw`` puts on the axes, for light themes and dark ones."""
    with rc_context(_BOTH_THEMES):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        draw(figure.add_subplot())
        png = io.BytesIO()
        figure.savefig(png, format="png", dpi=110, metadata={"Software": None}, transparent=True)
    address = base64.b64encode(png.getvalue()).decode()
    style = "max-width:100%;width:720px"
    return f'<div><img alt="{text}" style="{style}" src="data:image/png;base64,{address}"></div>'


def exponents_picture(exponents: pd.Series[int], others: Mapping[str, int]) -> str:
    """An exponent histogram against float16, with its zeros and what is not finite."""
    return picture(
        lambda ax: plot_exponents(exponents, torch.float16, ax=ax, others=others),
        "exponent histogram against float16",
    )
