"""Tests of users' own repositories: golden cases and cases of IR, collected by `sscc.pytest_plugin`."""
