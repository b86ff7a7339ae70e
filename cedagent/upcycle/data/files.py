"""What is asked of the tools that read files and search in them.

Knows documents and the file tools' results and errors, letter by letter. Invariant: what a file
holds is settled before the question about it, so the question has an answer in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cedagent.upcycle.data.builtin import READ_FILE, SEARCH_FILES
from cedagent.upcycle.data.conversation import Split
from cedagent.upcycle.data.documents import Document, few_rows
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import lines
from cedagent.upcycle.data.skill import Skill

WHERE: dict[Split, tuple[str, ...]] = {
    "train": lines("""
        @ in {path}
        @ according to {path}
        @ in the file {path}
        @ from {path}
        @, see {path}
    """),
    "heldout": lines("""
        @ as written in {path}
        @ going by {path}
        @ (it is in {path})
    """),
}


def where(ask: str, place: str) -> str:
    """Return a template that says where to look."""
    return place.replace("@", ask)


def document_values(draw: Draw, document: Document, places: tuple[str, ...]) -> dict[str, Any]:
    """Return what the question about a document says, with its templates."""
    asks = document.asks(heldout=draw.split == "heldout")
    return {
        **document.target,
        "document": document.text,
        "_asks": [where(ask, place) for ask in asks for place in places],
        "_answers": document.kind.answers,
    }


def _fact(draw: Draw) -> dict[str, Any]:
    document = few_rows(draw, draw.whole(1, 9))
    path = draw.path(document.kind.extension)
    return {"path": path, **document_values(draw, document, WHERE[draw.split])}


def _texts(draw: Draw, n: int) -> list[str]:
    return [draw.pick((draw.message, draw.task))() for _ in range(n)]


def _part(draw: Draw) -> dict[str, Any]:
    n = draw.whole(1, 6)
    first = draw.whole(2, 180)
    text = "\n".join(_texts(draw, n))
    return {
        "path": draw.path(draw.pick(("txt", "md", "log"))),
        "first_line": first,
        "lines": n,
        "document": text,
        "_lines": text.split("\n"),
    }


def _shown(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {}


def _matches(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
    wanted, folder = arguments["text"], arguments.get("folder", "")
    extension = arguments.get("pattern", "*.*").rpartition(".")[2].strip("*")
    if draw.chance(0.15):
        inside = f" in {folder}" if folder else ""
        answers = lines(f"""
            '{{text}}' does not occur{inside}.
            there is no match for '{{text}}'{inside}.
            I found nothing{inside} for '{{text}}'.
        """)
        return {"shown": f"[{wanted!r} does not occur]", "_answers": answers}
    rows, said, paths = [], [], []
    for _ in range(draw.whole(1, 4)):
        path = draw.file_name(extension)
        path = f"{folder}/{path}" if folder else draw.pick((path, f"{draw.folder()}/{path}"))
        if path in paths:
            continue
        number = draw.whole(1, 300)
        before, after = draw.pick((("", ""), ("see ", ""), ("# ", " again"), ("- ", ": done")))
        rows.append(f"{path}:{number}: {before}{wanted}{after}")
        said.append(f"{path}, line {number}")
        paths.append(path)
    return {"shown": "\n".join(rows), "_places": "; ".join(said), "_paths": paths}


def _search(draw: Draw) -> dict[str, Any]:
    name = f"{draw.stem()}_{draw.noun()}"
    wanted = draw.pick((draw.noun(), name, draw.person(), draw.code("@@-####"), draw.topic()))
    pattern = draw.pick(("*.py", "*.md", "*.txt", "*.log"))
    return {"text": wanted, "folder": draw.folder(), "pattern": pattern}


def file_skills() -> tuple[Skill, ...]:
    """Return what is asked of read_file and search_files."""
    fact = Skill(
        spec=READ_FILE,
        area="files",
        draw=_fact,
        result=_shown,
        shows="{document}",
        answers=(),
        needed=("value",),
        wish="read files",
    )
    part = Skill(
        spec=READ_FILE,
        area="files",
        draw=_part,
        asks=lines("""
            [show me|please show me|can you show me] {lines} lines of {path} from line \
                {first_line} on
            !read {lines} lines of {path}, starting at line {first_line}
            !print the first {lines} lines of {path}
            ?what is in the first {lines} lines of {path}
            !read {path}< from line {first_line}>
            ?what does {path} say
            !open {path}
            [show me|please show me|can you show me] {path}
            cat {path}
        """),
        heldout_asks=lines("""
            let me see {lines} lines of {path}, beginning with line {first_line}
            ?what do the first {lines} lines of {path} say
            !display {path}< starting from line {first_line}>
        """),
        result=_shown,
        shows="{document}",
        answers=lines("""
            {path} says: {document}
            here it is: {document}
            that part of {path} reads: {document}
        """),
        needed=("_lines",),
    )
    search = Skill(
        spec=SEARCH_FILES,
        area="files",
        draw=_search,
        asks=lines("""
            ?where does "{text}" occur< in {folder}>
            !find {text} in {folder}
            !search for "{text}"< in {folder}>
            ?which files< in {folder}> mention {text}
            !search the {pattern} files< in {folder}> for {text}
            !look for "{text}" in all {pattern} files
            ?is "{text}" mentioned anywhere< in {folder}>
            grep "{text}"< in {folder}>
        """),
        heldout_asks=lines("""
            ?in which files< below {folder}> do I find "{text}"
            !locate "{text}"< under {folder}>
            !see whether {text} comes up in any {pattern} file
        """),
        result=_matches,
        shows="{shown}",
        answers=lines("""
            it occurs in {_places}.
            I found it in {_places}.
            '{text}' is in {_places}.
            {text}: {_places}.
        """),
        needed=("_paths",),
        vary="text",
        wish="search in files",
    )
    return (fact, part, search)
