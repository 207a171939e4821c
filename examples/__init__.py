"""The demo (demo.sh), an exported decoder (own_decoder.py), rules and passes, and scripts that download models."""
