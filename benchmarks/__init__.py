"""What is measured, by scripts anyone can rerun."""
