"""The run folder, metrics, diagnosis, monitors and reports. No torch."""
