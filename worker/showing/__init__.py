"""How values are shown to people and read from them: instants, durations, columns, words."""
