"""HTTP server over an engine, with OpenAI's protocol; used by `sscc serve`. Needs the packages of the extra `serve`."""
