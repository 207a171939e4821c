"""A library of valid schedules and of schedules that are broken on purpose; the validator must tell them apart."""
