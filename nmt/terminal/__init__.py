"""What stands behind the commands of `nmt/cli.py`: options, streams, what is printed, signals and exit codes."""
