"""What a run is: schema, file, words for it, built-in recipes. No torch."""
