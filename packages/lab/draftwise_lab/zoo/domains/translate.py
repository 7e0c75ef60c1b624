"""English into Velish, an invented language with its own word order and endings.

Adjectives follow the noun, the verb stands last, the past ends in `-ta`, plurals in `-en`, a
negation is `nai` before the verb, and a question begins with `ka`.
"""

from __future__ import annotations

import random

from draftwise_lab.zoo.domains.document import ANSWER, Document, scaled

NOUNS = {
    "dog": "hunto", "cat": "mirka", "house": "velto", "tree": "barun", "river": "falem",
    "child": "kindo", "teacher": "lerra", "farmer": "bouro", "ship": "navik", "letter": "brifa",
    "book": "bukar", "stone": "petro", "bird": "vogla", "horse": "equi", "king": "kongar",
    "door": "porta", "song": "sanga", "field": "agro", "bridge": "brukka", "friend": "amiko",
    "doctor": "medra", "garden": "jardo", "lamp": "lumo", "wolf": "lupra", "apple": "pomel",
    "road": "strada", "window": "fenra", "sailor": "marno", "table": "tabolo", "knife": "kutra",
}  # fmt: skip
ADJECTIVES = {
    "old": "altu", "young": "jovi", "red": "rotu", "small": "piku", "big": "grossu",
    "quiet": "stilu", "green": "verdu", "cold": "frigu", "wise": "sagu", "happy": "felu",
    "dark": "noktu", "white": "blanu", "strong": "fortu", "poor": "armu", "new": "novu",
}  # fmt: skip
VERBS = {
    "see": ("sees", "saw", "vid"), "find": ("finds", "found", "trov"),
    "carry": ("carries", "carried", "port"), "love": ("loves", "loved", "lieb"),
    "hear": ("hears", "heard", "hor"), "paint": ("paints", "painted", "pinkt"),
    "follow": ("follows", "followed", "folg"), "buy": ("buys", "bought", "kauf"),
    "hide": ("hides", "hid", "verst"), "open": ("opens", "opened", "aprin"),
    "break": ("breaks", "broke", "romp"), "watch": ("watches", "watched", "gard"),
}  # fmt: skip
TIMES = {
    "today": "hodi", "yesterday": "gestri", "in the morning": "matin", "at night": "noktin",
    "every day": "jedi", "in winter": "hibrin",
}  # fmt: skip


def _phrase(rng: random.Random) -> tuple[str, str, bool]:
    noun, plural = rng.choice(sorted(NOUNS)), rng.random() < 0.35
    word = NOUNS[noun] + ("n" if plural and NOUNS[noun][-1] in "aeiou" else "en" if plural else "")
    shown = {"child": "children", "wolf": "wolves", "knife": "knives"}.get(noun, noun + "s")
    english, velish = (shown if plural else noun), word
    if rng.random() < 0.5:
        adjective = rng.choice(sorted(ADJECTIVES))
        english, velish = f"{adjective} {english}", f"{velish} {ADJECTIVES[adjective]}"
    return f"the {english}", f"le {velish}", plural


def _sentence(rng: random.Random) -> tuple[str, str]:
    subject, subject_v, plural = _phrase(rng)
    thing, thing_v, _ = _phrase(rng)
    base = rng.choice(sorted(VERBS))
    third, past, stem = VERBS[base]
    tense, negated = rng.choice(("now", "past")), rng.random() < 0.25
    verb_v = stem + ("ta" if tense == "past" else "a") + ("n" if plural else "")
    if negated:
        helper = "did" if tense == "past" else "do" if plural else "does"
        verb, verb_v = f"{helper} not {base}", f"nai {verb_v}"
    else:
        verb = past if tense == "past" else base if plural else third
    english, velish = f"{subject} {verb} {thing}", f"{subject_v} {thing_v} {verb_v}"
    if rng.random() < 0.4:
        time = rng.choice(sorted(TIMES))
        english, velish = f"{english} {time}", f"{TIMES[time]} {velish}"
    return english[0].upper() + english[1:] + ".", velish[0].upper() + velish[1:] + "."


def sample(rng: random.Random, *, size: float = 1.0, heldout: bool = False) -> Document:
    """Five to eight sentences; the answer sets every sentence above its translation.

    Without the repeated sentence a small model loses its place among the lines.
    """
    pairs = [_sentence(rng) for _ in range(scaled(rng, 5, 8, size))]
    english = "".join(f"{source}\n" for source, _ in pairs)
    both = "".join(f"{source}\n= {target}\n" for source, target in pairs)
    return Document("### translate\n" + english + ANSWER, both)
