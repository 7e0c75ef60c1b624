"""A byte tokenizer with a chat template, and a tiny model to go with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from models import byte_level

SPECIAL = ("<bos>", "<eos>", "<pad>", "<|turn|>", "<|end|>")
VOCAB = 256 + len(SPECIAL)
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('system comes first') }}"
    "{% endif %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)


def chat_tokenizer(template: str | None = TEMPLATE) -> Any:
    """A tokenizer that prepends <bos> to every text, as Llama's does; <eos> does not end turns."""
    inner = byte_level(SPECIAL)
    bos = ("<bos>", inner.token_to_id("<bos>"))
    inner.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[bos], pair=None
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )
    tokenizer.chat_template = template
    return tokenizer


def save_chat_model(folder: Path, template: str | None = TEMPLATE) -> Path:
    """Save a model with the chat tokenizer in a folder."""
    from cli.models_on_disk import make_target

    make_target(vocab_size=VOCAB).save_pretrained(folder)
    chat_tokenizer(template).save_pretrained(folder)
    return folder
