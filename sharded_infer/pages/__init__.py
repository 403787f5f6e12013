"""Self-contained HTML pages: their words, style, charts, and the page of a quantization."""
