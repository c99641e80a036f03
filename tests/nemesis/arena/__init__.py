"""Where a history happens: real brokers and workers as processes, every link between them ours."""
