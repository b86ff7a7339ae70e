"""Known tasks of several steps around files and pages.

Each says what the tools return and which argument comes from it. Invariant: training and held-out
templates are different texts; what has none for training is a combination that is held out whole.
"""

from __future__ import annotations

from cedagent.upcycle.data.chain import Chain, Values
from cedagent.upcycle.data.documents import few_rows
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.numbers import exact, shown
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.records import RECORDS
from cedagent.upcycle.data.skill import compact
from cedagent.upcycle.data.skills import specs
from cedagent.upcycle.data.tools_documents import page_address
from cedagent.upcycle.data.tools_store import key

_STOCK = next(kind for kind in RECORDS if "quantity" in kind.wants)


def _document(d: Draw) -> Values:
    document = few_rows(d, d.whole(2, 9))
    return {
        **document.target,
        "text": document.text,
        "extension": document.kind.extension,
        "path": d.path(document.kind.extension),
    }


def _only_file() -> Chain:
    def draw(d: Draw) -> Values:
        values, folder = _document(d), d.folder()
        name = d.file_name(values["extension"])
        others = [n for n in (d.file_name(e) for e in ("py", "xml", "ini")) if d.chance(0.4)]
        kind = {"md": "Markdown", "txt": "text", "toml": "TOML", "json": "JSON", "csv": "CSV",
                "log": "log"}[values["extension"]]  # fmt: skip
        return {**values, "folder": folder, "path": f"{folder}/{name}", "kind": kind,
                "listing": "\n".join(sorted([name, *others]))}  # fmt: skip

    return Chain(
        specs=specs("list_files read_file"),
        draw=draw,
        steps=lambda v: [
            [("list_files", {"folder": v["folder"]}, v["listing"])],
            [("read_file", {"path": v["path"]}, v["text"])],
        ],
        asks=lines("""
            =the {want} of {name}; it is in the {kind} file in {folder}
            ?what is the {want} of {name}, according to the only {kind} file in {folder}
            there is one {kind} file in {folder}. Which {want} does it give for {name}?
        """),
        heldout_asks=lines("""
            I don't know what the {kind} file in {folder} is called, but it has the {want} of \
                {name}. What is it?
        """),
        answers=lines("""
            the {want} of {name} is {value}.
            {path} says that the {want} of {name} is {value}.
            it is {value}.
        """),
        needed=("value",),
    )  # fmt: skip


def _found_lines() -> Chain:
    def draw(d: Draw) -> Values:
        wanted, folder = d.pick((d.noun(), d.code("@@-####"), d.person())), d.folder()
        n, at = d.whole(2, 5), d.whole(2, 180)
        path = f"{folder}/{d.file_name(d.pick(('md', 'txt', 'log')))}"
        shown_lines = [f"see {wanted}", *(d.pick((d.message, d.task))() for _ in range(n - 1))]
        return {"wanted": wanted, "folder": folder, "n": n, "at": at, "path": path,
                "lines": "\n".join(shown_lines), "last": shown_lines[-1]}  # fmt: skip

    return Chain(
        specs=specs("search_files read_file"),
        draw=draw,
        steps=lambda v: [
            [(
                "search_files",
                {"text": v["wanted"], "folder": v["folder"]},
                f"{v['path']}:{v['at']}: see {v['wanted']}",
            )],
            [(
                "read_file",
                {"path": v["path"], "first_line": v["at"], "lines": v["n"]},
                v["lines"],
            )],
        ],
        asks=lines("""
            !find "{wanted}" in {folder} and show {n} lines from there on
            !search {folder} for {wanted} and read {n} lines starting where it occurs
        """),
        heldout_asks=lines("""
            ?where in {folder} does "{wanted}" stand, and what do the {n} lines from there say
        """),
        answers=lines("""
            it is in {path}, line {at}: {lines}
            {path}, from line {at} on: {lines}
        """),
        needed=("last",),
    )  # fmt: skip


def _worth() -> Chain:
    def draw(d: Draw) -> Values:
        document = few_rows(d, d.whole(2, 8), kind=_STOCK)
        row = document.target
        total = shown(row["quantity"] * exact(row["price"]))
        return {**row, "text": document.text, "path": d.path("md"), "total": total}

    return Chain(
        specs=specs("read_file calculator"),
        draw=draw,
        steps=lambda v: [
            [("read_file", {"path": v["path"]}, v["text"])],
            [("calculator", {"expression": f"{v['quantity']} * {v['price']}"}, v["total"])],
        ],
        asks=lines("""
            ?what is the whole stock of the {name} worth, according to {path}
            !multiply quantity and price of the {name} in {path}
            =the quantity times the price of the {name}, see {path}
        """),
        heldout_asks=lines("""
            {path} lists how many of the {name} we have and at which price. What are they worth \
                together?
        """),
        answers=lines("""
            they are worth {total}.
            {quantity} times {price} is {total}.
            the stock of the {name} is worth {total}.
        """),
        needed=("total",),
    )  # fmt: skip


def _keep() -> Chain:
    return Chain(
        specs=specs("read_file set_value"),
        draw=lambda d: {**_document(d), "key": key(d)},
        steps=lambda v: [
            [("read_file", {"path": v["path"]}, v["text"])],
            [("set_value", {"key": v["key"], "value": v["value"]}, compact({"stored": v["key"]}))],
        ],
        asks=lines("""
            !store the {want} of {name} from {path} as text under {key}
            !read {path} and save the {want} of {name} as the text {key}
        """),
        heldout_asks=lines("""
            {path} gives the {want} of {name}. Put it into the store as {key}, as a text
        """),
        answers=lines("""
            {key} is now {value}.
            I stored {value} under {key}.
            done: {key} = {value}.
        """),
        needed=("value",),
    )


def _tell() -> Chain:
    return Chain(
        specs=specs("fetch_page send_message"),
        draw=lambda d: {**_document(d), "url": page_address(d), "person": d.first_name()},
        steps=lambda v: [
            [("fetch_page", {"url": v["url"]}, v["text"])],
            [(
                "send_message",
                {"person": v["person"], "text": v["value"]},
                compact({"delivered": True}),
            )],
        ],
        asks=lines("""
            !open {url} and send {person} the {want} of {name}, nothing else
            !message {person} just the {want} of {name} from {url}
        """),
        heldout_asks=lines("""
            {person} only wants the {want} of {name}, which is on {url}. Send it
        """),
        answers=lines("""
            I sent {value} to {person}.
            {person} got it: {value}.
            {value} is on its way to {person}.
        """),
        needed=("value",),
    )  # fmt: skip


def _three() -> Chain:
    def draw(d: Draw) -> Values:
        document = few_rows(d, d.whole(2, 7), kind=_STOCK)
        row, name = document.target, d.file_name("md")
        folder = d.folder()
        others = [f"{d.stem()}.py", f"{d.noun()}.xml"][: d.whole(0, 2)]
        return {**row, "text": document.text, "folder": folder, "path": f"{folder}/{name}",
                "listing": "\n".join(sorted([name, *others])),
                "total": shown(row["quantity"] * exact(row["price"]))}  # fmt: skip

    return Chain(
        specs=specs("list_files read_file calculator"),
        draw=draw,
        steps=lambda v: [
            [("list_files", {"folder": v["folder"]}, v["listing"])],
            [("read_file", {"path": v["path"]}, v["text"])],
            [("calculator", {"expression": f"{v['quantity']} * {v['price']}"}, v["total"])],
        ],
        asks=lines("""
            the Markdown file in {folder} lists our stock. What is quantity times price for the \
                {name}?
            !find the Markdown file in {folder}, look up the {name} and multiply quantity and price
        """),
        heldout_asks=lines("""
            ?what are all our {name} worth together - quantity and price are in the Markdown \
                file in {folder}
        """),
        answers=lines("""
            it is {total}.
            {quantity} times {price} makes {total}.
            the {name} is worth {total} in all.
        """),
        needed=("total",),
    )  # fmt: skip


def file_chains() -> tuple[Chain, ...]:
    """Return the chains of this module."""
    return (
        _only_file(),
        _found_lines(),
        _worth(),
        _keep(),
        _tell(),
        _three(),
    )
