"""The charts of the report."""

from __future__ import annotations

from draftwise_lab.bench import family, short


def test_families_and_short_names() -> None:
    assert [family(m) for m in ("draftwise", "metasd@4", "fixed:ax1", "transformers", "plain")] == [
        "draftwise", "preset", "fixed", "peer", "plain",
    ]  # fmt: skip
    assert short("transformers") == "hf generate"
