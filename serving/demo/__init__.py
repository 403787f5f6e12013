"""The demo: from click logs to served scores."""
