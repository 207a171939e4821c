"""Checkpoints of the `.gguf` form: header, config, weights and tokenizer."""
