"""Invalid request values by parameter, for the Python, command-line and server tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

NAN, INF = float("nan"), float("inf")

ARRAYS: tuple[Any, ...] = (np.array([1]), torch.tensor([1]), np.bool_(True), torch.tensor(True))
NUMBERS: tuple[Any, ...] = ("1", NAN, INF, -INF, [], {}, 1j, True, *ARRAYS, 10**400)
WHOLE: tuple[Any, ...] = (*NUMBERS[:-1], 2.5, np.float32(2.5), torch.tensor(2.5), 1e30)
TEXTS: tuple[Any, ...] = (5, 2.5, b"text", ["text"], {}, True)
FLAGS: tuple[Any, ...] = (0, 1, "true", [], np.int64(1), torch.tensor(1))

BAD_SAMPLING: dict[str, tuple[Any, ...]] = {
    "temperature": (*NUMBERS, -1, -1e-9),
    "top_k": (*WHOLE, -2),
    "top_p": (*NUMBERS, 0, 1.01, -0.1),
    "min_p": (*NUMBERS, -0.1, 1.5),
    "repetition_penalty": (*NUMBERS, 0, -1, 1e300, 1e-300),
    "presence_penalty": (*NUMBERS, 1e300, -1e300),
    "frequency_penalty": (*NUMBERS, 1e300, -1e300),
    "logit_bias": (
        5,
        "1",
        [1],
        {"1": 1.0},
        {1.5: 1.0},
        {True: 1.0},
        {-1: 1.0},
        {64: 1.0},
        {10**6: 1.0},
        {1: NAN},
        {1: INF},
        {1: 1e300},
        {1: "1"},
        {1: None},
    ),
    "process": (5, "text", [], {}),
}
"""The values assume a vocabulary of 64 tokens."""

BAD_REQUEST: dict[str, tuple[Any, ...]] = {
    "max_new_tokens": (*(value for value in WHOLE if np.ndim(value) == 0), 0, -1),
    "stop": (*TEXTS[:3], TEXTS[4], "", ["a", ""], ["a", 5], [None]),
    "stop_when": (5, "text", []),
    "eos_token_ids": (
        *("1", 2.5, NAN, True, -1, ["a"], [2.5], [True], [-1], {1: 1}, range(10**12)),
        *(np.array([[1]]), torch.tensor(2.5), torch.tensor(True), np.array(["a"])),
    ),
    "ignore_eos": FLAGS,
    "stop_token_ids": ("1", 2.5, NAN, True, -1, ["a"], [2.5], [True], [-1], {1: 1}, range(10**12)),
    "include_stop_str_in_output": FLAGS,
    "skip_special_tokens": FLAGS,
    "token_texts": FLAGS,
    "prediction": ("1", 2.5, NAN, True, ["a"], [2.5], [True], [-1], [64], {1: 1}, range(10**12)),
    "seed": ("1", NAN, INF, {}, 1j, True, 1.5, -1, 1e30, torch.tensor(True), 10**400_000),
    "label": TEXTS,
    "private": FLAGS,
    "preset": (*TEXTS, "nonsense", ""),
    "policy": (
        *(*TEXTS, "nonsense", "", "thompson-gaussian:prior_mean=nan", "petc:c=1e308"),
        *("x" * 10**6, "delayed:base=" * 3000 + "ucb1", "ucb1:" + "x" * 10**6 + "=1"),
    ),
    "lengths": (
        *("12", 4, 2.5, [2.5], [True], ["2"], [0], [-1], [10**6], [NAN], {2: 1}),
        *([2] * 129, [1] * 300_000, range(1, 10**12)),
    ),
    "speculation": FLAGS,
    "drafters": (*TEXTS[:3], TEXTS[4], [], "", ["good", 5], "nonsense"),
    "max_draft": (*WHOLE, -1, 1025),
    "tenant": TEXTS,
    "logprobs": (*WHOLE, -1, 65, 100),
    "prompt_logprobs": FLAGS,
    "priority": (*WHOLE, "a"),
}

BAD_BATCH: dict[str, tuple[Any, ...]] = {
    "do_sample": FLAGS[:3],
    "stop_strings": BAD_REQUEST["stop"],
    "num_return_sequences": (*WHOLE, 0, -1, 2, 10**9),
    "sampling": (5, "text", {}, [5]),
    "trace": (5, 2.5, [], ""),
}
"""Parameters of ``generate`` only; 2 sequences of a greedy request are refused as equal."""
