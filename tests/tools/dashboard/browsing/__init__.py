"""Tests of the dashboard's pages in a real browser. A package, so that its conftest.py is no rival of the one of all tests."""
