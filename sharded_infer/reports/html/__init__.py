"""Parts of self-contained HTML pages."""
