"""What readers share whose cache is one slot behind the text: slot s needs the state after s."""

from __future__ import annotations

from draftwise.drafters.protocol import Context
from draftwise.nn.cache import RaggedCache


class Behind:
    """The slots of a head's cache; a text of n tokens has n - 1 of them."""

    def __init__(self) -> None:
        self._cache = RaggedCache()

    def open(self, row: int, expected: int) -> None:
        """Nothing read yet."""
        self._cache.open(row, expected)

    def crop(self, row: int, length: int) -> None:
        """Keep the slots of the first tokens."""
        self._cache.lengths[row] = max(0, min(length - 1, self._cache.lengths[row]))

    def copy(self, source: int, row: int, length: int) -> None:
        """The other row's slots of these tokens."""
        self._cache.copy(source, row, max(0, min(length - 1, self._cache.lengths[source])))

    def base(self, context: Context) -> int:
        """What the cache holds."""
        return self._cache.lengths[context.row]

    def _step_back(self, context: Context) -> None:
        """The last slot is read again where nothing came after it."""
        last = len(context.tokens) - 2
        self._cache.lengths[context.row] = max(0, min(self._cache.lengths[context.row], last))
