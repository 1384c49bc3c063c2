"""The commands: doctor, evaluate, look, export, compare, audit, serve and dashboard."""
