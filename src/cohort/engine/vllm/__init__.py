"""vLLM servers as an engine: prompts go out and completions come in over HTTP, and weights are pushed.

`client.py` is one server, `fleet.py` all of them; `asking.py` puts the requests of one call to them, `answers.py` says what a request
holds and what an answer must; `push.py` brings weights, over the group of `wire.py` or as files; `proving.py` refuses a server that is
not what the run needs; `engine.py` is the Engine made of these. Nothing here is imported by a run without servers.
"""
