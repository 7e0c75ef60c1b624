"""Torch parts that know no policy: model adapter, ragged KV cache, sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.nn.attention import RAGGED as RAGGED
    from draftwise.nn.attention import attend_raggedly as attend_raggedly
    from draftwise.nn.cache import BLOCK as BLOCK
    from draftwise.nn.cache import UNLIMITED as UNLIMITED
    from draftwise.nn.cache import RaggedCache as RaggedCache
    from draftwise.nn.cache import Span as Span
    from draftwise.nn.cache import Storage as Storage
    from draftwise.nn.cache import Windows as Windows
    from draftwise.nn.cache import from_first as from_first
    from draftwise.nn.check import check_model as check_model
    from draftwise.nn.cpu.compiled import WIDTHS as WIDTHS
    from draftwise.nn.cpu.compiled import CompiledSteps as CompiledSteps
    from draftwise.nn.cpu.layout import Prepacked as Prepacked
    from draftwise.nn.cpu.layout import lay_out as lay_out
    from draftwise.nn.cpu.layout import put_back as put_back
    from draftwise.nn.cpu.layout import weights_of as weights_of
    from draftwise.nn.cpu.packed import GROUP as GROUP
    from draftwise.nn.cpu.packed import PRECISIONS as PRECISIONS
    from draftwise.nn.cpu.packed import four_bits as four_bits
    from draftwise.nn.cpu.packed import pack as pack
    from draftwise.nn.heads.borrower import load_borrower as load_borrower
    from draftwise.nn.heads.borrower import save_borrower as save_borrower
    from draftwise.nn.heads.dflash import BlockShape as BlockShape
    from draftwise.nn.heads.dflash import DFlashHead as DFlashHead
    from draftwise.nn.heads.dflash import load_dflash_head as load_dflash_head
    from draftwise.nn.heads.eagle import LAYOUTS as LAYOUTS
    from draftwise.nn.heads.eagle import EagleConfig as EagleConfig
    from draftwise.nn.heads.eagle import EagleHead as EagleHead
    from draftwise.nn.heads.eagle import LentHead as LentHead
    from draftwise.nn.heads.eagle import default_taps as default_taps
    from draftwise.nn.heads.eagle import load_head as load_head
    from draftwise.nn.heads.eagle import read as read_head
    from draftwise.nn.heads.eagle import rope_of as rope_of
    from draftwise.nn.heads.eagle import rotary_table as rotary_table
    from draftwise.nn.heads.eagle import save_head as save_head
    from draftwise.nn.heads.eagle import turned as turned
    from draftwise.nn.heads.files import read_weights as read_weights
    from draftwise.nn.heads.medusa import MedusaHeads as MedusaHeads
    from draftwise.nn.heads.medusa import load_medusa_heads as load_medusa_heads
    from draftwise.nn.heads.mtp import MtpHead as MtpHead
    from draftwise.nn.heads.mtp import MtpStyle as MtpStyle
    from draftwise.nn.heads.mtp import load_mtp_head as load_mtp_head
    from draftwise.nn.hidden_states import Features as Features
    from draftwise.nn.hidden_states import Taps as Taps
    from draftwise.nn.hybrid.kernels import FAMILIES as FAMILIES
    from draftwise.nn.hybrid.kernels import STEPS as STEPS
    from draftwise.nn.hybrid.kernels import Call as Call
    from draftwise.nn.hybrid.kernels import Family as Family
    from draftwise.nn.hybrid.kernels import all_after as all_after
    from draftwise.nn.hybrid.kernels import given as given
    from draftwise.nn.hybrid.states import MOST_STEPS as MOST_STEPS
    from draftwise.nn.hybrid.states import States as States
    from draftwise.nn.hybrid.view import Watch as Watch
    from draftwise.nn.hybrid.view import keeps_states as keeps_states
    from draftwise.nn.hybrid.view import shadow as shadow_of
    from draftwise.nn.load import load_model as load_model
    from draftwise.nn.load import load_tokenizer as load_tokenizer
    from draftwise.nn.model import CausalModel as CausalModel
    from draftwise.nn.model import Logits as Logits
    from draftwise.nn.model import Sight as Sight
    from draftwise.nn.model import read_again as read_again
    from draftwise.nn.sampling import Occurrences as Occurrences
    from draftwise.nn.sampling import Shared as Shared
    from draftwise.nn.sampling import Span as SampledSpan
    from draftwise.nn.sampling import distributions as distributions
    from draftwise.nn.sampling import draw as draw
    from draftwise.nn.sampling import warped as warped
    from draftwise.nn.tiny import ROPE_SWITCH as ROPE_SWITCH
    from draftwise.nn.tiny import tiny_config as tiny_config
    from draftwise.nn.tiny import tiny_module as tiny_module
    from draftwise.nn.tiny import windowed as windowed
    from draftwise.nn.transfer import answered as answered
    from draftwise.nn.transfer import fetch as fetch
    from draftwise.nn.trees import Masks as Masks
    from draftwise.nn.trees import branches as branches
    from draftwise.nn.trees import draft_branches as draft_branches
    from draftwise.nn.trees import tree_masks as tree_masks
    from draftwise.nn.verify import Forest as Forest
    from draftwise.nn.verify import judge as judge
    from draftwise.nn.verify import masses as masses
    from draftwise.nn.verify import overlaps as overlaps
    from draftwise.nn.verify import ratios as ratios

__getattr__, __dir__ = exports(__name__)
