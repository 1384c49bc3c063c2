"""Environments: episodes of several turns. An engine that wraps an engine, and the processes in which environments run.

    contract.py     what a class or function offers: tools, the text hook, the reward
    episodes.py     episodes in progress, in a worker process or in a thread of the trainer
    hosts.py        the trainer's side: workers, threads, time limits
    tool_calls.py   from what the policy wrote to calls
    dialogue.py     from a reply to token ids
    engine.py       the engine

Importing this package imports no torch.
"""
