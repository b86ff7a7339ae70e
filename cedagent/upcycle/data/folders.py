"""What is asked of the built-in tool that lists files.

Knows patterns of file names. Invariant: what a listing shows matches the pattern it was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cedagent.upcycle.data.builtin import LIST_FILES
from cedagent.upcycle.data.draw import Draw
from cedagent.upcycle.data.phrasing import joined, lines
from cedagent.upcycle.data.skill import Skill


def _listing(draw: Draw, arguments: Mapping[str, Any]) -> dict[str, Any]:
    pattern = arguments.get("pattern", "*")
    names = {_matching(draw, pattern) for _ in range(draw.whole(1, 7))}
    if pattern == "*" and draw.chance(0.4):
        names.add(draw.folder_name() + "/")
    found = sorted(names)
    where = f"in {arguments['folder']}" if "folder" in arguments else "here"
    said = {"_names": joined(found), "_be": "is" if len(found) == 1 else "are", "_where": where}
    return {"shown": "\n".join(found), "_all": found, **said}


def _matching(draw: Draw, pattern: str) -> str:
    """Return the name of a file that matches the pattern."""
    stem, _, extension = pattern.rpartition(".")
    if not stem:
        return draw.file_name() if pattern == "*" else pattern.replace("*", f"-{draw.file_name()}")
    before, *after = stem.split("*")
    name = draw.file_name(extension).removesuffix(f".{extension}")
    middle = "".join(part + draw.pick(("", "_1", "-old")) for part in after if part)
    return f"{before}{name}{'_' if middle else ''}{middle}.{extension}"


_EXTENSIONS = "*.py=Python/python,*.md=Markdown,*.txt=text,*.json=JSON,*.csv=CSV,*.log=log"


_LISTINGS = lines("""
    there {_be} {_names}.
    I found {_names} {_where}.
    I see {_names} {_where}.
    the files {_where} are {_names}.
""")


def folder_skills() -> list[Skill]:
    """Return what is asked about folders."""

    def draws(draw: Draw) -> dict[str, Any]:
        kinds = ("*.py", "*.md", "*.txt", "*.json", "*.csv", "*.log")
        return {"folder": draw.folder(), "pattern": draw.pick(kinds)}

    def named(draw: Draw) -> dict[str, Any]:
        pattern = draw.pick((f"{draw.stem()}*", f"*{draw.noun()}*.txt", "*.toml"))
        return {"folder": draw.folder(), "pattern": pattern}

    common: dict[str, Any] = {
        "spec": LIST_FILES,
        "area": "files",
        "result": _listing,
        "shows": "{shown}",
        "answers": _LISTINGS,
        "needed": ("_all",),
    }
    by_kind = f"{{pattern:{_EXTENSIONS}}} files"
    return [
        Skill(
            **common,
            draw=draws,
            asks=lines(f"""
                ?which files are in {{folder}}
                !list the [files|contents] of {{folder}}
                !show me what is in the folder {{folder}}
                ?what {by_kind} are in {{folder}}
                !list all {by_kind} in {{folder}}
                ?what's inside {{folder}}
                =the {by_kind} in {{folder}}
                ls {{folder}}
            """),
            heldout_asks=lines(f"""
                ?what does the folder {{folder}} contain
                !have a look at which {by_kind} there are in {{folder}}
                ?can I see the contents of {{folder}}
            """),
            vary="folder",
            wish="look into folders",
        ),
        Skill(
            **common,
            draw=lambda draw: {name: v for name, v in draws(draw).items() if name != "folder"},
            asks=lines(f"""
                ?which files are here
                !list the files here
                ?what {by_kind} are there
                [show me|please show me] the {by_kind}
                ?what is in [this|the current] folder
                !list the {by_kind} in the current directory
            """),
            heldout_asks=lines(f"""
                ?what have we got in this directory
                I need to know which {by_kind} we have
            """),
        ),
        Skill(
            **common,
            draw=named,
            asks=lines("""
                !list the files matching {pattern}< in {folder}>
                ?which files< in {folder}> match {pattern}
                =the files< in {folder}> with names like {pattern}
            """),
            heldout_asks=lines("""
                ?what in {folder} has a name of the form {pattern}
                !find everything that matches {pattern}< in {folder}>
            """),
        ),
    ]
