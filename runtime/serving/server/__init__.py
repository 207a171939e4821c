"""An engine behind HTTP, with OpenAI's protocol: what `sscc serve` runs. Needs the packages of the extra `serve`."""
