"""An OpenAI-compatible server: HTTP handlers submit requests to a thread that owns the engine."""
