"""The reports to OpenTelemetry about servers and calls, where the host has configured it: names, times and kinds of
errors, and never arguments, results, or the words of an error."""
