"""Commands that the lab adds to `draftwise`."""
