"""`cohort bench`: what rollouts, training and a whole step cost, by stage, beside peers in the same run.

    workload.py  what is to be done: prompts, group size, planned lengths, the reward; the same for every engine
    shapes.py    models of real shapes with random weights, and a tokenizer made on the spot: nothing is downloaded
    child.py     one stage of ours, in a process of its own; peers.py: the same for the peers' scripts
    result.py    one JSON document from all of it; output.py: where it goes. Tables and drawings are made of it in benchmarks/

Nothing here is imported by training.
"""
