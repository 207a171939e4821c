"""Test support for other repositories: golden cases and IR cases, collected by `sscc.pytest_plugin`."""
