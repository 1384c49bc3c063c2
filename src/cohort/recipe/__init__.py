"""Recipes: schema, file format, descriptions, built-in recipes. No torch."""
