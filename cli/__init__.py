"""The commands, one file each; `_options`, `_output` and `_exit` are what they share."""
