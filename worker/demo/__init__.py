"""The demo: Tidegate's main job on a real broker and a real worker process, as a short story."""
