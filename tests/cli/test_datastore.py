"""``draftwise datastore build``: every kind of corpus, and refusals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cli.conftest import run_command
from cli.models_on_disk import VOCAB, make_target, save_model
from draftwise.retrieval.corpus import Store


def build(corpus: Path, target: Path, out: Path) -> Store:
    ran = run_command("datastore", "build", corpus, "--tokenizer", target, "--out", out)
    assert (ran.code, ran.err) == (0, "")
    store = Store(out)
    for fact in (str(out), f"{store.num_tokens:,} tokens", f"{store.num_documents:,} documents"):
        assert fact in ran.out
    return store


def goes_on(store: Store, text: str) -> list[str]:
    """Continuations of a text in the corpus, for the byte tokenizer (94 letters)."""
    _, first, last = store.find([ord(letter) - 33 for letter in text])
    return ["".join(chr(t + 33) for t in row) for row in store.continuations(first, last, 99, 3)]


def test_a_text_file_is_one_document(pair: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one-two-three\n" * 3)
    store = build(tmp_path / "a.txt", pair[0], tmp_path / "a.store")
    assert (store.vocab_size, store.num_documents, store.num_tokens) == (VOCAB, 1, 3 * 14 + 2)
    assert goes_on(store, "one-t") == ["wo-"] * 3


def test_a_long_text_is_read_in_pieces_and_stays_one_document(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("x" * 99 + "\n" + ("-" * 999 + "\n") * 1100 + "the-end")
    store = build(tmp_path / "a.txt", pair[0], tmp_path / "a.store")
    assert (store.num_documents, store.num_tokens) == (1, 100 + 1100 * 1000 + 7 + 2)
    assert goes_on(store, "the-") == ["end"]


def test_a_folder_is_all_of_its_text(pair: tuple[Path, Path], tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    (corpus / "deep").mkdir(parents=True)
    (corpus / "deep" / "a.py").write_text("abc")
    (corpus / "b.jsonl").write_text(
        '{"text": "abd"}\n{"prompt": "ab", "completion": "e", "id": 3}\n\n'
    )
    (corpus / ".hidden").write_text("abz")
    (corpus / "picture.bin").write_bytes(b"ab\xff\xfe")
    out = tmp_path / "a.store"
    ran = run_command("datastore", "build", corpus, "--tokenizer", pair[0], "--out", out)
    assert ran.code == 0
    assert ran.err == "1 of 3 files are not UTF-8 text and were left out\n"
    assert sorted(goes_on(Store(out), "ab")) == ["c", "d", "e"]
    assert Store(out).num_documents == 3


def test_what_was_built_drafts(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The corpus is the target's own greedy answer: the datastore drafts all of it."""
    options = ["--target", pair[0], "--max-new-tokens", 24, "--json"]
    plain = run_command("generate", "Hello", *options, "--preset", "plain").objects[0]
    (tmp_path / "a.txt").write_text("Hello" + plain["text"])
    build(tmp_path / "a.txt", pair[0], tmp_path / "a.store")
    spec = f"mine=datastore:{tmp_path / 'a.store'}"
    fixed = ["--policy", "fixed:0", "--plan-lengths", "5", "--preset", "metasd"]
    found = run_command("generate", "Hello", *options, *fixed, "--drafter", spec).objects[0]
    assert found["tokens"] == plain["tokens"]
    assert found["pulls"] == {"mine": found["num_rounds"]}
    assert found["mean_accepted_tokens"] > 4


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.txt", b"", "no tokens"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.jsonl", b"", "no tokens"),
        ("a.jsonl", b'{"text": "x"}\nnonsense', "line 2: this is not JSON"),
        ("a.jsonl", b'{"body": "x"}', "line 1: write an object with a string `text`"),
        ("a.jsonl", b'["x"]', "line 1: write an object"),
    ],
)
def test_corpora_that_are_refused(
    pair: tuple[Path, Path], tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    out = tmp_path / "a.store"
    ran = run_command("datastore", "build", tmp_path / name, "--tokenizer", pair[0], "--out", out)
    assert said in ran.refusal
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_paths_that_are_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    text, out = tmp_path / "a.txt", tmp_path / "a.store"
    os.mkfifo(tmp_path / "pipe")
    text.write_text("abc")
    (tmp_path / "empty").mkdir()
    for corpus, target, file, said in (
        (tmp_path / "gone", pair[0], out, "there is no corpus"),
        (tmp_path / "empty", pair[0], out, "has no files"),
        (text, tmp_path / "gone", out, "no model folder"),
        (text, pair[0], tmp_path, "is a folder"),
        (text, pair[0], text, "exists and is no datastore"),
        (text, pair[0], tmp_path / "pipe", "exists and is no datastore"),
        (text, pair[0], tmp_path / "gone" / "a.store", "cannot write"),
    ):
        ran = run_command("datastore", "build", corpus, "--tokenizer", target, "--out", file)
        assert said in ran.refusal
    assert not out.exists()
    assert text.read_text() == "abc"


def test_tokens_that_the_model_does_not_have_are_refused(tmp_path: Path) -> None:
    """A tokenizer of 257 tokens with a model of 100."""
    target = save_model(tmp_path / "small", make_target(vocab_size=100))
    (tmp_path / "a.txt").write_text("née")
    out = tmp_path / "a.store"
    ran = run_command("datastore", "build", tmp_path / "a.txt", "--tokenizer", target, "--out", out)
    assert "not in a vocabulary of 100" in ran.refusal
