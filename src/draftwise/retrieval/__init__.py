"""One retrieval index: the text itself, earlier answers, and a corpus on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise.retrieval.corpus import (
        Store as DatastoreFile, replacing, sort_suffixes, write as write_datastore,
    )
    from draftwise.retrieval.index import (
        DEFAULT_RULE, LONGEST_DRAFT, PROMPT_TAIL, SLICE, History, MemoryUsage,
        RetrievalIndex, capacity_for,
    )
    from draftwise.retrieval.kernels import (
        CATCH_UP, LONGEST_CONTEXT, LONGEST_MATCH, NUM_ORDERS, PATIENCE, MatchRule, Proposals,
    )
    from draftwise.retrieval.index import (
        NO_MATCH, Match, TokenTree, continuation_tree, most_frequent_path,
    )

__getattr__, __dir__ = exports(__name__)
