"""Findings: checks of the metrics, with texts that explain symptom, reason and fix."""
