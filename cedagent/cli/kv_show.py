"""`cedagent kv show`: everything about one block, its text included where its tokenizer is known.

Knows how a block is named (hash or label) and how it is told. It reads one record.
"""

from __future__ import annotations

import dataclasses
import string
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from cedagent.cli import kv_screen
from cedagent.cli.kv_folder import folder_option, open_store
from cedagent.cli.kv_label import meant
from cedagent.cli.options import json_option, model_option
from cedagent.cli.render import printable
from cedagent.cli.report import age, count, print_json, size
from cedagent.errors import CedError, UsageError

if TYPE_CHECKING:
    from ced_kvstore import Anchor, Store
    from ced_kvstore.usage import Shown
    from cedagent.chat.tokenizer import Tokenizer


@click.command()
@click.argument("target", metavar="HASH|LABEL")
@model_option
@folder_option
@json_option
@click.pass_context
def show(ctx: click.Context, target: str, model: str, folder: Path | None, as_json: bool) -> int:
    """Show everything about one block.

    HASH may be the first digits of one; a LABEL stands for the block where it was anchored last.
    The block's text needs the model that it was written for.
    """
    store = open_store(folder)
    if store is None:
        raise UsageError(f"kv show {target}: nothing is stored yet")
    with store:
        at = _anchor(store, target)
        try:
            found = store.show(target if at is None else at.block_hash.hex())
        except ValueError as error:
            if at is not None:
                raise UsageError(
                    f"kv show {target}: it has no whole block yet ({count(at.n_tokens, 'token')})"
                ) from None
            raise UsageError(
                f"kv show {target!r}: {_why(target, error)}; `cedagent kv ls` and `tree` have "
                "labels and hashes"
            ) from None
    is_default = ctx.get_parameter_source("model") is ParameterSource.DEFAULT
    text, why_not = _text(found, model, is_default=is_default)
    if as_json:
        print_json({**dataclasses.asdict(found), "good": found.is_good, "text": text})
        return 0
    lines = _lines(found)
    if text is None:
        lines.append(("text", why_not))
    kv_screen.show_pairs(lines)
    if text is not None:
        kv_screen.echo(text)
    return 0


def _why(target: str, error: ValueError) -> str:
    is_hash = target != "" and len(target) <= 64 and set(target) <= set(string.hexdigits)
    return str(error) if is_hash else "it is neither a label nor the digits of a block's hash"


def _anchor(store: Store, given: str) -> Anchor | None:
    """Return the newest anchor of a label."""
    label = meant(store, given)
    return next((a for a in reversed(store.anchors()) if a.label == label), None)


def _text(found: Shown, model: str, *, is_default: bool) -> tuple[str | None, str]:
    """Return (the block's text or None, why there is none)."""
    from cedagent.chat.tokenizer import Tokenizer
    from cedagent.model.locate import resolve_model

    if not found.ids:
        return None, "its ids are damaged"
    try:
        tokenizer = Tokenizer.load(resolve_model(model))
    except CedError:
        if not is_default:
            raise
        return None, "name its model with -m"
    if found.fields.get("tokenizer") not in (None, tokenizer.digest):
        return None, f"it was written with another tokenizer than that of {model}; name its model"
    return _decoded(found.ids, tokenizer), ""


def _decoded(ids: tuple[int, ...], tokenizer: Tokenizer) -> str:
    stream, parts = tokenizer.stream(), []
    for token in ids:
        parts.append(stream.push(token))
        if tokenizer.token_bytes(token) is None:
            parts.append(tokenizer.token_name(token))
    return printable("".join([*parts, stream.flush()]))


def _lines(found: Shown) -> list[tuple[str, str]]:
    begins = not found.position
    state = "good" if found.is_good else f"DAMAGED: {found.problem}"
    written = "" if found.stamp is None else f", written by commit {found.stamp:,}"
    used = f"{found.hits:.1f} hits, {age(found.last)} ago" if found.last else "never by itself"
    children = ", ".join(key.hex()[:12] for key in found.children)
    known = f"{count(len(found.fields), 'field')}, see --json" if found.fields else "not known"
    return [
        ("block", found.block_hash.hex()),
        ("tokens", f"{found.position:,} to {found.position + 128:,}"),
        ("after", "nothing: here a text begins" if begins else found.parent.hex()[:12]),
        ("before", children or "nothing"),
        ("record", f"{found.file} at {found.offset:,}, {size(found.bytes)}{written}"),
        ("state", state),
        ("snapshot", "none" if found.snapshot_bytes is None else size(found.snapshot_bytes)),
        ("used", used),
        *(("anchor", _of_anchor(anchor)) for anchor in found.anchors),
        ("fingerprint", f"{found.fingerprint}: {known}"),
        ("ids", f"{' '.join(map(str, found.ids[:8]))} ..." if found.ids else "damaged"),
    ]


def _of_anchor(anchor: Anchor) -> str:
    pinned = ", pinned" if anchor.pinned else ""
    tokens = count(anchor.n_tokens, "token")
    return f"{anchor.label} ({anchor.kind}{pinned}, {tokens}, {age(anchor.created)} ago)"
