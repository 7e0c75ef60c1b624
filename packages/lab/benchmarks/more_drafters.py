"""What each drafter adds: pools of drafters on the same prompts, interleaved in one run.

Pools: retrieval alone; with each of the target's bundled drafters; with all of them. ``--pool A,B``
(repeatable): pools of these drafters. With ``--useless N``: the target's default pool; with an
EAGLE head of random weights; with a datastore of unrelated text (Python's standard library); with N
such drafters of both kinds. Clock: CPU time of the process, including prefill. Ratios are to plain
decoding and to the first pool, of all tokens over all seconds, with 95% intervals over prompts.
"""

from __future__ import annotations

import argparse
import sysconfig
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from shared.compare import as_asked, measure, method, span
from shared.script import run, show

from draftwise import Speculator, zoo
from draftwise.bench.suites import load_suite
from draftwise.retrieval.corpus import replacing, write
from draftwise_lab.train.eagle import new_head
from draftwise_lab.train.save import save_head
from draftwise_zoo import RETRIEVAL, drafter_specs, own_specs

DRAFT_VOCAB = 8192  # of random heads, as of the bundled one


def own_drafters(target: str) -> dict[str, str]:
    if target == "zoo":
        return {name: f"{name}=lm:{path}" for name, path in zoo.drafter_paths().items()}
    return {name: f"{name}={spec}" for name, spec in own_specs(target).items()}


def useless_pools(plain: Speculator, target: str, num: int, home: Path) -> dict[str, list[str]]:
    pool, num_each = drafter_specs(target), -(-num // 2)
    heads = [f"random{i}=eagle:{random_head(plain, i, home)}" for i in range(num_each)]
    stores = [f"code{i}=datastore:{file}" for i, file in enumerate(code(plain, num_each, home))]
    pools = {"default": pool, "head": [*pool, heads[0]], "datastore": [*pool, stores[0]]}
    return pools | {f"{num} useless": [*pool, *heads, *stores][: len(pool) + num]}


def random_head(plain: Speculator, seed: int, home: Path) -> Path:
    """Write an EAGLE-3 head with random weights and the target's ``lm_head``; return its folder."""
    ids = torch.arange(min(DRAFT_VOCAB, plain.target.vocab_size))
    head = new_head(plain.target.module, ids, seed=seed, lends=True)
    for weights in head.parameters():
        if weights.dim() > 1:
            torch.nn.init.normal_(weights, std=weights.shape[-1] ** -0.5)
    save_head(head, folder := home / f"head{seed}", dtype=plain.target.dtype)
    return folder


def code(plain: Speculator, num: int, home: Path) -> list[Path]:
    """Write ``num`` datastores that partition the standard library's files; return their paths."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    texts = [file.read_text("utf-8", errors="replace") for file in files]
    ids = plain.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    paths = [home / f"code{i}.store" for i in range(num)]
    for i, path in enumerate(paths):
        with replacing(path) as file:
            write(file, [np.array(own) for own in ids[i::num]], plain.target.vocab_size)
    return paths


def compare(args: argparse.Namespace) -> dict[str, Any]:
    made = {"plain": Speculator.from_pretrained(args.target, preset="plain", dtype=args.dtype)}
    with TemporaryDirectory() as home:
        own = own_drafters(args.target)
        if args.pool:
            pools = {names: [own.get(n, n) for n in names.split(",")] for names in args.pool}
        elif args.useless:
            pools = useless_pools(made["plain"], args.target, args.useless, Path(home))
        else:
            alone = {"retrieval": [], **{name: [spec] for name, spec in own.items()}}
            all_pools = alone | {"all": list(own.values())}
            pools = {name: [*RETRIEVAL, *specs] for name, specs in all_pools.items()}
        how = {"dtype": args.dtype, "scope": args.scope, "seed": 0}
        for name, pool in pools.items():
            made[name] = Speculator.from_pretrained(args.target, pool, **how)
    items = load_suite(args.suite, args.prompts).items
    asked = as_asked([item.text for item in items], made["plain"].tokenizer)
    options = {"max_new_tokens": args.tokens, "seed": 0}
    ways = {name: method(m, **options) for name, m in made.items()}
    timing = measure(ways, asked, "plain")
    domains, rows, first = np.array([str(item.domain) for item in items]), [], next(iter(pools))
    for name in made:
        for domain in ("all", *dict.fromkeys(domains.tolist())):
            own = np.isin(domains, domain) | (domain == "all")
            part = replace(
                timing, seconds=timing.seconds[:, own], num_tokens=timing.num_tokens[..., own]
            )
            bases = ("plain", first)
            ratios = {f"to_{base}": span(*part.of(name), *part.of(base)) for base in bases}
            rows.append({"pool": name, "category": domain, **ratios})
    show(rows)
    about = {"target": args.target, "dtype": args.dtype, "scope": args.scope, "prompts": len(items)}
    return {**about, "texts_equal": timing.identical, "pools": rows}


if __name__ == "__main__":
    suite = {"required": True, "help": "as for draftwise bench"}
    useless = {"type": int, "default": 0, "help": "useless drafters of the largest pool, 2 or more"}
    scope = {"default": "request", "help": "what requests share: request (nothing) or auto"}
    pool = {"action": "append", "help": "drafters of a pool, such as lookup,suffix; repeat it"}
    run(
        __doc__, compare, target="smollm2", suite=suite, useless=useless, scope=scope, prompts=4,
        tokens=96, dtype="auto", pool=pool,
    )  # fmt: skip
