"""How good a model is: pass@k, majority votes, intervals, paired tests."""
