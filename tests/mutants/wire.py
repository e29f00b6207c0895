"""The JSON-RPC endpoint and the actors around it: what leaves, what comes, and whom it is handed to."""

from .mutant import mutants_of

WIRE = (
    *mutants_of(
        "actors/jsonrpc/send_queue.py",
        "actors/jsonrpc/test_send_queue.py actors/jsonrpc/test_dispatcher_incoming.py",
        {
            "if bounded and self._queue and self.size + len(frame) > self._limit:": "if bounded and self.size + len(frame) > self._limit:",
            "if self._broken and slot is None:": "if False:",
            "if not queue or self._blocked.is_set():": "if not queue:",
            "if queue or self._stream.unfinished:": "if queue:",
            "self._left(*queue.popitem(last=False))": "self._left(*queue.popitem())",
            "self.owed_bytes += count": "self.owed_bytes += abs(count)",
            "return self.owed < MOST_OWED and self.owed_bytes <= self._limit": "return self.owed < MOST_OWED",
            "while not (self.has_room or self._broken):": "while not self.has_room:",
            "self.withdraw(slot)  # its caller was told that it was not sent, whoever runs first": "pass",
            "return bytes(memoryview(frame)) if len(frame) < _FITTED else frame": "return frame",
        },
    ),
    *mutants_of(
        "actors/jsonrpc/pending.py",
        "actors/jsonrpc/test_pending.py actors/jsonrpc/test_dispatcher_calls.py actors/jsonrpc/test_dispatcher_session.py",
        {
            "self._last_id += 1 + next(self._random) % _STRIDE": "self._last_id += 1",
            "if self._waiting.get(key) is slot:  # once answered, its id may be another's": "if key in self._waiting:",
            "text = message[:_MESSAGE] if isinstance(message, str) else None": "text = message if isinstance(message, str) else None",
            "unsent = [slot for slot in self._calls if not slot.sent]": "unsent = list(self._calls)",
            "self.loss = evolve(loss, pending=len(self._calls))": "self.loss = loss",
            "if type(code) is int:": "if isinstance(code, int):",
            "self.conclude(refused.slot, Busy())": "pass",
        },
    ),
    *mutants_of(
        "actors/jsonrpc/dispatcher.py",
        "actors/jsonrpc/test_dispatcher_calls.py actors/jsonrpc/test_dispatcher_session.py "
        "actors/jsonrpc/test_dispatcher_incoming.py actors/jsonrpc/test_refusals.py",
        {
            'tell = opts.get("cancel_on_abandon", True) and method != "initialize"  # the protocol forbids it': 'tell = opts.get("cancel_on_abandon", True)',
            "self.lose(CLOSED)  # unless it was lost before; nothing is written any more": "pass",
            "await self._take_turns(len(frame), origin)  # whatever it was": "pass",
            "problem = error  # one message of a batch hides none behind it": "raise",
            "if session.intercepts(method, params):": "if False:",
            "if math.log10(self.noise).is_integer():  # the 1st, 10th, 100th…: a babbling server must not fill the log": "if True:",
        },
    ),
    *mutants_of(
        "actors/jsonrpc/dispatcher.py",
        "actors/transports/test_http_answers.py actors/transports/test_http_exchanges.py",
        {
            "if slot is None or not origin.may_answer(slot):": "if slot is None:",
        },
    ),
    *mutants_of(
        "actors/router.py",
        "actors/test_router.py",
        {
            "if slot.decided:": "if False:",
            "if route is None or route.owner is None or (_needs_tool(call) and call.name not in route.own):": "if route is None or route.owner is None:",
            "slot.resolve(Busy())": "slot.resolve(Unrouted())",
            "for calls in (self._calls, *self._mailbox.close()):": "for calls in self._mailbox.close():",
            "return call.method == CALL_TOOL and call.slot.relay is None": "return call.method == CALL_TOOL",
        },
    ),
    *mutants_of(
        "actors/server.py",
        "actors/test_server.py actors/test_server_calls.py actors/test_follow_ups.py "
        "supervisor/servers/test_needs_auth.py",
        {
            "connection.submit([call for call in batch if not call.slot.decided])": "connection.submit(batch)",
            "if self._stopping:  # handed over in the moment of the stop": "if False:",
            "connection.withdraw()": "pass",
            "slot.resolve(_CLOSED)": "pass",
            "kind = ExitKind.NEEDS_AUTH if loss.needs_auth else ExitKind.UNUSABLE": "kind = ExitKind.UNUSABLE",
            "with trio.move_on_after(drain):": "with trio.move_on_after(0):",
        },
    ),
    *mutants_of(
        "actors/list_refresh.py",
        "actors/test_server_lists.py supervisor/test_unannounced_lists.py",
        {
            "failed = error is not None and connection.definitions is before": "failed = error is not None",
            "if self._connection is None or (self._listing and now >= self._since + AWAITED_FOR):": "if self._connection is None:",
            "if not connection.in_flight:": "if True:",
            "return now + min(_SETTLING * doubled, _SETTLING_AT_MOST)": "return now + _SETTLING",
            "self._answers, self._asked = self._asked, []": "self._answers = self._asked",
        },
    ),
    *mutants_of(
        "actors/start_limiter.py",
        "actors/test_start_limiter.py",
        {
            "return self.awaited, self.number": "return self.number, self.awaited",
            "if turn.awaited < math.inf:": "if False:",
            "return len(self._places) >= self._size": "return len(self._places) > self._size",
            "while self._places and (first := next(iter(self._places))).until <= now:": "while self._places and (first := next(iter(self._places))).until < now:",
        },
    ),
    *mutants_of(
        "actors/transports/http/token_requests.py",
        "real/test_hostile_issuers.py",
        {"if status >= _FAILED or status in _BUSY:": "if status >= _FAILED:"},
    ),
)
