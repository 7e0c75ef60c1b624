"""``draftwise generate``: prompts in, text and JSON out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from chatting import TEMPLATE, VOCAB, save_chat_model
from cli.conftest import Run, run_command
from draftwise.cli.show import Pen
from small_disk import files_of_at_most

KEYS = {
    "tokens", "text", "num_rounds", "num_drafted", "num_accepted", "num_emitted",
    "mean_accepted_tokens", "draft_acceptance_rate", "tok_per_s", "seconds_by_phase", "pulls",
    "no_draft", "speed", "recent_speed", "speed_range", "finish_reason", "num_prompt_tokens",
}  # fmt: skip
SHORT = ("--max-new-tokens", 24)
PROMPTS = ["one", "two two two", "3", "for four", "five"]


def test_json_is_one_object_with_all_that_was_promised(generate: Run) -> None:
    ran = generate("Hello", "--json", *SHORT)
    assert (ran.code, ran.err) == (0, "")
    (answer,) = ran.objects
    assert set(answer) == KEYS
    assert len(answer["tokens"]) == answer["num_emitted"] == 24
    assert sum(answer["pulls"].values()) == answer["num_rounds"]


def test_stdout_is_the_answer_and_nothing_else(generate: Run) -> None:
    (answer,) = generate("Hello", "--json", *SHORT).objects
    ran = generate("Hello", *SHORT)
    assert (ran.code, ran.out) == (0, answer["text"])
    assert "24 tokens" in ran.err
    assert ("no draft: " in ran.err) == bool(answer["no_draft"])
    assert ran.err.count("\n") == 1


def test_argument_file_and_stdin_are_one_prompt(generate: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("def f(x):\n    é\n", "utf-8")
    prompt = "def f(x):\n    é"
    outs = [
        generate(prompt, *SHORT).out,
        generate("--file", file, *SHORT).out,
        generate(*SHORT, input_=prompt + "\n").out,
        generate("-", *SHORT, input_=prompt).out,
    ]
    assert outs == outs[:1] * 4
    assert outs[0] != generate("def f(x):", *SHORT).out


@pytest.mark.parametrize("form", ["prompts.txt", "prompts.jsonl"])
def test_batch_keeps_the_order_of_single_runs(generate: Run, tmp_path: Path, form: str) -> None:
    file, trace = tmp_path / form, tmp_path / "trace.jsonl"
    lines = [json.dumps({"id": 1, "prompt": p}) for p in PROMPTS] if "json" in form else PROMPTS
    file.write_text("\n\n".join(lines), "utf-8")
    batch = ("--batch", file, "--batch-size", 2, *SHORT)
    answers = generate(*batch, "--json", "--trace", trace).objects
    alone = [generate(prompt, "--json", *SHORT).objects[0]["tokens"] for prompt in PROMPTS]
    assert [answer["tokens"] for answer in answers] == alone
    assert generate(*batch).out == "".join(answer["text"] + "\n" for answer in answers)
    rounds = [json.loads(line) for line in trace.read_text().splitlines()]
    for number, answer in enumerate(answers):
        own = [r for r in rounds if r["request"] == number]
        assert [t for r in own for t in r["tokens"]] == answer["tokens"]
        assert len(own) == answer["num_rounds"]


def test_chat_and_messages_go_through_the_template(tmp_path: Path) -> None:
    folder = save_chat_model(tmp_path / "model")
    run = ("generate", "--target", folder, *SHORT, "--ignore-eos")
    asked = {"role": "user", "content": "Hello"}
    short = {"role": "system", "content": "Be short."}
    file = tmp_path / "prompts.jsonl"
    lines = [{"messages": [asked]}, {"messages": [short, asked]}, {"prompt": "Hello"}]
    file.write_text("\ufeff" + "\n".join(json.dumps(line) for line in lines), "utf-8")
    said, advised, plain = run_command(*run, "--batch", file, "--json").objects
    lengths = [a["num_prompt_tokens"] for a in (said, advised, plain)]
    turns = [len(f"<{m['role']}\n{m['content']}>\n") for m in (asked, short)]
    opening = len("<assistant\n")
    assert lengths == [1 + turns[0] + opening, 1 + sum(turns) + opening, 1 + len("Hello")]
    (same,) = run_command(*run, "Hello", "--chat", "--json").objects
    assert (same["num_prompt_tokens"], same["tokens"]) == (lengths[0], said["tokens"])
    (same,) = run_command(*run, "Hello", "--system", "Be short.", "--json").objects
    assert (same["num_prompt_tokens"], same["tokens"]) == (lengths[1], advised["tokens"])
    all_said = run_command(*run, "--batch", file, "--chat", "--json").objects
    assert [a["num_prompt_tokens"] for a in all_said] == [lengths[0], lengths[1], lengths[0]]
    refusal = run_command(*run, "--batch", file, "--system", "Be long.").refusal
    assert "line 2: there is a system message" in refusal
    file.write_text('{"messages": []}\n')
    assert "line 1" in run_command(*run, "--batch", file).refusal
    file.write_text('{"messages": [{"role": "usr", "content": "Hello"}]}\n')
    refusal = run_command(*run, "--batch", file).refusal
    assert "line 1" in refusal
    assert "unknown role 'usr'" in refusal
    base = save_chat_model(tmp_path / "base", template=None)
    assert "no chat template" in run_command("generate", "Hi", "--chat", "--target", base).refusal


def test_separators_that_are_no_line_breaks_stay_in_a_prompt(generate: Run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"one\u2028two"\n{"prompt": "three\u0085four"}\r\n', "utf-8")
    assert [
        a["num_prompt_tokens"] for a in generate("--batch", file, "--json", *SHORT).objects
    ] == [
        len("one\u2028two".encode()),
        len("three\u0085four".encode()),
    ]


def test_stop_strings_end_stream_and_json_alike(generate: Run) -> None:
    whole = generate("Hello", *SHORT).out
    stop = whole[9:12]
    ran = generate("Hello", *SHORT, "--stop", stop, "--stop", "never said")
    (answer,) = generate("Hello", *SHORT, "--stop", stop, "--json").objects
    assert ran.out == answer["text"] == whole[: whole.index(stop)]
    assert answer["finish_reason"] == "stop"


def test_what_a_session_learnt_is_kept_in_a_file(generate: Run, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    options = ("--json", "--state", state, *SHORT)
    generate("Hello", *options, "--scope", "session")
    first = json.loads(state.read_text())
    generate("Hello", *options, "--scope", "session")
    generate("Hello", *options, "--scope", "task:other")
    last = json.loads(state.read_text())
    assert set(last["learnt"]["scopes"]) == {"session", "task:other"}
    assert str(first["learnt"]["scopes"]["session"]) != str(last["learnt"]["scopes"]["session"])
    refusal = generate("Hello", *options, "--scope", "session", "--policy", "ucb1").refusal
    assert "--state keeps what the policy goodput learns: with --policy ucb1" in refusal


def test_a_state_that_another_process_learns_in_is_refused(generate: Run, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    code = (
        "import sys; from pathlib import Path; from draftwise.state import hold\n"
        "with hold(Path(sys.argv[1])): print('held', flush=True); input()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", code, str(state)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        options = ("--state", state, "--scope", "session", *SHORT)
        refusal = generate("Hello", *options).refusal
        assert f"another draftwise learns in {state}: wait until it ends" in refusal
        other.communicate("\n")
    assert generate("Hello", *options).code == 0


def test_a_full_disk_costs_what_was_learnt_and_says_so(generate: Run, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    options = ("--state", state, "--scope", "session", *SHORT)
    assert generate("Hello", *options).code == 0
    before = state.read_text()
    with files_of_at_most(64):
        ran = generate("Hello", *options)
    assert (ran.code, bool(ran.out)) == (74, True)
    assert f"{state} cannot be written (File too large): what was learnt is lost" in ran.err
    assert state.read_text() == before
    assert {file.name for file in tmp_path.iterdir()} == {"state.json", ".state.json.lock"}


def test_sampling_by_name(generate: Run) -> None:
    """Each option reaches the sampler: a large bias decides every token, min-p 1 is greedy."""
    (plain,) = generate("Hello", "--json", *SHORT).objects
    banned = plain["tokens"][0]
    (other,) = generate("Hello", "--json", *SHORT, "--logit-bias", f"{banned}=-100").objects
    assert banned not in other["tokens"]
    (same,) = generate("Hello", "--json", *SHORT, "--logit-bias", "65=1000").objects
    assert set(same["tokens"]) == {65}
    refusal = generate("Hello", *SHORT, "--logit-bias", "65=1", "--logit-bias", "999999=5").refusal
    assert "--logit-bias 999999=5: the target's token ids are 0 to" in refusal
    hot = ("--temperature", 2, "--seed", 1)
    assert generate("Hello", *SHORT, *hot, "--min-p", 1).out == plain["text"]
    assert generate("Hello", *SHORT, *hot).out != plain["text"]
    for penalty in ("presence", "frequency"):
        (found,) = generate("Hello", "--json", *SHORT, f"--{penalty}-penalty", 50).objects
        assert len(set(found["tokens"])) > len(set(plain["tokens"]))


def test_rules_inside_rules(generate: Run) -> None:
    """A rule's options may contain rules, separated by +, whose own options are separated by ;."""
    fixed = (
        "Hello", "--json", *SHORT, "--preset", "metasd", "--policy", "fixed:0", "--plan-lengths", 8,
        "--rule",
    )  # fmt: skip
    (never,), (always,) = (generate(*fixed, f"max-confidence:{n}").objects for n in (0, 1))
    assert never["tokens"] == always["tokens"]
    assert never["num_drafted"] > always["num_drafted"]
    for inner in ("max-confidence:1", "adaedl:gamma=0.3;threshold=2;epsilon=0"):
        (found,) = generate(*fixed, f"any-of:rules=max-confidence:0+{inner}").objects
        assert found["num_drafted"] == always["num_drafted"]


def test_the_switch_of_a_request(generate: Run) -> None:
    """The greedy text is the same without drafts, with short drafts, and with selected drafters."""
    (plain,) = generate("Hello", "--json", *SHORT, "--no-speculation").objects
    assert plain["num_drafted"] == 0
    assert set(plain["pulls"]) == {"none"}
    pool = ("-d", "lookup", "-d", "suffix")
    for own in (("--max-draft", 1), ("--drafters", "lookup"), ("--drafters", "lookup,suffix")):
        (found,) = generate("Hello", "--json", *SHORT, *pool, *own).objects
        assert found["tokens"] == plain["tokens"]
        assert own[0] == "--max-draft" or set(found["pulls"]) <= {"none", *own[1].split(",")}
    refusal = generate("Hello", *SHORT, "--drafters", "nope").refusal
    assert "drafters is 'nope': it must be of the drafters here: " in refusal
    assert "--max-draft -1: it must be" in generate("Hello", *SHORT, "--max-draft", -1).refusal


def test_short_forms(pair: tuple[Path, Path], tmp_path: Path) -> None:
    long = ("--target", pair[0], "--drafter", f"lm:{pair[1]}", "--max-new-tokens", 9)
    short = ("-m", pair[0], "-d", f"lm:{pair[1]}", "-n", 9, "-t", 0, "-p", "goodput", "-q")
    whole = run_command("generate", "Hello", *long)
    ran = run_command("generate", "Hello", *short)
    assert (ran.out, ran.err) == (whole.out, "")
    assert whole.err
    file = tmp_path / "prompt.txt"
    file.write_text("Hello")
    assert run_command("generate", "-f", file, "--model", *long[1:]).out == whole.out


def test_an_answer_that_the_context_ends(generate: Run) -> None:
    ran = generate("Hello", "--max-new-tokens", 100_000, "--json")
    assert "the context of 400 tokens has room for 395 after this prompt" in ran.err
    (answer,) = ran.objects
    assert answer["num_emitted"] == 395


@pytest.mark.parametrize("is_one_file", [True, False])
def test_statistics_begin_a_line_of_their_own(
    is_one_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "out").open("a") as out, (tmp_path / "err").open("a") as err:
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", out if is_one_file else err)
        pen = Pen(["lookup"])
        pen.write([("ab", "lookup"), ("c", "target")])
        pen.end("abc")
    assert (tmp_path / "out").read_text() == ("abc\n" if is_one_file else "abc")


def test_an_instruct_model_that_ends_at_once_is_given_a_hint(tmp_path: Path) -> None:
    ends = json.dumps({"eos_token_id": list(range(VOCAB))})
    for name, template in (("instruct", TEMPLATE), ("base", None)):
        (save_chat_model(tmp_path / name, template) / "generation_config.json").write_text(ends)
    hint = "the model returned no text; an instruct model usually needs --chat"
    run = ("generate", "Hi", "--target", tmp_path / "instruct")
    assert hint in " ".join(run_command(*run).err.split())
    assert "--chat" not in run_command(*run, "--chat").err
    assert "--chat" not in run_command("generate", "Hi", "--target", tmp_path / "base").err
