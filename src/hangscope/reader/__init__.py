"""Bytes in, model values out. One module a format, and each is the only place that knows its format."""
