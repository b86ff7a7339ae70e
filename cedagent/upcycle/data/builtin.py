"""The tools that every chat has, as the model sees them.

Upcycling stands beside the agent, not above it, so the schemas are written out again; a test
compares them with the real tools.
"""

from __future__ import annotations

from typing import Final

from cedagent.upcycle.data.schemas import maybe, text, tool, whole

CALCULATOR: Final = tool(
    "calculator",
    "Calculate a formula.",
    {"expression": text()},
    examples=(("What is 5% of 80?", {"expression": "5% of 80"}),),
)


NOW: Final = tool(
    "now",
    "Tell the current date, weekday and time.",
    {
        "timezone": maybe(
            text(), "A name such as Europe/Rome; the local time if left out.", default=None
        )
    },
)


LIST_FILES: Final = tool(
    "list_files",
    "List the files of a folder, subfolders with a slash at the end.",
    {
        "folder": text("The folder, relative to the working directory.", default="."),
        "pattern": text("Which names, for example *.py.", default="*"),
    },
)


READ_FILE: Final = tool(
    "read_file",
    "Read lines of a text file.",
    {
        "path": text("The file, relative to the working directory."),
        "first_line": whole("The line to start at.", default=1),
        "lines": whole("How many lines, at most 400.", default=200),
    },
)


SEARCH_FILES: Final = tool(
    "search_files",
    "Find a text in the files below a folder, ignoring case.",
    {
        "text": text("What to find, literally."),
        "folder": text("Where, relative to the working directory.", default="."),
        "pattern": text("Which file names, for example *.py.", default="*"),
    },
)


MORE: Final = tool(
    "more",
    "Read on in a result that was cut.",
    {
        "result_id": text("The id that the cut result names."),
        "offset": whole("The character to start at.", default=0),
    },
)


BUILTIN: Final = (CALCULATOR, NOW, LIST_FILES, READ_FILE, SEARCH_FILES)
