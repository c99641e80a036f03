"""What tests share: real servers, spaces, workers and processes."""
