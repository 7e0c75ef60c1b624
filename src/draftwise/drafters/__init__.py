"""WHAT to draft with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.drafters.datastore import DatastoreDrafter as DatastoreDrafter
    from draftwise.drafters.datastore import Store as DatastoreFile
    from draftwise.drafters.datastore import replacing as replacing
    from draftwise.drafters.datastore import sort_suffixes as sort_suffixes
    from draftwise.drafters.datastore import write as write_datastore
    from draftwise.drafters.eagle import EagleDrafter as EagleDrafter
    from draftwise.drafters.eagle import EagleRunner as EagleRunner
    from draftwise.drafters.experimental.heads import DFlashDrafter as DFlashDrafter
    from draftwise.drafters.experimental.heads import MedusaDrafter as MedusaDrafter
    from draftwise.drafters.lm import ROOM as ROOM
    from draftwise.drafters.lm import LMDrafter as LMDrafter
    from draftwise.drafters.lm import LMRunner as LMRunner
    from draftwise.drafters.lm import Window as Window
    from draftwise.drafters.lookup import LookupDrafter as LookupDrafter
    from draftwise.drafters.model_session import Chain as Chain
    from draftwise.drafters.model_session import NeuralSession as NeuralSession
    from draftwise.drafters.protocol import Context as Context
    from draftwise.drafters.protocol import Drafter as Drafter
    from draftwise.drafters.protocol import DraftTask as DraftTask
    from draftwise.drafters.retrieval import LONGEST_MATCH as LONGEST_MATCH
    from draftwise.drafters.retrieval import NO_MATCH as NO_MATCH
    from draftwise.drafters.retrieval import Match as Match
    from draftwise.drafters.retrieval import RetrievalSession as RetrievalSession
    from draftwise.drafters.retrieval import TokenTree as TokenTree
    from draftwise.drafters.retrieval import most_frequent_path as most_frequent_path
    from draftwise.drafters.retrieval import tree as continuation_tree
    from draftwise.drafters.suffix import ORDERS as ORDERS
    from draftwise.drafters.suffix import SuffixDrafter as SuffixDrafter

__getattr__, __dir__ = exports(__name__)
