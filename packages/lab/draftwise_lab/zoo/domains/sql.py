"""A random schema, a few questions about it, and the queries that answer them."""

from __future__ import annotations

import random

from draftwise_lab.zoo.domains.document import ANSWER, Document, scaled

_TABLES = (
    "users", "orders", "items", "books", "films", "songs", "cities", "trips", "teams", "games",
    "staff", "shops", "sales", "rooms", "boats", "plants", "tickets", "events", "loans", "posts",
)  # fmt: skip
_NUMBERS = (
    "age", "price", "year", "score", "weight", "height", "stock", "rating", "length", "amount",
    "cost", "speed", "rank", "points", "size", "pages",
)  # fmt: skip
_WORDS = (
    "name", "city", "color", "kind", "title", "country", "owner", "status", "brand", "genre",
    "street", "label", "author", "model", "team", "shape",
)  # fmt: skip
_VALUES = ("red", "blue", "green", "small", "large", "new", "old", "open", "north", "south")
_AGGREGATES = (("average", "AVG"), ("highest", "MAX"), ("lowest", "MIN"), ("total", "SUM"))
_COMPARE = (("above", ">"), ("below", "<"), ("equal to", "="))


def _filter(rng: random.Random, nums: list[str], words: list[str]) -> tuple[str, str]:
    if rng.random() < 0.5:
        column, (text, sign) = rng.choice(nums), rng.choice(_COMPARE)
        value = rng.randint(2, 99)
        return f"with {column} {text} {value}", f"WHERE {column} {sign} {value}"
    column, value_text = rng.choice(words), rng.choice(_VALUES)
    return f"where the {column} is {value_text}", f"WHERE {column} = '{value_text}'"


def _query(rng: random.Random, table: str, nums: list[str], words: list[str]) -> tuple[str, str]:
    where, condition = _filter(rng, nums, words)
    num, word = rng.choice(nums), rng.choice(words)
    shape = rng.randrange(5)
    if shape == 0:
        return f"List the {word} of all {table} {where}", f"SELECT {word} FROM {table} {condition};"
    if shape == 1:
        return f"How many {table} {where}", f"SELECT COUNT(*) FROM {table} {condition};"
    if shape == 2:
        text, function = rng.choice(_AGGREGATES)
        return (
            f"The {text} {num} of {table} {where}",
            f"SELECT {function}({num}) FROM {table} {condition};",
        )
    if shape == 3:
        text, function = rng.choice(_AGGREGATES)
        return (
            f"The {text} {num} of {table} for each {word}",
            f"SELECT {word}, {function}({num}) FROM {table} GROUP BY {word};",
        )
    limit = rng.randint(2, 20)
    return (
        f"The {limit} {table} with the most {num} {where}",
        f"SELECT {word}, {num} FROM {table} {condition} ORDER BY {num} DESC LIMIT {limit};",
    )


def sample(rng: random.Random, *, size: float = 1.0, heldout: bool = False) -> Document:
    """One table and three to five questions; an answer repeats each question as a comment."""
    table = rng.choice(_TABLES)
    nums, words = rng.sample(_NUMBERS, rng.randint(1, 3)), rng.sample(_WORDS, rng.randint(1, 3))
    columns = [f"{name} INTEGER" for name in nums] + [f"{name} TEXT" for name in words]
    rng.shuffle(columns)
    schema = f"CREATE TABLE {table} (id INTEGER, {', '.join(columns)});\n"
    asked, answered = [], []
    for number in range(1, scaled(rng, 3, 5, size) + 1):
        question, query = _query(rng, table, nums, words)
        if "most" in question and " for each " not in question and "LIMIT" in query:
            # The column shown is not in the question's own words, so it is named.
            shown = query.split()[1].rstrip(",")
            question += f", by {shown}"
        asked.append(f"{number}. {question}?\n")
        answered.append(f"-- {number}. {question}?\n{query}\n")
    return Document("### sql\n" + schema + "".join(asked) + ANSWER, "".join(answered))
