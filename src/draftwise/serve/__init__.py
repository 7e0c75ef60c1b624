"""An OpenAI-compatible server: HTTP handlers put requests in, one thread owns the engine."""
