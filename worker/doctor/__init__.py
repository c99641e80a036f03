"""The doctor: what is wrong, what it endangers and how it is mended, before users notice."""
