"""The store against a dictionary, step by step, for one process or several.

The dictionary has every path that was ever stored, and whether it must be there still. Only a drop
or damage makes that doubtful; pins, what a process holds and what it matched last must survive a
drop, and what was removed never comes back. The hands that act check each row themselves.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from store_model import BLOCK_SPAN, Hands, Path_, damage, prefixes, segments

BUDGET = 1 << 20
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=7).map(tuple)
WHO = st.integers(0, 1)
SEEDS = st.integers(0, 1 << 16)


class StoreMachine(RuleBasedStateMachine):
    paths = Bundle("paths")

    def __init__(self, hands: Callable[[str, int], list[Hands]]) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.hands = hands(str(self.base / "kv"), BUDGET)
        self.known: dict[Path_, bool] = {}
        """Path -> must it be there."""
        self.anchors: dict[str, bool] = {}
        """Label -> is it pinned."""
        self.removed: set[str] = set()
        """Labels that must stay away until they are committed again."""
        self.held: list[Path_ | None] = [None for _ in self.hands]
        self.incoming: list[Path_] = [() for _ in self.hands]
        self.intact, self.was_damaged = True, False

    def teardown(self) -> None:
        for hand in self.hands:
            hand.close()
        shutil.rmtree(self.base)

    # What the dictionary says.

    def must(self) -> list[Path_]:
        return sorted(path for path, is_there in self.known.items() if is_there)

    def needed(self, *, others_than: int | None = None, plain: bool = False) -> set[Path_]:
        """What no drop may take; of one process only what it holds, not what it matched last."""
        labels = [label for label, is_pinned in self.anchors.items() if plain or is_pinned]
        ends = [tuple(map(int, label)) for label in labels]
        ends += [path for path in self.held if path]
        ends += [path for i, path in enumerate(self.incoming) if i != others_than]
        return set().union(*(prefixes(path) for path in ends if self.known.get(path)))

    def dropped(self, who: int, spared: set[Path_]) -> None:
        """Something may be gone now, but nothing that was spared."""
        before = self.must()
        found = self.hands[who].found(before)
        for path, count in zip(before, found, strict=True):
            assert count == len(path) or path not in spared, path
            self.known[path] = count == len(path)
        after = self.hands[who].anchors()
        assert all(after.get(label) for label, is_pinned in self.anchors.items() if is_pinned)
        self.anchors = after

    def _look_anew(self, who: int) -> None:
        paths = list(self.known)
        found = self.hands[who].found(paths)
        self.known = {p: n == len(p) for p, n in zip(paths, found, strict=True)}
        self.anchors = self.hands[who].anchors()

    def _doubt(self) -> None:
        """Anything may be damaged from here on."""
        self.intact, self.known = False, dict.fromkeys(self.known, False)

    def look_at(self, who: int, path: Path_) -> int:
        matched, good = self.hands[who].look(path)
        assert prefixes(path[:matched]) <= self.known.keys(), "never stored, or removed"
        if matched:
            self.incoming[who] = path[:matched]
        if self.intact:
            assert good == matched
            assert not any(self.known.get(p) for p in prefixes(path) if len(p) > matched)
        return good

    # What one may do.

    @rule(
        target=paths,
        who=WHO,
        path=PATHS,
        anchor=st.sampled_from(["", "plain", "pinned"]),
        snapshot=st.booleans(),
        whole=st.booleans(),
    )
    def commit(self, who: int, path: Path_, anchor: str, snapshot: bool, whole: bool) -> Path_:
        who %= len(self.hands)
        first = 0 if whole else self.look_at(who, path)
        # Few pins, or the budget could be all pins.
        is_pinned = anchor == "pinned" and sum(self.anchors.values()) < 2
        label = "".join(map(str, path)) if anchor else ""
        before = self.hands[who].dropped()
        spared = self.needed() | prefixes(path)
        self.removed.discard(label)
        reason = self.hands[who].commit(path, first, label, is_pinned, snapshot)
        for each in prefixes(path):
            self.known[each] = self.known.get(each, False) or (reason is None and self.intact)
        if not self.intact:
            return path
        if reason is None and label:
            self.anchors[label] = is_pinned or self.anchors.get(label, False)
        if self.hands[who].dropped() != before or reason is not None:
            self.dropped(who, spared)
        if reason is not None:
            assert len(spared) * BLOCK_SPAN > BUDGET // 2, reason
        assert reason is not None or self.look_at(who, path) == len(path)
        return path

    @rule(target=paths, who=WHO, path=paths, at=st.integers(1, 6), tail=PATHS)
    def fork(self, who: int, path: Path_, at: int, tail: Path_) -> Path_:
        self.commit(who, path[:at], "plain", snapshot=True, whole=False)
        return self.commit(who, (path[:at] + tail)[:7], "plain", snapshot=True, whole=False)

    @initialize(seed=SEEDS)
    def fill_first(self, seed: int) -> None:
        for who in range(3):
            self.fill(who, seed + who)

    @rule(who=WHO, seed=SEEDS)
    def fill(self, who: int, seed: int) -> None:
        """Some paths at once, so that there is something to drop."""
        draw = random.Random(seed)
        for _ in range(5):
            path = tuple(draw.choices(range(3), k=draw.randrange(3, 8)))
            self.commit(who, path, draw.choice(["", "plain"]), snapshot=False, whole=False)

    @rule(who=WHO, path=paths)
    def look(self, who: int, path: Path_) -> None:
        self.look_at(who % len(self.hands), path)

    @rule(who=WHO, path=paths)
    def pin_or_unpin(self, who: int, path: Path_) -> None:
        who %= len(self.hands)
        held, self.held[who] = self.held[who], None
        if held:
            self.hands[who].unpin(held)
        elif self.known.get(path):
            self.hands[who].pin(path)
            self.held[who] = path

    @rule(who=WHO, path=paths, held=paths, share=st.floats(0, 1))
    def evict(self, who: int, path: Path_, held: Path_, share: float) -> None:
        who %= len(self.hands)
        if self.held[who] is None:
            self.pin_or_unpin(who, held)
        self.look_at(who, path)
        self.hands[who].evict(share)
        if self.intact:
            self.dropped(who, self.needed())

    @rule(who=WHO, what=st.sampled_from(["compact", "reopen", "rebuild", "gc"]))
    def look_after(self, who: int, what: str) -> None:
        getattr(self, what)(who % len(self.hands))

    def gc(self, who: int) -> None:
        before = self.must()
        reason = self.hands[who].gc()
        if self.intact:
            assert reason is None
            spared = self.needed(plain=True)
            self.dropped(who, spared)
            assert {path for path in before if self.known[path]} <= spared, "nobody needs it"

    def compact(self, who: int) -> None:
        self.hands[who].compact()

    @rule(who=WHO, path=paths, which=SEEDS, how=st.sampled_from(["plain", "purge", "rebuild"]))
    def remove(self, who: int, path: Path_, which: int, how: str) -> None:
        who %= len(self.hands)
        # Few paths have a label of their own.
        labels = ["".join(map(str, path)), *sorted(self.anchors)]
        label = labels[which % len(labels)]
        path = tuple(map(int, label))
        was_there = label in self.anchors
        self.hands[who].remove(label, how == "purge")
        assert label not in self.hands[who].anchors() or not self.intact
        self.anchors.pop(label, None)
        if not self.intact:
            return
        if was_there:
            self.removed.add(label)
        before, spared = self.must(), self.needed(others_than=who, plain=True)
        self.dropped(who, spared if was_there else set(before))
        for each in before:
            if not self.known[each]:
                # From the disk, not only out of sight: no rebuild finds it again.
                del self.known[each]
        assert not was_there or {p for p in prefixes(path) if self.known.get(p)} <= spared
        if how == "rebuild":
            self.rebuild(who)

    def reopen(self, who: int) -> None:
        self.hands[who].close()
        self.hands[who].open()
        self.held[who], self.incoming[who] = None, ()

    def rebuild(self, _who: int) -> None:
        for hand in self.hands[1:]:
            hand.close()
        self.hands[0].close(lose_index=True)
        for who, hand in enumerate(self.hands):
            hand.open()
            self.held[who], self.incoming[who] = None, ()
        # What was evicted may come back with its anchors. A rebuild reads no payloads: damage that
        # was mended before is found again by reading.
        if self.was_damaged:
            self._doubt()
        if self.intact:
            before = self.must(), self.anchors
            self._look_anew(0)
            assert {*before[0]} <= {*self.must()}
            assert before[1].items() <= self.anchors.items()
            assert not self.removed & self.anchors.keys()

    @rule(which=SEEDS, at=st.integers(0, BUDGET), how=st.sampled_from(["flip", "zero", "truncate"]))
    def corrupt(self, which: int, at: int, how: str) -> None:
        if files := segments(self.base / "kv"):
            file = files[which % len(files)]
            damage(file, at % file.stat().st_size, how)
            self.was_damaged = True
            self._doubt()

    @rule(who=WHO)
    def mend(self, who: int) -> None:
        who %= len(self.hands)
        self.hands[who].mend()
        for hand in self.hands:
            assert hand.problems() == []
        if not self.intact:
            self.intact = True
            self._look_anew(who)

    @invariant()
    def all_is_there_without_holes_and_within_budget(self) -> None:
        must = self.must()
        # Who is there has its whole path with it.
        ends = [path for path in must if not any(path == other[:-1] for other in must)]
        for hand in self.hands:
            hand.check()
            if self.intact:
                assert hand.found(ends) == [len(path) for path in ends]
                assert hand.anchors() == self.anchors
        assert not self.intact or self.hands[0].problems() == []
