from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cedagent as ca
from cedagent.agent.results import Cutter, Kept, render
from cedagent.chat.tokenizer import Tokenizer
from cedagent.testing import ScriptedModel, call

Make = Callable[..., ScriptedModel]


@dataclass
class Weather:
    city: str
    when: datetime.date
    where: Path


def test_results_are_text_or_compact_json() -> None:
    assert render("as\nit is") == "as\nit is"
    assert render({"b": [1, 2.5, None], "a": "é東🎉"}) == '{"b":[1,2.5,null],"a":"é東🎉"}'
    day = datetime.date(2024, 5, 6)
    assert (
        render(Weather("Roma", day, Path("a/b")))
        == '{"city":"Roma","when":"2024-05-06","where":"a/b"}'
    )
    assert render(None) == "null"
    assert render({"n": 2**100}) == '{"n":1267650600228229401496703205376}'
    assert render((1, "a")) == '[1,"a"]'
    assert render("half \ud83d pair") == "half ? pair"
    with pytest.raises(TypeError, match="object"):
        render([object()])


@settings(max_examples=60, deadline=None)
@pytest.mark.slow
@given(
    text=st.builds(
        lambda piece, n: piece * n,
        st.text(alphabet=st.sampled_from("aé東🎉 \n\u200d\u0301"), min_size=1, max_size=30),
        st.integers(min_value=1, max_value=150),
    ),
    max_tokens=st.integers(min_value=120, max_value=400),
    max_chars=st.none() | st.integers(min_value=1, max_value=500),
)
def test_a_cut_result_fits_and_says_what_is_missing(
    tiny: Path, text: str, max_tokens: int, max_chars: int | None
) -> None:
    tokenizer = Tokenizer.load(tiny)
    kept = Kept()
    cutter = Cutter(tokenizer, max_tokens=max_tokens, kept=kept, pages=True)
    shown = cutter.cut(text, result_id="r1", max_chars=max_chars, paged=True)
    assert len(tokenizer.encode(shown)) <= max_tokens
    if shown == text:
        assert max_chars is None or len(text) <= max_chars
        return
    found = re.search(
        r"\n\[(\d+) of (\d+) characters left out; read on with "
        r'more\(result_id="r1", offset=(\d+)\)\]\n',
        shown,
    )
    assert found is not None
    head, tail = shown[: found.start()], shown[found.end() :]
    assert text.startswith(head)
    assert text.endswith(tail)
    missing, whole, offset = map(int, found.groups())
    assert (whole, offset) == (len(text), len(head))
    assert missing == len(text) - len(head) - len(tail)
    assert kept.get("r1") == text
    read, at = head, len(head)
    while at < len(text):
        page = cutter.page("r1", at)
        assert len(tokenizer.encode(page)) <= max_tokens
        note = re.search(r"\n\[\d+ characters follow from offset (\d+)\]$", page)
        part = page[: note.start()] if note else page
        read += part
        at += len(part)
        assert note is None or int(note[1]) == at
    assert read == text


def test_a_huge_result_is_cut_in_little_time(tiny: Path) -> None:
    cutter = Cutter(Tokenizer.load(tiny), max_tokens=500, kept=Kept(), pages=False)
    shown = cutter.cut("ab c" * 5_000_000, result_id="r1", max_chars=None, paged=True)
    assert "of 20000000 characters left out]" in shown
    assert "more(" not in shown


def test_more_reads_on_in_a_cut_result_also_after_a_restart(scripted: Make) -> None:
    @ca.tool
    def big() -> str:
        """Return much."""
        return "".join(f"line {i}\n" for i in range(2_000))

    limits = ca.Limits(result_tokens=300)
    first = call("big") + "\n" + call("big")
    second = call("more", result_id="r1", offset=8_000)
    model = scripted(first, "Cut.", second, "Read.", call("more", result_id="r9"), "No.")
    agent = ca.Agent(model, tools=[big], limits=limits)
    with agent.session("s") as session:
        one, two = session.run("Go.").tool_calls
        assert 'more(result_id="r2", offset=' in two.result
        result = one.result
        assert 'more(result_id="r1", offset=' in result
        assert result.startswith("line 0\n")
        assert result.endswith("line 1999\n")
    with agent.session("s") as session:
        result = session.run("More.").tool_calls[0].result
        whole = big()
        assert result.startswith(whole[8_000:8_100])
        assert "characters follow from offset" in result
        assert "no result 'r9'" in session.run("And that.").tool_calls[0].result


def test_more_is_offered_only_with_tools_that_need_it(scripted: Make) -> None:
    @ca.tool
    def big() -> str:
        """Return much."""
        return ""

    @ca.tool(paged=False)
    def small() -> str:
        """Return little."""
        return ""

    @ca.tool(name="more", paged=False)
    def mine() -> str:
        """Be called more."""
        return ""

    def names(*tools: ca.Tool) -> list[str]:
        return [spec.name for spec in ca.Agent(scripted(), tools=tools).specs]

    assert names() == []
    assert names(small) == ["small"]
    assert names(big, small) == ["big", "small", "more"]
    assert names(big, mine) == ["big", "more"]


def test_a_kept_result_is_found_by_its_id_only(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    kept = Kept(tmp_path / "kept")
    kept.put("r1", "one\r\ntwo\r")
    assert Kept(tmp_path / "kept").get("r1") == "one\r\ntwo\r"
    assert kept.get("../secret") is None
    assert kept.get("r../secret") is None
    assert kept.get("r2") is None
