"""Rounds of all running requests: choose, catch up, draft, verify, commit, probe, reveal, learn.

Requests differ in text, length, plan and policy. Those with the same drafter are drafted for in one
batch, and one target forward verifies all drafts.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from draftwise.controller.costs import PAUSE, Step
from draftwise.controller.guard import Next
from draftwise.engine.drafting import Drafting, Nonsense, Pool
from draftwise.engine.outputs import Round, TokenLogprobs
from draftwise.engine.request import EMPTY, Request, RoundState
from draftwise.engine.verify import is_broken, verify
from draftwise.nn.attention import draft_branches
from draftwise.nn.cache import RaggedCache
from draftwise.nn.sampling import Dists, fetch, warped
from draftwise.nn.verify import DraftTreeBatch, overlaps, ratios, rejection_sample
from draftwise.types import NONE, PLAIN, Costs, Draft, Floats, Ints, RoundFacts, Scores, Verdict


class Loop:
    """Runs rounds over prefilled requests, which share the target's cache and the drafters."""

    def __init__(self, pool: Pool, cache: RaggedCache, drafting: Drafting) -> None:
        self._pool, self._cache, self._drafting = pool, cache, drafting
        self.seconds: dict[str, float] = {}  # by phase
        self._verify_s = self._plain_s = 0.0
        self._lap_start = 0.0
        self._prompt_s = 0.0, 0.0

    def round(self, requests: Sequence[Request]) -> list[Round]:
        """Run one round; return one record per request."""
        start = self._pool.cost_clock()
        self.start_lap()
        rests = self._rests(requests)
        states = choose(requests, self._pool.guard.margin(len(requests)), rests)
        self.end_lap("choose")
        drafted = [] if rests else [state for state in states if state.context.is_drafted]
        reading_s = self._catch_up(drafted) if drafted else 0.0  # plain decoding does not need it
        self.end_lap("catch_up")
        self._drafting.propose(drafted)
        self.end_lap("draft")
        self._verify(states)
        self.end_lap("verify")
        for state in states:
            state.no_draft = why_undrafted(state)
            self._commit(state)
        if drafted:
            self._drafting.commit(drafted)
        self.end_lap("commit")
        scoring_s, probing_s = self._probe(drafted) if drafted else (0.0, 0.0)
        self.end_lap("probe")
        evidence = self._collect_evidence(states, drafted)
        self.end_lap("feedback")
        for state, facts in zip(states, evidence, strict=True):
            if rests:
                state.request.decider.num_unseen += state.num_emitted
            elif state.context.is_drafted and not state.waits:  # else its plan is played later
                state.request.decider.observe(state.decision, facts)
        self.end_lap("learn")
        seconds = self._pool.cost_clock() - start - probing_s
        plain_s, spent_s = self._account(states, seconds, reading_s + scoring_s)
        phases, self.seconds = self.seconds, {}  # every request is charged the whole round
        prompt_s, self._prompt_s = self._prompt_s, (0.0, 0.0)
        charged = plain_s, spent_s + probing_s
        return [
            state.request.record(state, facts, phases, len(states), charged, prompt_s)
            for state, facts in zip(states, evidence, strict=True)
        ]

    def _rests(self, requests: Sequence[Request]) -> str:
        """Why the round decodes plainly, without policies, which get its tokens later; "" = drafts.

        ``Guard.next_step`` decides; a request whose decision waits cannot rest, nor one that the
        controller does not decide for.
        """
        can_rest = all(r.decider.can_rest or not r.context.is_drafted for r in requests)
        context = sum(len(request.context.tokens) for request in requests)
        is_unmeasured = self._pool.cost_model.is_unmeasured(len(requests), context)
        guard = self._pool.guard
        step = guard.next_step(len(requests), is_unmeasured) if can_rest else Next.DRAFT
        if step is Next.REST and not guard.allows_drafts:
            return "guard"
        return {Next.DRAFT: "", Next.PLAIN: "measure", Next.REST: "idle"}[step]

    def _account(
        self, states: Sequence[RoundState], seconds: float, reading_s: float
    ) -> tuple[float, float]:
        """Book the round in the guard's account; return its plain and its charged seconds."""
        guard, model = self._pool.guard, self._pool.cost_model
        has_drafted = any(len(state.draft) or state.waits for state in states)
        guard.num_idle = 0 if has_drafted else guard.num_idle + 1
        # a pause of the machine is not a cost of drafting
        seconds = model.counted_s + min(seconds - self._verify_s, PAUSE * self._plain_s)
        plain_s = proven_s = seconds - reading_s
        if has_drafted:
            plain_s, proven_s = self._plain_s, model.proven_s
        emitted = sum(state.num_emitted for state in states) / len(states)
        # the requests of a batch learn at the same time, so it needs less credit
        num_shares = math.sqrt(len(states))
        guard.observe(emitted, seconds, plain_s, num_shares, proven_s, model.confirmed)
        guard.earn_probes(seconds)
        return min(plain_s, proven_s), seconds

    def begin(self, num_requests: int, seconds: float) -> None:
        """Charge the guard ``seconds`` for scoring new prompts."""
        # much longer than as many plain rounds means that the machine paused
        most = PAUSE * num_requests * self._plain_s
        self._pool.guard.charge(min(seconds, most) if most else seconds)

    def prefilled(self, seconds: float, scoring_s: float) -> None:
        """Book a chunk of prefill, which plain decoding takes, too, and scoring for drafters."""
        plain_s, spent_s = self._prompt_s
        self._prompt_s = plain_s + seconds, spent_s + seconds + scoring_s
        self._pool.guard.pass_time(seconds)

    def start_lap(self) -> None:
        self._lap_start = self._pool.clock()

    def end_lap(self, phase: str) -> None:
        now = self._pool.clock()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._lap_start
        self._lap_start = now

    def costs(self, requests: Sequence[Request]) -> Costs:
        longest = max(request.decider.longest for request in requests)
        context = sum(len(request.context.tokens) for request in requests)
        costs = self._pool.cost_model.costs(len(requests), longest + 1, context)
        return self._drafting.shared(costs)

    def _catch_up(self, drafted: Sequence[RoundState]) -> float:
        start = self._pool.cost_clock()
        self._drafting.catch_up(drafted, self._verify_s)
        return self._pool.cost_clock() - start

    def _probe(self, drafted: Sequence[RoundState]) -> tuple[float, float]:
        """Collect scores, and probe if that is due; return the seconds without and with probes."""
        start, guard = self._pool.cost_clock(), self._pool.guard
        # unlike the scores of a prompt, which start a request, a probe needs a share earned before
        has_probed = self._drafting.probe(drafted, guard.has_probe_share)
        seconds = self._pool.cost_clock() - start
        if not has_probed:
            return seconds, 0.0
        guard.charge_probe(seconds)
        return 0.0, seconds

    def _verify(self, states: Sequence[RoundState]) -> None:
        start = self._pool.cost_clock()
        for state in states:
            state.uniforms = state.request.uniforms(len(state.draft) + 1)
        tokens = self._target_forward(states)
        if not self._pool.target.packs:
            tokens = len(states) * (1 + max(len(state.draft) for state in states))
        verify_batch(states)
        self._verify_s = self._pool.cost_clock() - start
        context = sum(len(state.context.tokens) for state in states)
        step = Step(len(states), tokens, self._verify_s)
        self._plain_s = self._pool.cost_model.observe(step, context)
        broken = [s for s in states if len(s.draft) and is_broken(int(s.verdict.tokens[-1]))]
        if broken:
            self._verify_plainly(broken)

    def _target_forward(self, states: Sequence[RoundState]) -> int:
        """Fill in the logits after the text and each drafted token; return the tokens fed."""
        fed = [state.fed for state in states]
        trees = [draft_branches(state.draft, self._cache.lengths[state.row]) for state in states]
        rows, widest = [state.row for state in states], max(map(len, fed))
        logits = self._pool.target.extend(self._cache, rows, fed, widest, trees)
        for index, state in enumerate(states):
            state.logits = logits.last(index, len(fed[index]))
            state.hidden = {tap: hidden[index] for tap, hidden in logits.hidden.items()}
        return logits.num_fed

    def _verify_plainly(self, states: Sequence[RoundState]) -> None:
        """Verify again those rows whose drafts contain a token with non-finite keys or values.

        Masked values are multiplied by 0, which is not finite for these. So p is recomputed without
        the draft, and the same uniforms verify its first tokens; the round emits at most one token.
        """
        alone = [replace(state, draft=EMPTY) for state in states]
        self._cache.settle([t.row for t in states], [len(t.context.tokens) - 1 for t in states])
        self._target_forward(alone)
        firsts = []
        for state, plain in zip(states, alone, strict=True):
            self._leave_out_broken(state)
            draft, logits = state.draft, plain.logits
            assert logits is not None
            nodes = np.array(draft.children(-1), dtype=np.int64)
            probs = None if draft.probs is None else [draft.probs[node] for node in nodes]
            children = Draft(draft.tokens[nodes], probs, parents=np.full(len(nodes), -1))
            uniforms = state.uniforms[[*nodes, -1]]
            same = logits.expand(len(nodes) + 1, -1)  # p after an accepted token is not used
            firsts.append(replace(plain, draft=children, uniforms=uniforms, logits=same))
        verify_batch(firsts)
        for state, first in zip(states, firsts, strict=True):
            path = np.array(state.draft.children(-1), dtype=np.int64)[first.verdict.path]
            state.verdict = Verdict(first.verdict.tokens[:1], path)
            state.targets, state.logprobs = first.targets[:1], first.logprobs[:1]
            state.hidden, state.drafter = first.hidden, ""  # such a draft is not used as evidence

    def _leave_out_broken(self, state: RoundState) -> None:
        probs = () if state.draft.probs is None else state.draft.probs
        drawn = [q for q in probs if q is not None]
        if not all(bool(torch.as_tensor(q).isfinite().all()) for q in drawn):
            self._drafting.leave_out(state.drafter, Nonsense("a q is not finite"))
            state.draft = EMPTY

    def _commit(self, state: RoundState) -> None:
        request, context = state.request, state.context
        base = len(context.tokens) - 1
        state.num_emitted = request.commit(state.draft, state.verdict, state.targets)
        self._cache.keep_path(state.row, base, state.kept)
        if context.features is not None:
            kept = {tap: hidden[state.kept] for tap, hidden in state.hidden.items()}
            context.features.put(base, kept)
        request.logprobs.answer += [state.logprobs[place] for place in state.kept if state.logprobs]
        request.check_callbacks()
        score_drafts(state)

    def _collect_evidence(
        self, states: Sequence[RoundState], drafted: Sequence[RoundState]
    ) -> list[RoundFacts]:
        costs = self.costs([state.request for state in states]) if drafted else None
        seconds = self.seconds["draft"] + self.seconds["verify"]
        return [
            RoundFacts(
                plan=state.played,
                num_drafted=len(state.draft),
                num_accepted=state.verdict.num_accepted,
                scores=state.scores,
                drafted_alphas=drafted_alphas(state.draft, state.alphas, state.verdict.path),
                emitted_start=(start := len(state.context.tokens) - state.num_emitted),
                seconds=seconds,
                costs=costs,
                matches=self._drafting.matches(state.context) if drafted else {},
                confidences=state.draft.confidences[: state.draft.num_chain],
                siblings=siblings_of(state.draft, state.verdict.path),
                departed=departure(state.draft, state.verdict.path),
                num_first=num_first(state.draft, state.verdict.path),
                tokens=state.context.tokens[start - state.request.decider.num_unseen :],
                num_left=state.request.answer.num_left,
            )
            for state in states
        ]


def choose(requests: Sequence[Request], margin: float = 1.0, rests: str = "") -> list[RoundState]:
    """The policy's decision for each request; a pending decision is kept.

    margin: minimum gain of drafts of guarded requests, relative to their price. rests: why all
    requests decode plainly, without a decision; "" = they do not.
    """
    states = []
    for request in requests:
        decider = request.decider
        reason = rests if request.context.is_drafted else "off"
        if not reason:
            decision = decider.choose()
            if decider.is_controlled and margin > 1.0 and decider.advantage < margin:
                reason = "guard"
        if reason:
            decision = decider.plain
        plan = PLAIN if reason else decider.plan_of(decision)
        states.append(RoundState(request, decision, plan, bool(reason), no_draft=reason))
    return states


def why_undrafted(state: RoundState) -> str:
    """``Round.no_draft`` of a round whose tokens are verified and not yet committed."""
    if len(state.draft):
        return ""
    if state.no_draft:
        return state.no_draft
    if state.waits:
        return "catch-up"
    if not state.request.num_draftable:
        return "end"
    return "policy" if state.played.drafter == NONE else "drafter"


def verify_batch(states: Sequence[RoundState]) -> None:
    """Fill in verdicts, targets and scores of drafted tokens: for greedy rows by the reference
    ``verify``, for sampled rows by its batched form.
    """
    p = _distributions(states)
    greedy = [state for state in states if state.context.sampling.temperature == 0]
    drawn = [state for state in states if state.context.sampling.temperature > 0]
    judged = _SampledVerdicts(drawn, p) if drawn else None
    following = p.tokens
    ends = list(accumulate([len(state.draft) + 1 for state in states]))
    if judged is not None:
        sampled = torch.from_numpy(np.flatnonzero(p.places >= 0)).to(following.device)
        following = following.index_copy(0, sampled, judged.following)
    requested = [
        logprobs(
            state.logits,
            following[end - len(state.draft) - 1 : end],
            state.request.logprobs.num_top,
        )
        for state, end in zip(states, ends, strict=True)
        if state.logits is not None and state.request.logprobs.num_top is not None
    ]
    offpath_probs = [q for state in greedy for _, q in state.draft.offpath_probs]
    tensors = [p.tokens, *([torch.stack(offpath_probs)] if offpath_probs else ())]
    tensors += judged.tensors if judged is not None else ()
    values = iter(fetch([*tensors, *(tensor for own in requested for tensor in own)]))
    points: list[int] = next(values).astype(np.int64).tolist()
    offpath_tokens = iter(next(values).tolist() if offpath_probs else ())
    for state, end in zip(states, ends, strict=True):
        if state.context.sampling.temperature == 0:
            _verify_greedy(state, points[end - len(state.draft) - 1 : end], offpath_tokens)
    if judged is not None:
        judged.fill_in(values)
    for state in states:
        if state.request.logprobs.num_top is not None:
            state.logprobs = as_logprobs(next(values), next(values), next(values))


def score_drafts(state: RoundState) -> None:
    """Score the drafter of a chain up to its first token that was not emitted.

    Trees are not scored, since their tokens are not draws.
    """
    draft, num = state.draft, state.draft.num_chain
    has_chain = draft.parents is None or num > 0
    if not state.drafter or not has_chain:
        return
    on_path = {-1, *state.verdict.path.tolist()}
    offpath_probs = {node: index for index, (node, _) in enumerate(draft.offpath_probs)}
    found: list[tuple[float, float]] = []
    for depth in range(min(num + 1, state.num_emitted)):
        if depth - 1 not in on_path:
            break
        if depth < num and draft.sources[depth] == state.drafter:
            found.append((float(state.alphas[depth]), float(state.ratios[depth])))
        elif depth - 1 in offpath_probs:
            found.append(state.offpath_scores[offpath_probs[depth - 1]])
        else:
            break
    if found:
        alphas, of_text = np.array(found).T
        start = len(state.context.tokens) - state.num_emitted
        state.judged = {state.drafter: Scores(start, np.minimum(alphas, 1.0), of_text)}


def drafted_alphas(draft: Draft, alphas: Floats, path: Ints) -> Floats:
    """Acceptance probability at each drafted position given the draft's prefix, even if rejected.

    alphas: [N] of the nodes; path: accepted nodes. For a tree, along the path: the sum over the
    children of each node, at most 1.

    >>> siblings = Draft(np.array([0, 1]), parents=np.array([-1, -1]))
    >>> drafted_alphas(siblings, np.array([0.5, 0.25]), np.array([], int)).tolist()
    [0.75]
    """
    if draft.parents is None or draft.num_chain:
        return alphas[: draft.num_chain]
    families = [draft.children(node) for node in (-1, *path.tolist())]
    covered = [sum(alphas[child] for child in children) for children in families if children]
    return np.minimum(np.array(covered, dtype=np.float64), 1.0)


def departure(draft: Draft, path: Ints) -> int:
    """``RoundFacts.departed`` of a draft whose nodes in ``path`` were accepted.

    >>> tree = Draft(np.arange(3), parents=np.array([-1, 0, -1]), confidences=[0.9, 0.8, 0.9])
    >>> [departure(tree, np.array(path)) for path in ([2], [0], [0, 1])]
    [0, 1, -1]
    """
    num = draft.num_chain if draft.confidences else 0
    num_kept = int((path < num).sum())
    return num_kept if num_kept < num else -1


def num_first(draft: Draft, path: Ints) -> int:
    """``RoundFacts.num_first`` of a draft whose nodes in ``path`` were accepted.

    >>> tree = Draft(np.arange(4), parents=np.array([-1, -1, 1, 1]))
    >>> [num_first(tree, np.array(path)) for path in ([0], [1], [1, 2])]
    [1, 0, 1]
    """
    if draft.parents is None or draft.num_chain:
        return 0
    nodes = path.tolist()
    pairs = zip((-1, *nodes), nodes, strict=False)
    return sum(node == draft.children(before)[0] for before, node in pairs)


def siblings_of(draft: Draft, path: Ints) -> list[tuple[float, int, bool]]:
    """``RoundFacts.siblings`` of a draft whose nodes in ``path`` were accepted."""
    reached, found = {-1, *path.tolist()}, []
    ranks: Counter[int] = Counter()
    for node in range(draft.num_chain, len(draft) if draft.confidences else 0):
        before = draft.parent(node)
        if math.isnan(draft.confidences[node]):  # a retrieved branch
            continue
        ranks[before] += 1
        if before in reached:
            found.append((draft.confidences[node], ranks[before], node in reached))
    return found


def _distributions(states: Sequence[RoundState]) -> Dists:
    """p after the text and after each node, concatenated over all rows."""
    blocks = [state.logits for state in states if state.logits is not None]
    spans = []
    for state in states:
        drafted, start = state.draft.tokens.tolist(), len(state.context.tokens)
        spans.append(state.context.span(len(drafted) + 1, start, drafted, state.draft.parents))
    return warped(torch.cat(blocks) if len(blocks) > 1 else blocks[0], spans)


def _verify_greedy(state: RoundState, points: list[int], offpath_tokens: Iterator[float]) -> None:
    """Verify a greedy row; points: the target's argmax after the text and each node."""
    draft = state.draft
    state.verdict = verify(draft, points, state.uniforms)
    if len(draft):
        parents = range(-1, len(draft) - 1) if draft.parents is None else draft.parents.tolist()
        pairs = zip(parents, draft.tokens.tolist(), strict=True)
        agrees = [float(points[parent + 1] == token) for parent, token in pairs]
        state.alphas = state.ratios = np.array(agrees)
    agree = [float(points[node + 1] == next(offpath_tokens)) for node, _ in draft.offpath_probs]
    state.offpath_scores = [(each, each) for each in agree]
    state.targets = [points[0], *(points[node + 1] for node in state.verdict.path.tolist())]


def logprobs(logits: Tensor, tokens: Tensor, num_top: int) -> list[Tensor]:
    """[n, 2] tokens and their log-probabilities, [n, k] top tokens, and [n, k] theirs.

    logits: [n, V] that predict the tokens; no temperature, penalties or truncation, as in vLLM.
    """
    found = logits.float().log_softmax(-1)
    own = found.gather(1, tokens.clamp(min=0)[:, None])[:, 0].double()
    best = found.topk(max(1, num_top), dim=-1)
    pairs = own.new_zeros((len(own), 2))
    pairs[:, 0], pairs[:, 1] = tokens, own
    return [pairs, best.indices[:, :num_top], best.values[:, :num_top]]


def as_logprobs(pairs: Floats, ids: Floats, values: Floats) -> list[TokenLogprobs]:
    return [
        TokenLogprobs(int(token), value, tuple(zip(map(int, those), theirs, strict=True)))
        for (token, value), those, theirs in zip(
            pairs.tolist(), ids.tolist(), values.tolist(), strict=True
        )
    ]


class _SampledVerdicts:
    """Verdicts on sampled rows, on the device; following: [P] the token after each place."""

    def __init__(self, states: Sequence[RoundState], p: Dists) -> None:
        self._states, self._p = states, p.probs
        drafts = [state.draft for state in states]
        rows: list[Tensor] = []
        qs = [[None] * len(d) if d.probs is None else d.probs for d in drafts]
        numbers = [np.array([self._row(rows, q) for q in own]) for own in qs]
        self._trees = DraftTreeBatch.of(
            [d.tokens for d in drafts], [d.parents for d in drafts], numbers
        )
        offpath_probs = [
            (self._trees.roots[index] + node + 1, self._row(rows, q))
            for index, draft in enumerate(drafts)
            for node, q in draft.offpath_probs
        ]
        q = torch.stack(rows) if rows else self._p[:0]
        uniforms = np.concatenate([state.uniforms[:-1] for state in states])
        bonus_uniforms = np.array([state.uniforms[-1] for state in states])
        last, bonus, self.following = rejection_sample(
            self._trees, self._p, q, uniforms, bonus_uniforms
        )
        places, ours = np.array(offpath_probs, dtype=np.int64).reshape(-1, 2).T
        places = np.concatenate((self._trees.before, places))
        ours = np.concatenate((self._trees.q, ours))
        proposed = np.concatenate((self._trees.tokens, np.full(len(offpath_probs), -1)))
        alphas = of_text = self._p.new_empty(0)
        if len(places):
            alphas = overlaps(self._p, places, q, ours, proposed)
            of_text = ratios(self._p, places, q, ours, proposed, self.following)
        self.tensors = [last, bonus, alphas, of_text]

    def fill_in(self, values: Iterator[Floats]) -> None:
        last, bonus = (next(values).astype(np.int64).tolist() for _ in range(2))
        alphas, of_text = (np.nan_to_num(next(values)) for _ in range(2))
        kept: list[int] = []
        node, offpath = 0, len(self._trees.tokens)
        for row, state in enumerate(self._states):
            path, draft = self._trees.path(row, last[row]), state.draft
            state.verdict = Verdict(np.array([*draft.tokens[path], bonus[row]]), path)
            state.alphas, state.ratios = (a[node : node + len(draft)] for a in (alphas, of_text))
            ours = slice(offpath, offpath + len(draft.offpath_probs))
            state.offpath_scores = list(
                zip(alphas[ours].tolist(), of_text[ours].tolist(), strict=True)
            )
            node, offpath = node + len(draft), ours.stop
            kept += [int(self._trees.roots[row]) + place for place in (0, *(path + 1).tolist())]
        rows = iter(self._p[torch.tensor(kept, device=self._p.device)])
        for state in self._states:
            state.targets = [next(rows) for _ in state.verdict.tokens]

    def _row(self, rows: list[Tensor], q: Tensor | Floats | None) -> int:
        """Append a distribution to ``rows``; return its index, or -1 for None."""
        if q is not None:
            rows.append(torch.as_tensor(q, device=self._p.device, dtype=self._p.dtype))
        return -1 if q is None else len(rows) - 1
