"""Test-time adaptation methods: one file each, one base class."""
