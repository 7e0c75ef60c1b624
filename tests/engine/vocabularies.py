"""Small vocabularies with the decoders that tokenizers of public models have, and what they decode
tokens to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from engine.scripted import byte_letters

WORDS = ["▁", "a", "b", "!", "▁hello", "▁world", "▁is", "lo", "�"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
CHARACTERS = ["é", "à", "П", "你", "好", "世", "界", "😀", "👍🏽", "ไทย"]


def _finished(tokenizer: Tokenizer) -> Any:
    """With special tokens known to the model's class, and one that is not."""
    tokenizer.add_special_tokens(["<s>", "</s>", AddedToken("<|own|>", special=True)])
    tokenizer.add_tokens(["<think>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def of_pieces(pieces: Sequence[str], decoder: Any) -> Any:
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoder
    return _finished(tokenizer)


def byte_fallback() -> Any:
    """As in Llama 2, Mistral, TinyLlama, Phi-3."""
    parts = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    return of_pieces([*BYTES, *WORDS], decoders.Sequence(parts))


def byte_fallback_unstripped() -> Any:
    """As in Gemma."""
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return of_pieces([*BYTES, *WORDS], decoders.Sequence(parts))


def metaspace() -> Any:
    """As in T5 and XLNet: the first token loses its space."""
    return of_pieces(WORDS, decoders.Metaspace())


def byte_level() -> Any:
    """As in GPT-2, Llama 3, Qwen: tokens hold any bytes, whole characters or not."""
    letters = [byte_letters(text) for text in [*"ab !", " hello", "lo", *CHARACTERS]]
    singles = {letter for text in letters for letter in text}
    halves = {text[1:] for text in letters if len(text) > 2} | {text[:2] for text in letters}
    return of_pieces([*sorted(singles), *sorted(halves | {*letters})], decoders.ByteLevel())


def word_piece() -> Any:
    """As in BERT."""
    pieces = ["hello", "##lo", "a", ".", "'", "s", "##b", "n't", "do", "##é"]
    tokenizer = Tokenizer(models.WordPiece({p: i for i, p in enumerate(["[UNK]", *pieces])}))
    tokenizer.decoder = decoders.WordPiece()
    return _finished(tokenizer)


KINDS: dict[str, Callable[[], Any]] = {
    "byte fallback": byte_fallback,
    "byte fallback, unstripped": byte_fallback_unstripped,
    "metaspace": metaspace,
    "byte level": byte_level,
    "word piece": word_piece,
}


@cache
def made(kind: str) -> Any:
    return KINDS[kind]()


def decoded(kind: str, tokens: Sequence[int], *, skips: bool = True) -> str:
    """One decode; of byte tokens, each broken character is U+FFFD, and no other."""
    if "fallback" not in kind:
        text: str = made(kind).decode(
            tokens, skip_special_tokens=skips, clean_up_tokenization_spaces=False
        )
        return text
    text, run = "", b""
    for name in [*made(kind).convert_ids_to_tokens(tokens), ""]:
        if name.startswith("<0x"):
            run += bytes.fromhex(name[3:5])
        elif not skips or name not in ("<s>", "</s>", "<|own|>"):
            text += run.decode(errors="replace") + name.replace("▁", " ")
            run = b""
    return text.removeprefix(" ") if kind == "byte fallback" else text


def added(kind: str, prompt: Sequence[int], tokens: Sequence[int]) -> str:
    """The text that tokens add to a prompt's; they may complete its last character."""
    before, whole = decoded(kind, prompt), decoded(kind, [*prompt, *tokens])
    if not whole.startswith(before):
        assert before.endswith("�")
        before = before[:-1]
    assert whole.startswith(before)
    return whole[len(before) :]


def spelled(kind: str, text: str) -> list[int]:
    """Tokens of the bytes of a text, one by one."""
    tokenizer = made(kind)
    names = [f"<0x{b:02X}>" for b in text.encode()] if "fallback" in kind else byte_letters(text)
    return [tokenizer.convert_tokens_to_ids(name) for name in names]
