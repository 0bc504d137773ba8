"""Thin conversions to and from other libraries, one file a library, imported when asked for."""
