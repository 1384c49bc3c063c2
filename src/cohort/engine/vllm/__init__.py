"""The engine for vLLM servers: sends prompts, receives completions and pushes weights over HTTP.

`servers.py` has the server and the fleet; `generation.py` sends requests and validates replies; `weights.py` pushes weights, through the
process group of `transfer.py` or as files; `checks.py` refuses a server that does not suit the run; `engine.py` is the Engine. A run without
servers imports none of this.
"""
