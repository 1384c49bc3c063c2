"""What a run did, read from its files: the run folder, metrics, diagnosis, monitors, the report. No torch."""
