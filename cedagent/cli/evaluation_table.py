"""The table of `cedagent model eval`: goals beside what was reached, models side by side.

Knows reports and how they read; measures nothing. What a goal asks for says by colour and word
whether it was reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

    from cedagent.upcycle.evaluation.closeness import Positions
    from cedagent.upcycle.evaluation.figures import Figure
    from cedagent.upcycle.evaluation.rates import Mean, Rate
    from cedagent.upcycle.evaluation.report import ModelReport
    from cedagent.upcycle.evaluation.tools import KindReport

_MOST_GLOBAL = 10
"""Global encoder layers with which the KL's bound is to be reached."""
_PLAIN_WIDTH = 200
_COLOURS = {"aim met": "green", "bound met": "", "bound missed": "bold red"}
_WORDS = {"aim met": " *", "bound met": "", "bound missed": " MISSED"}

_Row = tuple[str, str, str, Sequence["str | Text"]]


def print_evaluation(reports: Sequence[ModelReport]) -> None:
    """Print the table to stdout."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, width=_PLAIN_WIDTH)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("")
    table.add_column("bound", justify="right")
    table.add_column("aim", justify="right")
    for report in reports:
        table.add_column(_title(report))
    for section in (_goals(reports), _text(reports), _tools(reports), _shape(reports)):
        rows = list(section)
        for number, (name, bound, aim, cells) in enumerate(rows, 1):
            table.add_row(name, bound, aim, *cells, end_section=number == len(rows))
    console.print(table)
    console.print(
        "* aim met; MISSED: worse than the bound. Shares with Wilson's 95% interval, means with "
        "their standard error.\nKL(parent || student) in nats per token. Every output is judged "
        "after the right history: a wrong call is replaced by the expected one.",
        style="dim",
        soft_wrap=True,
    )
    if differing := _differing(reports):
        console.print(f"Not comparable, drawn otherwise: {', '.join(differing)}.", style="bold red")


def _differing(reports: Sequence[ModelReport]) -> list[str]:
    """Return what the models were not measured on alike: texts, or kinds of cases."""
    found: dict[str, set[str]] = {}
    for report in reports:
        if report.text is not None:
            found.setdefault("texts", set()).add(report.text.digest)
        for kind in report.kinds:
            found.setdefault(kind.kind, set()).add(kind.digest)
    return [name for name, digests in found.items() if len(digests) > 1]


def _title(report: ModelReport) -> str:
    name = report.model.rstrip("/").rpartition("/")[2]
    return f"{name}\n{report.digest[:12]}"


def _goals(reports: Sequence[ModelReport]) -> Iterator[_Row]:
    from rich.text import Text

    from cedagent.upcycle.evaluation.figures import GOALS

    for goal in GOALS:
        found = [_figure(report, goal.key) for report in reports]
        if any(figure is not None for figure in found):
            bound, aim = (
                f"{value:g}" if goal.lower_is_better else f"{100 * value:g}%"
                for value in (goal.bound, goal.aim)
            )
            cells = [Text() if figure is None else _standing(figure) for figure in found]
            yield goal.text, bound, aim, cells


def _text(reports: Sequence[ModelReport]) -> Iterator[_Row]:
    def row(name: str, cell: Callable[[Positions], str]) -> Iterator[_Row]:
        spans = dict.fromkeys(
            (part.start, part.stop)
            for report in reports
            if report.text is not None
            for part in report.text.buckets
        )
        for start, stop in sorted(spans):
            cells = []
            for report in reports:
                parts = () if report.text is None else report.text.buckets
                found = [part for part in parts if (part.start, part.stop) == (start, stop)]
                cells.append(cell(found[0]) if found else "")
            yield f"{name}, positions {start:,}-{stop:,}", "", "", cells

    yield from row("KL to the parent", lambda part: _mean(part.kl))
    yield from row(
        "perplexity (parent's)",
        lambda part: f"{part.perplexity:.2f} ({part.parent_perplexity:.2f})",
    )
    cells = [
        "" if report.text is None or report.text.first_token is None
        else _mean(report.text.first_token)
        for report in reports
    ]  # fmt: skip
    if any(cells):
        yield "KL of the first token after a prefill", "", "", cells


def _tools(reports: Sequence[ModelReport]) -> Iterator[_Row]:
    kinds = list(dict.fromkeys(kind.kind for report in reports for kind in report.kinds))
    for name in kinds:
        of_kind = [_kind(report, name) for report in reports]
        if name.startswith("needle_"):
            tokens = int(name.removeprefix("needle_"))
            yield _rates(f"needle, {tokens:,} tokens", of_kind, lambda kind: kind.answer)
            depths = max(len(kind.depths) for kind in of_kind if kind is not None)
            for i in range(depths):
                part = f"  {100 * i // depths}-{100 * (i + 1) // depths}% into it"
                yield _rates(part, of_kind, lambda kind, i=i: kind.depths[i])  # type: ignore[misc]
        else:
            if any(kind is not None and kind.recovery is not None for kind in of_kind):
                yield _rates("right next step after a failed call", of_kind, lambda k: k.recovery)
            yield _rates(f"whole conversations right: {name}", of_kind, lambda kind: kind.whole)


def _shape(reports: Sequence[ModelReport]) -> Iterator[_Row]:
    def row(name: str, cell: Callable[[ModelReport], object], bound: str = "") -> _Row:
        return name, bound, "", [str(cell(report)) for report in reports]

    def layers(report: ModelReport) -> str:
        n_global = len(report.config.get("encoder_global_layers") or ())
        return f"{n_global}{_WORDS['bound missed'] if n_global > _MOST_GLOBAL else ''}"

    yield row("encoder layers", lambda r: _of(r, "n_encoder_layers", "num_hidden_layers"))
    yield row("global encoder layers", layers, str(_MOST_GLOBAL))
    tokens = reports[0].cost.append_tokens if reports else 0
    yield row(
        f"append {tokens:,} tokens, token-layers",
        lambda r: f"{r.cost.append_token_layers:,} of {r.cost.full_token_layers:,}",
    )
    yield row("bytes per token, stored", lambda r: f"{r.cost.bytes_per_token:,}")
    yield row("bytes of a snapshot", lambda r: f"{r.cost.snapshot_bytes:,}")
    yield row("cases of a kind", lambda r: r.settings.cases if r.kinds else "")
    yield row("seconds", lambda r: f"{sum(r.seconds.values()):,.0f}")


def _of(report: ModelReport, part: str, whole: str) -> str:
    return f"{report.config.get(part)} of {report.config.get(whole)}"


def _rates(
    name: str, kinds: Sequence[KindReport | None], pick: Callable[[KindReport], Rate | None]
) -> _Row:
    return name, "", "", [_rate(None if kind is None else pick(kind)) for kind in kinds]


def _figure(report: ModelReport, key: str) -> Figure | None:
    return next((figure for figure in report.figures if figure.key == key), None)


def _kind(report: ModelReport, name: str) -> KindReport | None:
    return next((kind for kind in report.kinds if kind.kind == name), None)


def _standing(figure: Figure) -> Text:
    from rich.text import Text

    if figure.lower_is_better:
        text = _kl(figure.value)
        if figure.high is not None:
            text += f" ±{(figure.high - figure.value) / 1.96:.4f}"
    else:
        text = _percent(figure.value)
        if figure.low is not None and figure.high is not None:
            text += f" ({100 * figure.low:.1f}-{100 * figure.high:.1f})"
    return Text(text + _WORDS[figure.standing], style=_COLOURS[figure.standing])


def _rate(rate: Rate | None) -> str:
    if rate is None:
        return ""
    return f"{_percent(rate.value)} ({100 * rate.low:.1f}-{100 * rate.high:.1f})"


def _mean(mean: Mean) -> str:
    return _kl(mean.value) + ("" if mean.error is None else f" ±{mean.error:.4f}")


def _kl(value: float) -> str:
    return f"{value:.4f}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"
