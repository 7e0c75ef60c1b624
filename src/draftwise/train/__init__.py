"""Training: language models from text, drafters by distillation from a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise.train.adapt import Adapter as Adapter
    from draftwise.train.answers import answers as sample_answers
    from draftwise.train.answers import read_kept as read_kept
    from draftwise.train.calibration import binary_kl as binary_kl
    from draftwise.train.calibration import plot_reliability as plot_reliability
    from draftwise.train.calibration import reliability as reliability
    from draftwise.train.calibration import unweighted as unweighted
    from draftwise.train.distill import acceptance as acceptance
    from draftwise.train.distill import distill as distill_drafter
    from draftwise.train.distill import measure_acceptance as measure_acceptance
    from draftwise.train.drafter import DrafterOptions as DrafterOptions
    from draftwise.train.drafter import LossName as LossName
    from draftwise.train.drafter import drafter_batches as drafter_batches
    from draftwise.train.drafter import drafter_settings as drafter_settings
    from draftwise.train.drafter import first_layers as first_layers
    from draftwise.train.drafter import narrow as narrow
    from draftwise.train.drafter import train_drafter as train_drafter
    from draftwise.train.eagle import Observed as Observed
    from draftwise.train.eagle import acceptance_by_depth as acceptance_by_depth
    from draftwise.train.eagle import deepen as deepen
    from draftwise.train.eagle import draft_vocabulary as draft_vocabulary
    from draftwise.train.eagle import eagle_loss as eagle_loss
    from draftwise.train.eagle import halved as halved
    from draftwise.train.eagle import make_llama as make_llama
    from draftwise.train.eagle import new_head as new_head
    from draftwise.train.eagle import observe as observe
    from draftwise.train.eagle import observed_batches as observed_batches
    from draftwise.train.eagle import pack as pack
    from draftwise.train.eagle import train_eagle as train_eagle
    from draftwise.train.eagle import unrolled as unrolled
    from draftwise.train.generate import continue_prompts as continue_prompts
    from draftwise.train.head import Chains as Chains
    from draftwise.train.head import HeadOptions as HeadOptions
    from draftwise.train.head import Judged as Judged
    from draftwise.train.head import Judgements as Judgements
    from draftwise.train.head import Label as Label
    from draftwise.train.head import Measured as Measured
    from draftwise.train.head import Setting as Setting
    from draftwise.train.head import distributions_of as distributions_of
    from draftwise.train.head import draft_chains as draft_chains
    from draftwise.train.head import judge as judge
    from draftwise.train.head import judge_all as judge_all
    from draftwise.train.head import judge_texts as judge_texts
    from draftwise.train.head import make_head as make_head
    from draftwise.train.head import measure_head as measure_head
    from draftwise.train.head import train_head as train_head
    from draftwise.train.head import weighted_bce as weighted_bce
    from draftwise.train.lesson import Lesson as Lesson
    from draftwise.train.lesson import Text as Text
    from draftwise.train.lesson import answer_logits as answer_logits
    from draftwise.train.lesson import groups as groups
    from draftwise.train.lesson import lesson_batches as lesson_batches
    from draftwise.train.lesson import load as load
    from draftwise.train.lesson import pad as pad
    from draftwise.train.lesson import reserve as reserve
    from draftwise.train.lesson import teach as teach
    from draftwise.train.loop import Loss as Loss
    from draftwise.train.loop import Progress as Progress
    from draftwise.train.loop import Settings as Settings
    from draftwise.train.loop import cross_entropy as cross_entropy
    from draftwise.train.loop import fit as fit
    from draftwise.train.overlap import RUN as RUN
    from draftwise.train.overlap import Runs as Runs
    from draftwise.train.overlap import runs as runs
    from draftwise.train.overlap import runs_of as runs_of
    from draftwise.train.self_prompts import Filter as Filter
    from draftwise.train.self_prompts import make_prompts as make_prompts
    from draftwise.train.self_prompts import user_prefix as user_prefix
    from draftwise.train.speedup import MAX_LENGTH as MAX_LENGTH
    from draftwise.train.speedup import break_even as break_even
    from draftwise.train.speedup import measure_costs as measure_costs
    from draftwise.train.speedup import speedups as speedups
    from draftwise.train.stream import Ask as Ask
    from draftwise.train.stream import continuations as continuations

__getattr__, __dir__ = exports(__name__)
