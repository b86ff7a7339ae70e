"""Layers as one option: numbers and ranges, such as 8,14,17-19, or none.

It knows how they are written, not which layers a model has.
"""

from __future__ import annotations

import click

_DIGITS = 4
"""A layer's number has no more; a longer range is a slip that would take memory."""


def layer_list(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> tuple[int, ...] | None:
    """Return the layers of an option's text, in order; None without one.

    A callback of click: what is no such list is a usage error that shows how one is written.
    """
    if value is None:
        return None
    layers: set[int] = set()
    for part in value.split(",") if value.strip() != "none" else ():
        first, dash, last = (word.strip() for word in part.partition("-"))
        last = last if dash else first
        # Ascii alone: other digits are digits to Python, too.
        if not all(w.isascii() and w.isdigit() and len(w) <= _DIGITS for w in (first, last)):
            raise click.BadParameter(
                f"expected layers such as 8,14,17-19, or none, got {value!r}", ctx=ctx, param=param
            )
        if int(first) > int(last):
            raise click.BadParameter(
                f"the range {part.strip()} ends before it begins", ctx=ctx, param=param
            )
        layers.update(range(int(first), int(last) + 1))
    return tuple(sorted(layers))
