"""One controller for all engines: what to draft for every running request."""
