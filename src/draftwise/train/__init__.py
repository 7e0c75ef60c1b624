"""Training: language models from text, drafters by distillation from a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.train.adapt import Adapter as Adapter
    from draftwise.train.answers import Ask as Ask
    from draftwise.train.answers import answers as sample_answers
    from draftwise.train.answers import continuations as continuations
    from draftwise.train.answers import read_kept as read_kept
    from draftwise.train.data import Observed as Observed
    from draftwise.train.data import Text as Text
    from draftwise.train.data import answer_logits as answer_logits
    from draftwise.train.data import groups as groups
    from draftwise.train.data import halved as halved
    from draftwise.train.data import observe as observe
    from draftwise.train.data import observed_batches as observed_batches
    from draftwise.train.data import pad as pad
    from draftwise.train.drafter import LOSSES as LOSSES
    from draftwise.train.drafter import DrafterOptions as DrafterOptions
    from draftwise.train.drafter import acceptance as acceptance
    from draftwise.train.drafter import drafter_batches as drafter_batches
    from draftwise.train.drafter import drafter_settings as drafter_settings
    from draftwise.train.drafter import first_layers as first_layers
    from draftwise.train.drafter import measure_acceptance as measure_acceptance
    from draftwise.train.drafter import narrow as narrow
    from draftwise.train.eagle import acceptance_by_depth as acceptance_by_depth
    from draftwise.train.eagle import draft_vocabulary as draft_vocabulary
    from draftwise.train.eagle import eagle_loss as eagle_loss
    from draftwise.train.eagle import new_head as new_head
    from draftwise.train.eagle import unrolled as unrolled
    from draftwise.train.head import AcceptanceHead as AcceptanceHead
    from draftwise.train.head import Chains as Chains
    from draftwise.train.head import HeadOptions as HeadOptions
    from draftwise.train.head import Judged as Judged
    from draftwise.train.head import Judgements as Judgements
    from draftwise.train.head import Label as Label
    from draftwise.train.head import Measured as Measured
    from draftwise.train.head import Setting as Setting
    from draftwise.train.head import binary_kl as binary_kl
    from draftwise.train.head import distributions_of as distributions_of
    from draftwise.train.head import draft_chains as draft_chains
    from draftwise.train.head import judge as judge
    from draftwise.train.head import judge_all as judge_all
    from draftwise.train.head import judge_texts as judge_texts
    from draftwise.train.head import load as load_acceptance_head
    from draftwise.train.head import make_head as make_head
    from draftwise.train.head import measure_head as measure_head
    from draftwise.train.head import plot_reliability as plot_reliability
    from draftwise.train.head import reliability as reliability
    from draftwise.train.head import save as save_acceptance_head
    from draftwise.train.head import train_head as train_head
    from draftwise.train.head import unweighted as unweighted
    from draftwise.train.head import weighted_bce as weighted_bce
    from draftwise.train.loop import Loss as Loss
    from draftwise.train.loop import Progress as Progress
    from draftwise.train.loop import Settings as Settings
    from draftwise.train.loop import fit as fit
    from draftwise.train.prompts import RUN as RUN
    from draftwise.train.prompts import Filter as Filter
    from draftwise.train.prompts import Runs as Runs
    from draftwise.train.prompts import make_prompts as make_prompts
    from draftwise.train.prompts import runs as runs
    from draftwise.train.prompts import runs_of as runs_of
    from draftwise.train.prompts import user_prefix as user_prefix
    from draftwise.train.speedup import MAX_LENGTH as MAX_LENGTH
    from draftwise.train.speedup import break_even as break_even
    from draftwise.train.speedup import measure_costs as measure_costs
    from draftwise.train.speedup import speedups as speedups

__getattr__, __dir__ = exports(__name__)
