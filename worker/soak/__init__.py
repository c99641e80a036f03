"""Soaking: steady mixed traffic for as long as asked, watched for anything that only grows."""
