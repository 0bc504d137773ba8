"""Benchmarks of udfkit, run by asv (`make bench`, `make bench-full`)."""
