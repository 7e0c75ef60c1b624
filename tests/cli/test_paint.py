"""Text attributed to drafters, piece by piece."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from draftwise.cli.show import colours, painted, percentages, total
from draftwise.engine.outputs import SourceAttribution, Stats


def _round(texts: list[str], source: str) -> Any:
    return SimpleNamespace(token_texts=texts, sources=[source] * len(texts))


def test_each_piece_has_its_writer_and_half_characters_wait() -> None:
    attribution = SourceAttribution()
    pieces = attribution.grow(_round(["a", ""], "code"), "a")  # the second is half of é
    assert pieces == [("a", "code")]
    pieces += attribution.grow(_round(["é"], "sql"), "aé")
    pieces += attribution.grow(_round(["", "", "日", "b"], "lookup"), "aé日b")
    assert pieces == [("a", "code"), ("é", "sql"), ("日", "lookup"), ("b", "lookup")]
    assert attribution.finish("aé日b") == []


def test_colours_are_told_apart_and_shares_add_up() -> None:
    styles = colours(list("abcdefghi"))
    assert len(set(styles.values())) == 10
    assert painted([("x", "a"), ("y", "target")], styles).plain == "xy"
    assert percentages({"a": 3, "b": 1, "c": 0}) == "a 75%  b 25%"


def test_rows_that_ran_together_share_their_seconds() -> None:
    rows = [Stats(num_emitted=4), Stats(num_emitted=2)]
    rows[0].seconds_by_phase["verify"], rows[1].seconds_by_phase["verify"] = 2.0, 1.0
    assert total(rows, are_together=True).tok_per_s == 3.0
    assert total(rows).tok_per_s == 2.0
