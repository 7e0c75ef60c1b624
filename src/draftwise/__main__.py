"""``python -m draftwise`` is the command ``draftwise``."""

from draftwise.cli import main

if __name__ == "__main__":
    main()
