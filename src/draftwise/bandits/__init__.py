"""The papers' algorithms: policies, feedback, rewards and stop rules; numpy only.

A policy chooses the plan of each round: ``ucb``, ``weights`` and ``thompson`` have one family each,
``simple`` has policies that do not learn or only explore, and ``wrappers`` change when a policy
learns, or share it among requests. ``feedback`` says what a round reveals of each plan, and
``rewards`` value it. ``stop_rules`` end drafts.
"""
