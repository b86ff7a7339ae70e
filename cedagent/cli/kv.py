"""`cedagent kv`: what the prefix store holds, why ids miss, whether its bytes are good.

Only `why` and `selftest` need the model; the others see the store's folder as bytes and names.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cedagent.cli.options import json_option, model_option
from cedagent.cli.report import age, count, print_json, print_table, size
from cedagent.errors import EngineError, UsageError
from cedagent.paths import kv_dir

if TYPE_CHECKING:
    from ced_kvstore import Store


@click.group()
def kv() -> None:
    """Look into the prefix store: what it holds, why something missed."""


def _folder_option(command: click.decorators.FC) -> click.decorators.FC:
    return click.option(
        "--kv",
        "folder",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Folder of the prefix store (in the cache folder by default).",
    )(command)


@kv.command()
@_folder_option
@json_option
def ls(folder: Path | None, as_json: bool) -> int:
    """List the anchors, newest first, and the sizes."""
    store = _store(folder)
    if store is None:
        if as_json:
            print_json({"anchors": [], "stats": None})
        else:
            click.echo("Nothing is stored yet.")
        return 0
    with store:
        anchors, stats = store.anchors()[::-1], store.stats()
    if as_json:
        print_json({"anchors": anchors, "stats": stats})
        return 0
    rows = [
        [a.label, a.kind, f"{a.n_tokens:,}", "pinned" if a.pinned else "", age(a.created),
         a.block_hash.hex()[:12]]
        for a in anchors
    ]  # fmt: skip
    if rows:
        print_table(["label", "kind", "tokens", "", "made", "block"], rows)
    click.echo(
        f"{count(stats.blocks, 'block')}, {size(stats.bytes_on_disk)} on disk of at most "
        f"{size(stats.max_bytes)}" + (f"; {stats.notice}" if stats.notice else "")
    )
    return 0


@kv.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--session", metavar="NAME", help="Explain this session's tokens.")
@click.option("-t", "--tools", "tool_sources", multiple=True, metavar="FILE.py|MODULE[:TOOL]",
              help="Tools of the system turn, as in chat -t.")  # fmt: skip
@click.option("--no-builtin-tools", is_flag=True, help="As in chat.")
@model_option
@_folder_option
@json_option
def why(
    file: Path | None,
    session: str | None,
    tool_sources: tuple[str, ...],
    no_builtin_tools: bool,
    model: str,
    folder: Path | None,
    as_json: bool,
) -> int:
    """Say why a prompt or a session hits or misses.

    FILE holds a system prompt; - stands for the default system prompt.
    """
    from cedagent.cli import explain
    from cedagent.cli.loading import ensure_model, load_tools, open_engine

    if (file is None) == (session is None):
        raise UsageError("kv why: expected a FILE with a system prompt, or --session NAME")
    tools = load_tools(tool_sources, builtin=not no_builtin_tools)
    ensure_model(model)
    engine = open_engine(model, kv=folder)
    try:
        if session is not None:
            ids = explain.session_ids(session)
        else:
            ids = explain.system_ids(engine, tools, file)
        if engine.store is None:
            raise EngineError("; ".join(engine.notices) or "the prefix store cannot be opened")
        found = engine.store.explain(ids)
        lines = explain.lines_of(found, ids, engine.model_dir)
    finally:
        engine.close()
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(lines))
    return 0


@kv.command()
@click.option("--fix", is_flag=True, help="Drop what is damaged and what comes after it.")
@_folder_option
@json_option
def verify(fix: bool, folder: Path | None, as_json: bool) -> int:
    """Check every record.

    Exit code 5 when something is damaged and was not mended.
    """
    store = _store(folder)
    problems = []
    if store is not None:
        with store:
            problems = store.verify(fix=fix)
    if as_json:
        print_json(problems)
    for problem in [] if as_json else problems:
        state = "mended" if problem.fixed else "found"
        click.echo(f"{problem.kind} ({state}): {problem.where}: {problem.detail}")
    if not problems and not as_json:
        click.echo("The store is good." if store is not None else "Nothing is stored yet.")
    return 0 if all(problem.fixed for problem in problems) else EngineError.exit_code


@kv.command()
@click.argument("label", required=False)
@click.option("--session", metavar="NAME", help="What only this session kept.")
@click.option("--block", metavar="HASH", help="What is only needed at this block (from ls).")
@click.option("--all", "everything", is_flag=True, help="Everything, pinned or not.")
@click.option("--purge", is_flag=True, help="Take the bytes off the disk at once.")
@_folder_option
def rm(
    label: str | None,
    session: str | None,
    block: str | None,
    everything: bool,
    purge: bool,
    folder: Path | None,
) -> int:
    """Remove what a LABEL (from ls) kept.

    Blocks that something else needs stay.
    """
    if [label, session, block, everything or None].count(None) != 3:
        raise UsageError("kv rm: expected one of LABEL, --session NAME, --block HASH, --all")
    folder = folder or kv_dir()
    if not everything and block is None:
        name = label if session is None else f"session:{session}"
        dropped = drop_label(folder, str(name), purge=purge)
        if not dropped:
            raise UsageError(f"nothing is stored under {name}; `cedagent kv ls` lists the labels")
        click.echo(f"removed {name}{dropped}")
        return 0
    store = _store(folder)
    if store is None:
        click.echo("Nothing is stored yet.")
        return 0
    with store:
        anchors = store.anchors()
        hashes = {a.block_hash for a in anchors if everything or a.block_hash.hex()[:12] == block}
        if not hashes and not everything:
            raise UsageError(f"no anchor at block {block}; `cedagent kv ls` lists them")
        removals = [store.remove(key, purge=purge) for key in sorted(hashes)]
        if everything:
            store.evict(0)
        reasons = [r.reason for r in removals if r.reason and not r.blocks and not r.anchors]
        if store.read_only:
            raise EngineError(f"nothing was removed: {store.notice or reasons[0]}")
    click.echo(f"removed {count(sum(r.anchors for r in removals), 'anchor')}")
    return 0


@kv.command()
@model_option
@json_option
def selftest(model: str, as_json: bool) -> int:
    """Prove on this machine that a hit gives the bits of a cold run."""
    from cedagent.cli.loading import ensure_model
    from cedagent.cli.selftest import run_selftest

    return run_selftest(ensure_model(model), as_json=as_json)


def drop_label(folder: Path, label: str, *, purge: bool) -> str:
    """Remove what one label kept; return ", 3 blocks, 1.2 MB", or nothing when none was there.

    Raises EngineError when the store cannot be written.
    """
    store = _store(folder)
    if store is None:
        return ""
    with store:
        if not any(anchor.label == label for anchor in store.anchors()):
            return ""
        removed = store.remove(label, purge=purge)
        if store.read_only:
            raise EngineError(f"the store keeps the blocks of {label}: {store.notice}")
    return f", {count(removed.blocks, 'block')}, {size(removed.bytes)}"


def _store(folder: Path | None) -> Store | None:
    """Open the folder for its names and bytes alone, or return None when there is none."""
    from ced_kvstore import Store, StoreError, Stream

    folder = (folder or kv_dir()).expanduser()
    if not folder.exists():
        return None
    try:
        return Store.open(folder, fingerprint={}, streams=[Stream("none", 1)])
    except StoreError as error:
        raise EngineError(str(error)) from None
