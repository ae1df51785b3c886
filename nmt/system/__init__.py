"""What all other packages build on: files and processes, devices and their memory, the console, errors."""
