"""Torch code without policies: model adapter, ragged KV cache, sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports
from draftwise.nn.library import check_library

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise.nn.attention import RAGGED, attend_raggedly
    from draftwise.nn.cache import (
        BLOCK, UNLIMITED, RaggedCache, RowKVCache, RowSpan,
    )  # fmt: skip
    from draftwise.nn.check import check_model
    from draftwise.nn.layout import Prepacked, lay_out, put_back, weights_of
    from draftwise.nn.eagle import EagleConfig, EagleHead, read as read_head
    from draftwise.nn.eagle_files import default_taps, load_head, read_weights, rope_of
    from draftwise.nn.cache import HiddenStates, HiddenStateHooks
    from draftwise.nn.library import missing as missing_in_transformers
    from draftwise.nn.load import load_model, load_tokenizer
    from draftwise.nn.model import (
        CausalModel, KernelRecorder, Logits, cache_argument, keeps_states, served_positions,
        shadow as shadow_of,
    )
    from draftwise.nn.recurrent import (
        FAMILIES, MOST_STEPS, STEPS, Call, Family, States, bound_arguments, states_after,
    )
    from draftwise.nn.sampling import (
        Occurrences, Shared, SampledSpan, draw, warped,
    )
    from draftwise.nn.tiny import tiny_config, tiny_module
    from draftwise.nn.sampling import answered, fetch
    from draftwise.nn.attention import AttentionInputs, Masks, branches, draft_branches, tree_masks
    from draftwise.nn.verify import DraftTreeBatch, rejection_sample, masses, overlaps, ratios

check_library()  # before any module imports a name that the installed transformers may lack
__getattr__, __dir__ = exports(__name__)
