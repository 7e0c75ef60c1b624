"""Trained models and text: how the bundled models are made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    from draftwise_lab.zoo.copying import prime_copying as prime_copying
    from draftwise_lab.zoo.corpus import batches as batches
    from draftwise_lab.zoo.corpus import drawn as drawn
    from draftwise_lab.zoo.corpus import encode_prompt as encode_prompt
    from draftwise_lab.zoo.corpus import heldout_answers as heldout_answers
    from draftwise_lab.zoo.corpus import load_tokenizer as load_tokenizer
    from draftwise_lab.zoo.corpus import stop_texts as stop_texts
    from draftwise_lab.zoo.domains import ADJECTIVES as ADJECTIVES
    from draftwise_lab.zoo.domains import ANSWER as ANSWER
    from draftwise_lab.zoo.domains import DOMAINS as DOMAINS
    from draftwise_lab.zoo.domains import NOUNS as NOUNS
    from draftwise_lab.zoo.domains import SHARES as SHARES
    from draftwise_lab.zoo.domains import TIMES as TIMES
    from draftwise_lab.zoo.domains import VERBS as VERBS
    from draftwise_lab.zoo.domains import apply as apply
    from draftwise_lab.zoo.domains import documents as documents
    from draftwise_lab.zoo.domains import sample as sample
    from draftwise_lab.zoo.lessons import distill as distill
    from draftwise_lab.zoo.lessons import lesson_batches as lesson_batches
    from draftwise_lab.zoo.lessons import reserve as reserve
    from draftwise_lab.zoo.lessons import teach as teach
    from draftwise_lab.zoo.models import cross_entropy as cross_entropy
    from draftwise_lab.zoo.models import deepen as deepen
    from draftwise_lab.zoo.models import make_llama as make_llama
    from draftwise_lab.zoo.models import pack as pack

__getattr__, __dir__ = exports(__name__)
