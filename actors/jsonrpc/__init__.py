"""A JSON-RPC endpoint on a stream: the hot path of a tool call, and the SDK's `Dispatcher` for everything else."""
