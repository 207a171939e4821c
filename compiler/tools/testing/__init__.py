"""Tests for users' repositories: golden cases and cases of IR, collected by `sscc.pytest_plugin`."""
