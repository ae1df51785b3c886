"""Shared utilities: console, devices, errors and files."""
