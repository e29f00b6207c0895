"""The JSON-RPC endpoint and the actors around it: what leaves, what comes, and whom it is handed to."""

from .mutant import mutants_of

WIRE = (
    *mutants_of(
        "actors/queues.py",
        "property/test_queues.py actors/test_queues.py actors/jsonrpc/test_notices.py",
        {
            "if key in self._waiting:": "if False:",
            "self._bounded[key] = None": "pass",
            "if is_behind_gap or size > self._most_size:": "if size > self._most_size:",
            "if when_full is not WhenFull.LOSE_OLDEST or not self._bounded:": "if when_full is not WhenFull.LOSE_OLDEST:",
            "self._remove(next(iter(self._bounded)))": "self._remove(next(iter(self._waiting)))",
            "return not size or self._account.take(self._kind, size, self._most_size)": "return self._account.take(self._kind, size, self._most_size)",
            "self.lost += count": "self.lost += 1",
            "lost, self.lost = self.lost, 0": "lost = self.lost",
            "self._bounded.pop(key, None)": "pass",
            "self._give_back(item, size)": "pass",
            "raise trio.EndOfChannel if self._finished else trio.WouldBlock": "raise trio.WouldBlock",
            "await trio.lowlevel.cancel_shielded_checkpoint()": "await trio.lowlevel.checkpoint()",
        },
    ),
    *mutants_of(
        "actors/http/environment.py",
        "actors/transports/test_proxies.py",
        {
            "if is_loopback_host(host) and ASKED_FOR_LOOPBACK not in excepted:": "if False:",
            "return ip_address(host).is_loopback": "return host == '127.0.0.1'",
            'if for_scheme not in ("", "all", scheme):': "if False:",
            'return ip_address(host) in ip_network(entry.strip("[]"), strict=False)': "return False",
            "if not name or int(for_port or 0) != (port or 0):": "if not name:",
            'elif url.scheme.startswith("socks") and not _has_socks():': "elif False:",
            "_check_folders(value.split(os.pathsep))": "pass",
        },
    ),
    *mutants_of(
        "supervisor/gateway/client_request.py",
        "supervisor/gateway/test_checks.py",
        {
            'params.keys() <= {"name", "arguments"}': "True",
            'and type(params.get("arguments", _NONE)) is dict': "",
            'return _is_plain_call(params) and all(type(each) is str for each in params.get("arguments", _NONE).values())': "return _is_plain_call(params)",
            'return set(params) == {"uri"} and type(params["uri"]) is str': 'return params.keys() == {"uri"}',
            'return set(params) == {"level"} and params["level"] in LEVELS': 'return params.keys() == {"level"}',
            'and type(request.meta.get("progressToken", "")) in (str, int)': "",
            'if name in ("resourceSubscriptions", "taskIds"):': "if type(value) is list:",
            "return not inner or (levels > 0 and all(_are_objects(each, levels - 1) for each in inner))": "return True",
        },
    ),
    *mutants_of(
        "supervisor/gateway/http/routing_headers.py",
        "supervisor/gateway/http/test_routing_headers.py",
        {
            "if is_plain(request) and _agree_plainly(exchange, request) and X_MCP_HEADER not in encode(schema):": "if is_plain(request) and _agree_plainly(exchange, request):",
            "return len(given) == len(about) and given == wanted and said.isascii() and ENCODED_HEADER not in said": (
                "return given == wanted and said.isascii() and ENCODED_HEADER not in said"
            ),
            'said = "".join(given.values())': 'said = ""',
            "if request.method in NAME_BEARING_METHODS:": "if False:",
            "elif request.method in TASK_REQUESTS and MCP_NAME_HEADER in exchange.headers:  # FastMCP's client leaves it out": "elif False:",
        },
    ),
    *mutants_of(
        "actors/records.py",
        "actors/test_records.py",
        {
            "return values(self) == values(other) if other.__class__ is cls else NotImplemented": "return values(self) == values(other)",
            "names = [each.name for each in fields(cls) if each.eq]": "names = [each.name for each in fields(cls)]",
            "missing = shared.keys() - vars(cls).keys()": "missing = shared.keys()",
        },
    ),
    *mutants_of(
        "actors/http/header_rules.py",
        "supervisor/test_words_of_faults.py property/test_headers.py",
        {'if value != value.strip(" \\t"):': "if False:"},
    ),
    *mutants_of(
        "actors/http/routes.py",
        "actors/transports/test_proxies.py",
        {
            "await streams[-1].aclose()": "pass",
            'logging.getLogger("httpcore2.socks").setLevel(logging.INFO)': "pass",
        },
    ),
    *mutants_of(
        "supervisor/gateway/clients.py",
        "supervisor/gateway/test_clients.py supervisor/gateway/http/test_sessions.py",
        {
            "return item.hold(self._account, in_any_case=not size)": "return item.hold(self._account)",
            "item.release(self._account)": "pass",
            "when_full = WhenFull.LOSE_NEWEST if notification.method == LOG else WhenFull.LOSE_OLDEST": "when_full = WhenFull.LOSE_NEWEST",
            "self.add(notification)  # for the next listener": "pass",
        },
    ),
    *mutants_of(
        "actors/jsonrpc/stream_carrier.py",
        "actors/jsonrpc/test_send_queue.py actors/jsonrpc/test_endpoint_incoming.py actors/jsonrpc/test_endpoint_calls.py supervisor/calls/test_fan_out_limits.py",
        {
            "if bounded and self._queue and self.size + len(frame) > self._limit:": "if bounded and self.size + len(frame) > self._limit:",
            "if self._broken and slot is None:": "if False:",
            "if self._due and self.size + len(frame) > self._limit:": "if False:",
            "if not self._writing:": "if True:",
            "if self.is_blocked or self.size >= _TOGETHER or self._nursery is None:": (
                "if self.is_blocked or self._nursery is None:"
            ),
            "for slot in [key for key in queue if isinstance(key, ReplySlot) and key.decided]:": "for slot in [key for key in queue if isinstance(key, ReplySlot) and key.cancelled]:",
            "self.is_blocked, self._due = False, True": "self.is_blocked = False",
            "if len(batch) == 1 and batch[0].bounded:": "if batch and batch[0].bounded:",
            "if self._alone > _AT_ONCE:": "if False:",
            "if queue or self._stream.unfinished:": "if queue:",
            "self._left(*queue.popitem(last=False))": "self._left(*queue.popitem())",
            "self.owed_bytes += count": "self.owed_bytes += abs(count)",
            "return self.owed < MOST_OWED and self.owed_bytes <= self._limit": "return self.owed < MOST_OWED",
            "while not (self.has_room or self._broken):": "while not self.has_room:",
            "return bytes(memoryview(frame)) if len(frame) < _FITTED else frame": "return frame",
        },
    ),
    *mutants_of(
        "actors/jsonrpc/pending.py",
        "actors/jsonrpc/test_pending.py actors/jsonrpc/test_endpoint_calls.py actors/jsonrpc/test_endpoint_session.py",
        {
            "self._last_id += 1 + self._random.pop() % _STRIDE": "self._last_id += 1",
            "if key is not None and self._waiting.get(key) is slot:  # once answered, its id may be another's": "if key in self._waiting:",
            "text = message[:_MOST_PROGRESS_CHARACTERS] if isinstance(message, str) else None": "text = message if isinstance(message, str) else None",
            "if type(code) is int:": "if isinstance(code, int):",
        },
    ),
    *mutants_of(
        "actors/jsonrpc/endpoint.py",
        "actors/jsonrpc/test_endpoint_calls.py actors/jsonrpc/test_endpoint_session.py "
        "actors/jsonrpc/test_endpoint_incoming.py actors/jsonrpc/test_refusals.py",
        {
            'tell = opts.get("cancel_on_abandon", True) and method != "initialize"  # the protocol forbids it': 'tell = opts.get("cancel_on_abandon", True)',
            "self.lose(CLOSED_BY_US)  # unless it was lost before; nothing is written any more": "pass",
            "unsent = [slot for slot in self.calls if not slot.sent]": "unsent = list(self.calls)",
            "self.loss = evolve(loss, pending=len(self.calls))": "self.loss = loss",
            "self.conclude(refused.slot, Busy())": "pass",
            "if self._pace.spent(size):  # whatever the frame was": "if False:",
            "await self.take_in(messages, origin)  # none of which is a batch": "pass",
            "if session.intercepts(method, params):": "if False:",
            "takes_turn = pace.spent(0) or not len(notices)": "takes_turn = True",
            "if math.log10(self.noise).is_integer():  # the 1st, 10th, 100th…: a babbling server must not fill the log": "if True:",
        },
    ),
    *mutants_of(
        "actors/jsonrpc/endpoint.py",
        "actors/transports/test_http_answers.py actors/transports/test_http_exchanges.py",
        {
            "if slot is None or not origin.may_answer(slot):": "if slot is None:",
            "if slot is not None and origin.may_answer(slot):": "if slot is not None:",
        },
    ),
    *mutants_of(
        "actors/router.py",
        "actors/test_router.py",
        {
            "if slot.decided:": "if False:",
            "is_listed = route is not None and call.name in route.own": "is_listed = True",
            "call.slot.resolve(Busy())": "call.slot.resolve(Unrouted())",
            "for calls in (self._calls, *self._mailbox.close()):": "for calls in self._mailbox.close():",
            "if owner is None or not (is_listed or call.method != CALL_TOOL or slot.relay is not None):": "if owner is None or not (is_listed or call.method != CALL_TOOL):",
        },
    ),
    *mutants_of(
        "actors/service.py",
        "actors/test_server_actor.py actors/test_server_actor_calls.py actors/test_follow_ups.py",
        {
            "self._connection.submit([call for call in calls if not call.slot.decided])": "self._connection.submit(calls)",
            "if self._stopping:  # handed over in the moment of the stop": "if False:",
            "self._connection.withdraw_unsent()": "pass",
            "slot.resolve(_CLOSED)": "pass",
            "with self._draining:": "with trio.move_on_after(0):",
            "self._draining.deadline = min(self._draining.deadline, trio.current_time() + drain)": "self._draining.deadline = trio.current_time() + drain",
            "if self._stopping or self._nursery is None:": "if False:",
        },
    ),
    *mutants_of(
        "actors/server_actor.py",
        "actors/test_server_actor.py actors/test_server_actor_calls.py actors/test_follow_ups.py "
        "supervisor/servers/test_needs_auth.py",
        {
            "kind = ExitKind.NEEDS_AUTH if loss.needs_auth else ExitKind.UNUSABLE": "kind = ExitKind.UNUSABLE",
            "await trio.lowlevel.checkpoint_if_cancelled()  # if the time ran out in this step, it is not connected": "pass",
        },
    ),
    *mutants_of(
        "actors/list_refresh.py",
        "actors/test_server_actor_lists.py supervisor/test_unannounced_lists.py",
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
        "actors/session/changes.py",
        "actors/session/test_list_changes.py",
        {
            "look(heard)  # no change between the fetch and the acknowledgement was notified": "pass",
        },
    ),
    *mutants_of(
        "actors/transports/http/exchange.py",
        "actors/transports/test_http_exchanges.py",
        {
            "self._left, self._was_refused = False, True": "self._was_refused = True",
            "self.slot.mark_refused()": "pass",
            "if self._was_refused:": "if False:",
        },
    ),
    *mutants_of(
        "actors/transports/http/exchange.py",
        "actors/transports/test_http_unasked.py",
        {"async with self.carrier.responses:": "if True:", "if not self.responses.value:": "if False:"},
    ),
    *mutants_of(
        "actors/http/auth.py",
        "actors/transports/test_http_exchanges.py",
        {"return response.status_code == HTTPStatus.UNAUTHORIZED or lacks_scope": "return lacks_scope"},
    ),
    *mutants_of(
        "actors/oauth/token_endpoint.py",
        "real/test_hostile_issuers.py",
        {"if status >= _FAILED or status in _BUSY:": "if status >= _FAILED:"},
    ),
)
