"""Numbers of the papers' tables, and how acceptance probabilities follow from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

DOMAINS = ("Python", "Math", "Biology", "Chemistry", "MedQA", "CNN_DM", "SQL")
"""HedgeSpec's columns."""

HEDGESPEC_DRAFTERS = ("python", "math", "biology", "chemistry", "medqa", "cnn_dm", "sql")
"""HedgeSpec's rows: a specialist for each domain."""

EAGLE = "eagle"
"""HedgeSpec's generalist; not one of the seven, so it is no plan of theirs."""

HEDGESPEC_LLAMA: Mapping[str, Sequence[float]] = {  # HedgeSpec, table 1: MAT
    EAGLE: (6.48, 5.88, 5.95, 5.28, 4.96, 5.31, 5.99),
    "python": (7.89, 5.05, 2.86, 3.64, 2.65, 2.94, 4.87),
    "math": (4.52, 8.03, 3.07, 4.15, 3.02, 3.32, 4.36),
    "biology": (3.29, 3.91, 7.27, 4.35, 4.42, 3.17, 2.72),
    "chemistry": (3.80, 6.46, 4.45, 7.39, 3.82, 3.09, 3.76),
    "medqa": (3.98, 4.49, 4.95, 4.47, 6.75, 3.38, 3.93),
    "cnn_dm": (2.07, 2.89, 3.02, 2.99, 3.11, 6.20, 2.14),
    "sql": (3.71, 3.66, 2.64, 2.96, 2.62, 2.90, 8.49),
}
HEDGESPEC_QWEN8B: Mapping[str, Sequence[float]] = {  # HedgeSpec, table 6: MAT
    EAGLE: (4.96, 4.52, 4.06, 3.98, 3.84, 4.07, 4.20),
    "python": (6.43, 4.50, 2.46, 2.97, 2.36, 2.45, 3.85),
    "math": (4.23, 7.39, 2.66, 3.46, 2.67, 2.87, 3.68),
    "biology": (3.20, 3.61, 5.70, 3.74, 3.80, 2.70, 2.80),
    "chemistry": (3.79, 5.40, 3.79, 6.69, 3.54, 2.74, 3.36),
    "medqa": (3.66, 4.05, 4.07, 4.01, 6.17, 2.94, 3.42),
    "cnn_dm": (2.56, 2.56, 2.45, 2.45, 2.55, 5.15, 2.52),
    "sql": (3.71, 3.37, 2.36, 2.68, 2.37, 2.60, 7.60),
}
HEDGESPEC_QWEN32B: Mapping[str, Sequence[float]] = {  # HedgeSpec, table 7: MAT
    EAGLE: (3.02, 3.36, 2.62, 3.01, 2.57, 2.59, 3.00),
    "python": (6.00, 4.66, 2.52, 3.16, 2.42, 2.58, 3.86),
    "math": (4.04, 7.12, 2.75, 3.64, 2.74, 3.00, 3.79),
    "biology": (3.18, 3.88, 5.98, 4.04, 3.90, 2.81, 2.89),
    "chemistry": (3.29, 5.32, 3.91, 6.61, 3.56, 2.66, 2.96),
    "medqa": (3.56, 4.18, 4.24, 4.21, 5.95, 3.10, 3.52),
    "cnn_dm": (2.54, 2.56, 2.54, 2.56, 2.61, 5.22, 2.57),
    "sql": (3.58, 3.54, 2.42, 2.80, 2.43, 2.75, 7.25),
}
HEDGESPEC_LENGTH = 8
"""Chunk depth of HedgeSpec's figures: at most 9 tokens a round."""

PLAIN_TOK_PER_S = {"llama": 18.13, "qwen8b": 14.57, "qwen32b": 8.21}
"""Plain decoding, the average of HedgeSpec's table 3."""

LANGUAGES = ("Ja", "Ru", "De", "Fr", "Zh")
METASD_MULTILINGUAL: Mapping[str, Sequence[float]] = {  # MetaSD, table 9: speedup
    "Ja": (1.757, 1.109, 1.012, 1.018, 1.154),
    "Ru": (1.055, 1.817, 0.995, 0.963, 1.036),
    "De": (1.098, 1.369, 2.360, 1.036, 1.099),
    "Fr": (1.106, 1.445, 1.108, 2.135, 1.122),
    "Zh": (1.198, 1.086, 1.021, 1.023, 1.516),
}
METASD_JAPANESE_BE = (0.232, 0.099, 0.081, 0.074, 0.106)
"""MetaSD, table 2: mean accepted / 5 on Japanese queries, drafters in the order of table 9."""

METASD_EAGLE: Mapping[str, Sequence[float]] = {  # MetaSD, table 4: speedup of Eagle1 .. Eagle5
    "Code": (3.934, 1.303, 1.776, 2.150, 2.427),
    "Trans": (1.750, 2.496, 2.281, 2.131, 1.714),
    "Sum": (1.707, 1.507, 3.382, 2.005, 1.589),
    "QA": (1.842, 1.579, 2.181, 2.916, 1.783),
    "Math": (2.584, 1.618, 2.337, 2.433, 3.903),
}
METASD_BLACK_BOX: Mapping[str, Sequence[float]] = {  # MetaSD, table 3: speedup of Drafter1 .. 5
    "Code": (2.437, 1.224, 1.565, 1.814, 1.687),
    "Trans": (0.991, 2.076, 1.000, 1.019, 0.950),
    "Sum": (1.513, 1.087, 2.133, 1.510, 1.387),
    "QA": (1.332, 1.200, 1.343, 1.960, 1.252),
    "Math": (1.483, 1.228, 1.378, 1.486, 2.454),
}
METASD_LENGTH = 5
"""MetaSD's N_max."""


def mean_tokens(alpha: float, length: int) -> float:
    """Expected emitted tokens of a draft of ``length`` under one acceptance probability.

    Source: the mean of BanditSpec's eq. (4), ``(1 - p^(L+1)) / (1 - p)``.

    >>> mean_tokens(0.5, 2), mean_tokens(1.0, 8)
    (1.75, 9.0)
    """
    return sum(alpha**j for j in range(length + 1))


def alpha_of(tokens: float, length: int) -> float:
    """The acceptance probability whose mean is ``tokens``; cut to [0, 1] outside 1 .. L + 1.

    >>> round(alpha_of(1.75, 2), 9)
    0.5
    """
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if mean_tokens(middle, length) < tokens else (low, middle)
    return (low + high) / 2.0


def by_domain(
    table: Mapping[str, Sequence[float]], rows: Sequence[str], columns: Sequence[str],
    convert: Callable[[float], float],
) -> dict[str, dict[str, float]]:  # fmt: skip
    """A table with a row a drafter, turned: domain -> drafter -> converted figure."""
    return {
        column: {row: convert(table[row][index]) for row in rows}
        for index, column in enumerate(columns)
    }


def multilingual_overhead() -> float:
    """A round's seconds over a plain forward's, in MetaSD's multilingual experiment.

    ``speedup = (1 + 5 BE) / overhead`` for each drafter on Japanese queries (tables 2 and 9); this
    is the mean of the five.

    >>> round(multilingual_overhead(), 3)
    1.327
    """
    pairs = zip(METASD_JAPANESE_BE, METASD_MULTILINGUAL["Ja"], strict=True)
    ratios = [(1.0 + METASD_LENGTH * efficiency) / speedup for efficiency, speedup in pairs]
    return sum(ratios) / len(ratios)
