"""What is not a report is refused; how long an evaluation takes is known before."""

import pytest

from cedagent.errors import CedError, UsageError
from cedagent.upcycle.evaluation.cost import Pace, Work
from cedagent.upcycle.evaluation.report import read_report, write_report


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"\xff", b'{"kind": "x", "version": 1, "models": []}',
                b'{"kind": "cedagent evaluation", "version": 2, "models": []}',
                b'{"kind": "cedagent evaluation", "version": 1, "models": [{"model": "m"}]}']
)  # fmt: skip
def test_another_json_file_is_refused(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.json: expected what `cedagent model eval"):
        read_report(path)


def test_a_report_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(CedError, match=r"cannot write \S+folder: Is a directory"):
        write_report(tmp_path / "folder", [])
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_every_kind_of_work_takes_its_time():
    pace = Pace(0.1, 0.001)
    parts = ("parent", "positions", "prefilled", "fed", "outputs")
    each = [pace.seconds(Work(**{part: 10})) for part in parts]
    parent, positions, prefilled, fed, outputs = each
    assert min(each) > 0
    assert parent > positions > prefilled
    assert outputs > fed
    assert sum(each) == pytest.approx(pace.seconds(Work(*[10] * 5)))
