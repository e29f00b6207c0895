"""A call on its way: its slot, its attempts, the circuit breaker before them, and who decides whether it is made."""

from .mutant import mutants_of

CALLS = (
    *mutants_of(
        "actors/reply.py",
        "actors/test_mailbox.py actors/test_deadlines.py actors/jsonrpc/test_send_queue.py supervisor/calls/test_resending.py "
        "supervisor/calls/test_circuit_breaker.py supervisor/calls/test_call_times.py supervisor/calls/test_human_time.py",
        {
            "if self.waits_since is not None:": "if self.waits_since is None:",
            "if isinstance(self.outcome, (Answered, Rejected, Malformed)):": "if isinstance(self.outcome, Answered):",
            "return Delivery.UNKNOWN if self.sent else Delivery.NOT_SENT": "return Delivery.UNKNOWN",
            "if not self.decided:": "if True:",
            "if self.outcome is None:": "if not self.decided:",
            "self.decided = self.cancelled = True": "self.cancelled = True",
            "self._said.append((size, said))": "self._said.appendleft((size, said))",
            "if len(self._said) == _PROGRESS_BACKLOG:": "if False:",
            "self.heard = True": "pass",
            "if self._idle is not None and not self.decided and not self._questions:": "if False:",
            "task, self._task = self._task, None": "task = self._task",
            "if not self._questions and not self.decided:": "if not self.decided:",
            "if self._questions == 1 and not self.decided:": "if False:",
            "self.deadline.timer.watch(self, self.deadline.at)": "pass",
        },
    ),
    *mutants_of(
        "supervisor/calls/attempts.py",
        "supervisor/calls/test_resending.py supervisor/calls/test_fan_out_endings.py supervisor/calls/test_call_times.py "
        "supervisor/servers/test_reconnecting_calls.py supervisor/calls/test_fan_out_limits.py supervisor/calls/test_fan_out.py "
        "real/test_restarts.py::test_whoever_got_a_loss_sees_it_everywhere real/test_redirects.py",
        {
            "error = await _failed(call, ended, final=error is not None)": "error = await _failed(call, ended, final=False)",
            'if resend == "never" or (isinstance(outcome, Dropped) and not outcome.again):': 'if resend == "never":',
            "if call.delivery is Delivery.NOT_SENT:": "if True:",
            'return call.asked.resend == "always" or call.repeatable': 'return call.asked.resend == "always"',
            "patient = error is not None and error.delivery is Delivery.UNKNOWN": "patient = error is not None",
            "if error is not None and patient and not _may_act_twice(call):": "if False:",
            "await target.noticed(incarnation)": "pass",
            "if attentive or asked.timeout == 0 or servers.closed:": "if attentive or servers.closed:",
            "if isinstance(call.slot.outcome, Answered):": "if not isinstance(call.slot.outcome, Answered):",
            "await trio.lowlevel.cancel_shielded_checkpoint()": "pass",
        },
    ),
    *mutants_of(
        "supervisor/calls/call.py",
        "supervisor/calls/test_bound_calls.py",
        {
            "if self.slot is not self.bound or self.slot.decided:": "if self.slot.decided:",
            "if self.agreed is not None or (self.servers.pinned and self.method == CALL_TOOL):": "if self.agreed is not None:",
        },
    ),
    *mutants_of(
        "actors/reply.py",
        "supervisor/calls/test_bound_calls.py",
        {
            "self._unwanted = True": "pass",
            "if self.sent:": "if False:",
        },
    ),
    *mutants_of(
        "supervisor/calls/followed_task.py",
        "supervisor/calls/test_followed_tasks.py",
        {
            "call.renew_slot()  # an answer of ours says nothing of what its server did": "pass",
            "if self.asked.server in self.servers.snapshots and _transport_of(self) != self.transport:": "if False:",
            "if _transport_of(call) == transport:": "if True:",
            "return self.slot.sent and not isinstance(self.slot.outcome, Loss)": "return True",
            "break  # its connection was lost, and with it somebody's answer": "continue",
            "elif self._refusal is not None:": "elif True:",
            "if self._failures > MOST_FAILURES:": "if False:",
            "if not self._is_over:": "if False:",
            "if not self._task.is_over and trio.current_time() >= self._task.expires_at:": "if False:",
            "self._idle.stop()": "pass",
        },
    ),
    *mutants_of(
        "supervisor/decisions/task_states.py",
        "supervisor/decisions/test_task_states.py",
        {
            'if raw.get("taskId") != self.id:': "if False:",
            "if status is not self.status and status not in TASK_TRANSITIONS[self.status]:": "if False:",
            "if len(asked) > MOST_QUESTIONS:": "if False:",
        },
    ),
    *mutants_of(
        "supervisor/servers/given_up_tasks.py",
        "supervisor/calls/test_followed_tasks.py",
        {
            "if trio.current_time() < given_up.until:": "if True:",
            "timer.watch(slot, now + CANCEL_WITHIN)": "pass",
        },
    ),
    *mutants_of(
        "supervisor/calls/followed_task.py",
        "supervisor/calls/test_kept_tasks.py",
        {
            "self._is_over = self._is_over or self._call.outlived": "pass",
            "self._is_over = self._is_over or not lost.for_good": "pass",
            "await self._call.task_changed(self._task)  # before it is sent: nobody is asked twice": "pass",
        },
    ),
    *mutants_of(
        "supervisor/calls/kept_call.py",
        "supervisor/calls/test_kept_tasks.py",
        {
            "return kept.record is not None and (kept.ended is None or kept.cancelled is not None)": "return kept.record is not None",
            "if found.definition_hash != record.definition:": "if False:",
            "if spec_digest(observable.value.spec) != record.spec:": "if False:",
            "give_up(self, record.task, self.servers.snapshot(self.server_name).value.spec.transport)": "pass",
            "self.deadline: Deadline | None = None": "pass",
        },
    ),
    *mutants_of(
        "supervisor/calls/kept_tasks.py",
        "supervisor/calls/test_kept_tasks.py",
        {
            "if is_ours is False:": "if is_ours is None:",
            "while is_ours is None and record.answers != before.answers:": "while False:",
            "give_up(request, record.task, request.transport)": "pass",
            "if was_over or (isinstance(ended, TaskLost) and not ended.for_good):": "if was_over:",
            "self._submit(lambda rows: rows.release_all(self._name))": "pass",
            "if held.get(kept.id):": "if False:",
        },
    ),
    *mutants_of(
        "supervisor/gateway/upstream/own_tasks.py",
        "supervisor/gateway/test_own_tasks.py",
        {
            "seconds = self._after if seconds is None else seconds": "seconds = self._after",
            "if seconds is None or not declares(request.own_capabilities, TASKS) or self._makes_its_own(server):": "if seconds is None or self._makes_its_own(server):",
            "request.notify = _say_nothing  # it has been answered": "pass",
            'if result.get("resultType") != "input_required":': "if True:",
            "self._made.discard(call)": "pass",
            "check_declares(request.capabilities, TASKS)": "pass",
            "await tasks.cancel_made(name)": "pass",
            "if record is None or view.server not in (None, record.info.server):": "if record is None:",
        },
    ),
    *mutants_of(
        "supervisor/calls/kept_tasks.py",
        "supervisor/gateway/test_own_tasks.py",
        {
            "if record is not None and is_free:": "if False:",
            "if record is not None and (record.info.expires or math.inf) < time.time():  # it has been over for so long": "if False:",
            "self._submit(lambda rows: rows.forget(name))  # it may be recorded all the same, only later": "pass",
        },
    ),
    *mutants_of(
        "supervisor/servers/task_news.py",
        "supervisor/calls/test_task_news.py",
        {
            "most = min(ASKED_AT_ONCE, max(1, spec.max_in_flight // 4))": "most = ASKED_AT_ONCE",
            "if (left := left - _size(task)) < 0 and names:": "if False:",
            "replaced.timer.watch(replaced, trio.current_time() + REPLACED_FOR)": "replaced.cancel()",
            "ear.set_agreed(agreed=any(ear.task in stream.agreed for stream in self._streams))": "pass",
            "has_lasted = trio.current_time() - stream.opened_at > self._pause": "has_lasted = False",
            "if self._taken >= self.most or next(iter(self._queue)) is not ear:": "if False:",
        },
    ),
    *mutants_of(
        "supervisor/servers/view.py",
        "supervisor/calls/test_task_news.py",
        {"self.registry.task_news.wake()": "pass"},
    ),
    *mutants_of(
        "supervisor/calls/followed_task.py",
        "supervisor/calls/test_task_news.py",
        {
            "turns.leave(ear)  # the caller may take its time": "pass",
            "while not turns.take(ear, first=first or trio.current_time() >= expires):": "while not turns.take(ear):",
            "if trio.current_time() >= expires + LAST_ANSWER_WITHIN:": "if False:",
        },
    ),
    *mutants_of(
        "supervisor/calls/task_outcomes.py",
        "supervisor/gateway/test_own_tasks.py",
        {"if outcome is not None and len(json.dumps(outcome)) <= MOST_RESULT:": "if outcome is not None:"},
    ),
    *mutants_of(
        "supervisor/storage/task_rows.py",
        "supervisor/storage/test_task_rows.py",
        {
            "return {name: unwanted == 1 for name, unwanted in held}": "return {name: False for name, unwanted in held}",
            "ousted = rival if rival != owner and _is_dead(rival) else owner": "ousted = owner",
            "if number > MOST_TASKS:": "if False:",
            "if total > MOST_RESULTS:": "if False:",
            "if number >= limit:": "if False:",
            "kept = record.info.expires if record.is_made else None": "kept = None",
            "WHERE finished IS NULL OR coalesce(until, finished + ?) >= {now} ORDER BY created, id": "WHERE finished IS NULL OR finished + ? >= {now} ORDER BY created, id",
            "outcome = None if outcome is None or len(outcome) > MOST_RESULT else outcome": "pass",
        },
    ),
    *mutants_of(
        "supervisor/calls/input_rounds.py",
        "supervisor/calls/test_bound_calls.py",
        {
            "if not self._begun:": "if False:",
            "self._begun = True": "pass",
        },
    ),
    *mutants_of(
        "supervisor/gateway/upstream/server_requests.py",
        "supervisor/gateway/upstream/test_ask_client.py",
        {"agreed = of_any_definition(agreed)  # the server has begun the call: it goes on": "pass"},
    ),
    *mutants_of(
        "supervisor/gateway/upstream/server_requests.py",
        "real/test_extensions_table.py",
        {
            'if request.method == CALL_TOOL and kind == "complete" and not is_text_alone(result):  # others are of extensions': "if request.method == CALL_TOOL and not is_text_alone(result):"
        },
    ),
    *mutants_of(
        "supervisor/gateway/upstream/instance.py",
        "supervisor/gateway/upstream/test_ask_client.py",
        {
            'return await super().request(principal, {**asked, "agreed": of_any_definition(asked.get("agreed"))})': (
                'return await super().request(principal, {**asked, "agreed": None})'
            ),
        },
    ),
    *mutants_of(
        "supervisor/calls/call.py",
        "supervisor/calls/test_resending.py supervisor/calls/test_call_times.py supervisor/calls/test_input_rounds.py "
        "real/test_circuit_breaker.py::"
        "test_a_call_that_finds_it_open_when_it_is_sent_again_raises_what_became_of_it",
        {
            "if self.slot.sent:": "if False:",
            "if earlier is not None:": "if False:",
            "return Delivery.UNKNOWN if self._acted_before and delivery is Delivery.NOT_SENT else delivery": "return delivery",
            "self._acted_before = self._acted_before or before.sent": "self._acted_before = False",
            "ends = self._started + self.timeout": "ends = trio.current_time() + self.timeout",
        },
    ),
    *mutants_of(
        "supervisor/calls/call.py",
        "supervisor/servers/test_reconnecting_calls.py supervisor/calls/test_resending.py supervisor/servers/test_revive.py "
        "supervisor/calls/test_slow_starts.py supervisor/test_unannounced_lists.py",
        {
            "self._lost_incarnation, self._took_part = incarnation or 0, False": "self._lost_incarnation = incarnation or 0",
            "while not self._is_connected(server.value, waits) or server.value.incarnation == self._lost_incarnation:": (
                "while not self._is_connected(server.value, waits):",
                "A call that the router has refused is given to it again, turn by turn, until the keeper knows of the end.",
            ),
            "if snapshot.state not in waits or snapshot.abandoned:": "if snapshot.state not in waits:",
            "self._servers.request_start(snapshot.spec.name)": "pass",
            "if self._started is None:": "if True:",
            'if self._asked.when_down == "fail":': "if False:",
            "self._unsure = [] if self._listed_again else self._may_have_it_now(owner)": "self._unsure = []",
            "return owners[0] if len(owners) == 1 and owners[0] in blank else None": "return None",
        },
    ),
    *mutants_of(
        "supervisor/calls/call.py",
        "supervisor/servers/test_holding_calls.py property/test_holding.py",
        {
            "skips_delay = skips_delay or (self._hold > 0 and snapshot.was_stable)": "skips_delay = skips_delay or self._hold > 0",
            "if self._held_until is not None and trio.current_time() >= self._held_until:": "if False:",
            "with trio.move_on_at(self._held_until):": "with trio.move_on_at(math.inf):",
            "if progress > self._told:": "if progress != self._told:",
            "if patient or self._hold:": "if patient:",
        },
    ),
    *mutants_of(
        "supervisor/decisions/circuit_breaker.py",
        "supervisor/calls/test_circuit_breaker.py property/test_circuit_breaker.py",
        {
            "since = self.probe_at if self.probe is None else self.probes_since + self.breaker.open_for": "since = self.probe_at",
            "return since is None or since <= now": "return since is None or since < now",
            "return evolve(self, probe=None) if probed else self": "return self",
            "if self.probe_at is not None and not probed:": "if False:",
            "opens = failures >= self.breaker.failures": "opens = failures > self.breaker.failures",
            "return outcome.status is None or outcome.status < _SERVER_ERROR": "return True",
            "return None if heard or waited < LEAST_WAIT else False": "return None if waited < LEAST_WAIT else False",
            "return BreakerStatus(self.state, self.failures, max(0.0, self.probe_at - now))": "return BreakerStatus(self.state, self.failures, self.probe_at - now)",
        },
    ),
    *mutants_of(
        "supervisor/servers/breakers.py",
        "supervisor/calls/test_circuit_breaker.py",
        {
            "if observable is None or owner is None or slot.incarnation not in (None, owner.incarnation):": "if observable is None or owner is None:",
            "now, sent = trio.current_time(), slot.sent or circuit.probe is call  # a probe that it does not read has failed": "now, sent = trio.current_time(), slot.sent",
            "waited = math.inf if slot.waits_since is None else now - slot.waits_since": "waited = math.inf",
            "self._set(server, Circuit(circuit.breaker))": "pass",
            "if circuit.state != before.state:": "if False:",
        },
    ),
    *mutants_of(
        "supervisor/tools/approval_rules.py",
        "supervisor/test_host_view.py supervisor/tools/test_tools.py supervisor/test_toolset.py property/test_host_view.py",
        {
            "if _fits(tool, self.denied):": "if _fits(tool, self.denied) and not remembered:",
            "if _fits(tool, self.always_ask):": "if False:",
            'return any(matches(own if "/" in glob else tool.name, (glob,)) for glob in globs)': "return any(matches(tool.name, (glob,)) for glob in globs)",
        },
    ),
    *mutants_of(
        "supervisor/calls/resource_tools.py",
        "supervisor/resources/test_resource_tools.py",
        {
            "if not (catalogue.resources or catalogue.resource_templates):": "if not catalogue.resources:",
            "requires_approval=name == READ,": "requires_approval=False,",
        },
    ),
)
