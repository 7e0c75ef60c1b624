"""Side by side: suites of prompts, methods and peers, paired timing, and the report of it all."""
