"""What OpenTelemetry is told of servers and calls, where the host has configured it: names, times and kinds of errors,
and never what a call was given, what it gave, or the words of an error."""
