"""What is a slash command and what is text that begins with a slash."""

from __future__ import annotations

import pytest

from cedagent.cli import slash
from cedagent.errors import UsageError


@pytest.mark.parametrize("line", ["/help", "/new name", "/nonsense", "/Fork 2", "/"])
def test_slash_and_letters_are_a_command(line: str) -> None:
    assert slash.is_command(line)


@pytest.mark.parametrize(
    "line", ["/tmp/file.txt please read it", "/2 of it", " /help", "a /help", "//x", "/etc/"]
)
def test_paths_and_lines_with_a_leading_space_are_text(line: str) -> None:
    assert not slash.is_command(line)


def test_unknown_command_says_how_to_send_it_as_text() -> None:
    with pytest.raises(UsageError, match="a space before it sends it as text"):
        slash.run(None, "/nonsense")  # type: ignore[arg-type]  # no command gets to see it
