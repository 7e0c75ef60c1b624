"""``python -m draftwise.cli``, which is ``draftwise``."""

from draftwise.cli import main

main()
