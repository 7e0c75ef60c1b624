# ruff: noqa: E501
"""Mutants that do what the original does, and why: no test can kill them."""

from __future__ import annotations

AXIS = "the only or the last axis: the same one"
DROPPED = "the number read there is not used: `where` or the next line puts another in its place"
MORE = "a superset is worked on; what is added comes out as it went in"
FIRST = "a first sibling's own mass, divided by a whole of 1 up to rounding"
EMPTY = "matters only without a node, and then nothing is asked"
LENGTHS = "both have the same length by construction"
UNREAD = "the number is never read, or overwritten before it is"
FIXED = "nothing writes to one, or adds to it"

EQUAL: dict[str, dict[str, list[str]]] = {
    "nn/verify": {
        AXIS: [
            "return found.index_copy(0, at, torch.minimum(p[ours], q[theirs]).sum(1).double())",
            "return found.index_copy(-1, at, torch.minimum(p[ours], q[theirs]).sum(-1).double())",
            "whole = own.new_zeros(forest.num_places).index_copy(0, at, p[at].sum(1, dtype=torch.float64))",
            "whole = own.new_zeros(forest.num_places).index_copy(-1, at, p[at].sum(-1, dtype=torch.float64))",
            "total = less.sum(1, keepdim=True)",
            'first = first.scatter_reduce(-1, before, places.where(is_kept, end), "amin")',
            "said = torch.zeros_like(first).index_copy(-1, places, tokens)",
            "before = own[turns].cumsum(-1) - own[turns]",
            "gone = torch.zeros_like(own).index_copy(-1, turns, before - before[firsts_])",
            "tried = tried.scatter(-1, kids, rest.gather(1, tokens[:, None])[:, 0].double())",
            "tried = tried.scatter(0, kids, rest.gather(1, tokens[:, None])[:, -1].double())",
            "is_drawn, (rest - q[rows[kids[:, -1]].clamp(min=0)]).clamp(min=0), rest",
        ],
        DROPPED: [
            "return torch.where(rows < 0, of_point, q[rows.clamp(min=-1), tokens.clamp(min=0)].double())",
            "return torch.where(rows < 0, of_point, q[rows.clamp(min=0), tokens.clamp(min=-1)].double())",
            "of_p, tokens = torch.from_numpy(np.stack((places, proposed.clip(-1)))).to(p.device)",
            "is_drawn, (rest - q[rows[kids[:, 0]].clamp(min=-1)]).clamp(min=0), rest",
        ],
        MORE: [
            "crowded = np.unique(forest.before[forest.ranks >= 0])",
            "crowded = np.unique(forest.before[forest.ranks <= 0])",
            "crowded = np.unique(forest.before[forest.ranks > -1])",
        ],
        FIRST: [
            "np.stack((order, firsts, forest.ranks >= 0, ~forest.is_again))",
            "np.stack((order, firsts, forest.ranks > -1, ~forest.is_again))",
            "tried = torch.where((later > 0) | (left > 0), own / left, of_p)",
            "tried = torch.where((later >= 0) & (left > 0), own / left, of_p)",
            "tried = torch.where((later > -1) & (left > 0), own / left, of_p)",
        ],
        "where nothing is left, a rejection before had probability 0": [
            "tried = torch.where((later > 0) & (left >= 0), own / left, of_p)",
            "tried = torch.where((later > 0) & (left > -1), own / left, of_p)",
        ],
        EMPTY: [
            "found: Bools = self.ranks + 1 < np.bincount(self.before, minlength=2)[self.before]",
            "found: Bools = self.ranks + 1 < np.bincount(self.before, minlength=0)[self.before]",
            "for _ in range(int(np.bincount(forest.owners).max(initial=1)).bit_length()):",
            "for _ in range(int(np.bincount(forest.owners).max(initial=-1)).bit_length()):",
        ],
        LENGTHS: [
            "for node, pair in enumerate(zip(self.before.tolist(), self.tokens.tolist(), strict=False)):"
        ],
        FIXED: [
            "@dataclass(frozen=False, slots=True)",
            "@dataclass(frozen=True, slots=False)",
        ],
    },
    "policies/goodput/pricing": {
        LENGTHS: ["for name, step_s in zip(self.names, draft_s, strict=False)"],
    },
    "engine/costs": {
        UNREAD: [
            "self.last_round, self.rows = 1, 0.0",
            "self.last_round, self.rows = -1, 0.0",
            "self.last_round, self.rows = 0, 1.0",
            "self.last_round, self.rows = 0, -1.0",
            "self._read.setdefault(drafter, _Samples()).add(seconds / tokens, self._round, 2)",
            "self._read.setdefault(drafter, _Samples()).add(seconds / tokens, self._round, 0)",
            "def costs(self, rows: int, max_tokens: int, is_packed: bool = True) -> Costs:",
        ],
        "only differences between rounds are read": ["self._round = 1", "self._round = -1"],
        "of as many numbers as there are, the one that is read is the same": [
            "share = max(values[0] / measured[0], _DOUBT * float(plane(rows, np.ones(2))[0]))",
            "share = max(values[0] / measured[0], _DOUBT * float(plane(rows, np.ones(1))[-1]))",
        ],
        LENGTHS: [
            "plane(rows, n) - plane(r, n) for n, (_, r) in zip(measured, own.values(), strict=False)",
            "rows, tokens, seconds = (np.array(column) for column in zip(*points, strict=False))",
        ],
    },
    "policies/goodput/ragged": {
        "a factor of all costs": ["rounds = 2 / np.maximum(tokens, _NOTHING)"],
        "an entry that stays 0, or that nothing asks for": [
            "ways, num_drafters = np.arange(len(prices))[:, np.newaxis], int(drafters.max()) + 2",
            "longest = np.zeros((num_ways, int(drafters.max()) + 2))",
            "taxes = np.where(draft_s > 0, [[0.0], [np.inf]], 0.0)[: 3 if draft_s.any() else 1]",
            "taxes = np.where(draft_s > 0, [[0.0], [np.inf]], 0.0)[: 2 if draft_s.any() else 2]",
            "prices = (taxes[:, np.newaxis] + slopes[:, np.newaxis] * sizes).reshape(- 2, len(sizes))",
        ],
    },
    "nn/cache": {
        "`place` says it before every forward": ["self._is_packed = True"],
        "any number far above the tokens of a text": [
            "UNLIMITED = 2 << 30",
            "UNLIMITED = 1 << 31",
            "UNLIMITED = 1 << 29",
        ],
        "`range` of no row, as before": ["num_rows: int = -1,"],
        "the library's argument, which is not looked at": [
            "def get_seq_length(self, layer_idx: int = 1) -> int:",
            "def get_seq_length(self, layer_idx: int = -1) -> int:",
            "def get_query_offset(self, layer_idx: int = 1) -> int:",
            "def get_query_offset(self, layer_idx: int = -1) -> int:",
            "def get_max_cache_shape(self, layer_idx: int = 1) -> int:",
            "def get_max_cache_shape(self, layer_idx: int = -1) -> int:",
        ],
        "an axis or a list of one, or rows that are alike in this": [
            "taken = (slice(-1, 1), slice(None), slice(first, first + span.count))",
            "taken = (slice(0, 2), slice(None), slice(first, first + span.count))",
            "return views[-1]",
            "_, heads, _, size = views[1].shape",
            "_, heads, _, size = views[-1].shape",
            "found = views[1].new_zeros((len(views), heads, used, size))",
            "found = views[-1].new_zeros((len(views), heads, used, size))",
            "found[index, :, : view.shape[2]] = view[-1]",
        ],
        FIXED: [
            "@dataclass(frozen=False, slots=True)",
            "@dataclass(frozen=True, slots=False)",
            "@dataclass(slots=False)",
        ],
    },
}  # fmt: skip


def squeezed(code: str) -> str:
    """Code without blanks."""
    return "".join(code.split())


def why(module: str, becomes: str) -> str | None:
    """The reason why this mutant is equal; None where it is not known to be."""
    for reason, mutants in EQUAL.get(module, {}).items():
        if squeezed(becomes) in map(squeezed, mutants):
            return reason
    return None
