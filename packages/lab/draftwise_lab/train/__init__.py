"""Training: language models from text, drafters by distillation from a target."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise_lab.train.answers import SamplingTask, continuations, read_kept
    from draftwise_lab.train.answers import answers as sample_answers
    from draftwise_lab.train.data import (
        Text, TextOutputs, answer_logits, groups, halved, observe, observed_batches, pad,
    )
    from draftwise_lab.train.drafter import (
        LOSSES, acceptance, drafter_batches, drafter_settings, first_layers,
        measure_acceptance,
    )
    from draftwise_lab.train.eagle import (
        acceptance_by_depth, draft_vocabulary, eagle_loss, new_head, unrolled,
    )
    from draftwise_lab.train.head import (
        AcceptanceHead, LabelledChains, Judged, Judgements, Setting,
        binary_kl, distributions_of, draft_chains, judge, judge_texts,
        load as load_acceptance_head, make_head, measure_head, plot_reliability, reliability,
        save as save_acceptance_head, train_head, unweighted, weighted_bce,
    )
    from draftwise_lab.train.loop import TrainingSettings, fit
    from draftwise_lab.train.options import DrafterOptions, HeadOptions, LossName
    from draftwise_lab.train.prompts import (
        RUN, Filter, Runs, make_prompts, runs, runs_of, user_prefix,
    )
    from draftwise_lab.train.save import LAYOUTS as HEAD_LAYOUTS, save_head
    from draftwise_lab.train.speedup import MAX_LENGTH, break_even, measure_costs, speedups
    from draftwise_lab.train.turns import TEMPLATES, made_turns

__getattr__, __dir__ = exports(__name__)
