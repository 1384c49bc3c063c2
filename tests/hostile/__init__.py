"""Programs that attack the jail, programs that must pass in it, and the harness that runs both."""
