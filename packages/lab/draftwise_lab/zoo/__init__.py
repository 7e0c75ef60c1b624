"""The build of the bundled models: recipe, training text and training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftwise.lazy import exports

if TYPE_CHECKING:
    # fmt: off
    # isort: off
    from draftwise_lab.zoo.corpus import (
        Answers, batches, encode_prompt, heldout_stream, load_tokenizer,
    )
    from draftwise_lab.zoo.domains import (
        ADJECTIVES, ANSWER, DOMAINS, NOUNS, SHARES, TIMES, VERBS, apply, documents, sample,
    )
    from draftwise_lab.zoo.models import cross_entropy, deepen, make_llama, pack, prime_copying

__getattr__, __dir__ = exports(__name__)
