"""Rewards that a model gives: a sequence classifier, a process reward model, a judge behind an endpoint."""
