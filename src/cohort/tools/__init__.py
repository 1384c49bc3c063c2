"""The commands: doctor, evaluate, compare, audit, bench, dashboard and others."""
