"""Commands for files: outputs of instances, and files with a name."""
