"""What keeps a user safe: consent, pins, redaction, tokens, and who a client is."""

from .mutant import mutants_of

TRUST = (
    *mutants_of(
        "supervisor/security/trust.py",
        "supervisor/config/test_trust.py supervisor/config/test_trust_of_files.py",
        {
            "request = await self._memory.found(request)": "pass",
            "if await self._memory.is_agreed(request):": "if True:",
            'return "not trusted: refused"': "return None",
            "await self._memory.agree(request)": "pass",
            'return f"not trusted: {error}"': "return None",
            "return await trust(request) is True": "return bool(await trust(request))",
            "return False": "return True",
            "AGREED_FILE.set(self.files[0].digest if self.files else None)": "AGREED_FILE.set(None)",
        },
    ),
    *mutants_of(
        "supervisor/config/effects.py",
        "supervisor/config/test_trust.py supervisor/config/test_hostile_project.py property/test_variables.py",
        {
            "if not remote:": "if False:",
            "if isinstance(value, str) and command_of(value) is not None:": "if False:",
            'if key in known and key not in ("headers", "description") and any(map(has_variables, texts_of(value))):': 'if key in known and key not in ("env", "headers", "description") and any(map(has_variables, texts_of(value))):',
            'if key == "headers" and inputs_in(value):': "if False:",
            "if remote and key in known and key not in _HARMLESS:": "if False:",
            "agreed = [_DIGEST_FORMAT, path, server, shown, *([] if shown == entry else [entry])]": "agreed = [_DIGEST_FORMAT, path, server, shown]",
        },
    ),
    *mutants_of(
        "supervisor/config/installation.py",
        "supervisor/config/test_installation.py",
        {
            'keeping = Replacement(backup, backups.get(backup), backups.get(former, host.data or b""))': 'keeping = Replacement(backup, backups.get(backup), host.data or b"")',
            "replacements = (keeping, *reversed(shown), *gone)": "replacements = (*reversed(shown), keeping, *gone)",
            "if shown[1].before not in (None, shown[1].after):": "if False:",
            "backup = place.backup(data) if place.backup(data) in backups else as_before": "backup = next(iter(backups), None)",
        },
    ),
    *mutants_of(
        "supervisor/storage/tool_pins.py",
        "supervisor/storage/test_pins.py",
        {
            "unasked = [*declared, *(name for name, _ in left)]": "unasked = [*declared]",
            "self._schedule_retry(certain=review.certain or not live)": "self._schedule_retry(certain=True)",
            'if self._mode == "report":': "if True:",
            "return Review(changes, {**held, **dict.fromkeys(changes, _CHANGED_SINCE)}, certain=certain)": "return Review(changes, held, certain=certain)",
            "if self._spec.offers(each.name):": "if True:",
            "self._delay = _AGAIN / 2 if certain else min(self._delay * 2, _AGAIN_AT_MOST)": "self._delay = _AGAIN",
        },
    ),
    *mutants_of(
        "supervisor/calls/skills.py",
        "supervisor/skills/test_skill_pins.py supervisor/skills/test_skill_gate.py",
        {
            "if not serves_skills(servers, server):": "if True:",
            "shown = {id(skill) for uri, skill in by_uri.items() if uri not in review.held}": "shown = {id(skill) for skill in by_uri.values()}",
            "if why is not None:": "if False:",
            "if not fresh or each not in known.by_uri or each in known.review.held:": "if each in known.review.held:",
            "if known.is_unclear(uri):": "if False:",
            "if known.pinned is None:": "if False:",
            "return {key: value for key, value in result.items() if key not in _MEMBERS.values()}": "return result",
            "if of_skills[0] != uri:": "if False:",
            "if review.certain and servers.snapshot(server).value.owner is connection:": "if review.certain:",
            "if snapshot.value.skills.pinned is None or not (lists or _is_fresh(servers, server)):": "if snapshot.value.skills.pinned is None:",
        },
    ),
    *mutants_of(
        "supervisor/servers/keeper.py",
        "supervisor/skills/test_skill_pins.py",
        {"if command.transport != self._now.spec.transport:": "if False:"},
    ),
    *mutants_of(
        "supervisor/tools/pins.py",
        "supervisor/tools/test_pins.py supervisor/storage/test_pins.py property/test_schema_meaning.py",
        {
            "if tool in declared and declared[tool] != before": "if tool in declared and len(declared[tool]) != len(before)",
            "return Pin(self.text, None if text == self.text else text)": "return Pin(text)",
            "return Pin(text, None if text == self.differs else self.differs)": "return Pin(text)",
            "if as_it_was or wanted.enough:": "if wanted.enough:",
            '"description": definition.description,': '"description": None,',
            '"annotations": known_hints(definition),': '"annotations": None,',
            "return self.names <= MOST_PINS and max(self.pinned, self.differing) <= MOST_PINNED": "return self.names <= MOST_PINS",
        },
    ),
    *mutants_of(
        "supervisor/tools/ui.py",
        "supervisor/tools/test_ui.py",
        {
            "visibility = frozenset(each for each in _EVERYBODY if isinstance(callers, list) and each in callers)": "visibility = frozenset(each for each in _EVERYBODY if not isinstance(callers, list) or each in callers)",
            'return "model" in self.visibility': "return True",
        },
    ),
    *mutants_of(
        "supervisor/calls/resource_tools.py",
        "supervisor/test_apps.py",
        {
            "return self._servers.catalogue.value.for_models.find(name) or self.find_own(name)": "return self._servers.catalogue.value.find(name) or self.find_own(name)",
            "catalogue = self._servers.catalogue.value.for_models": "catalogue = self._servers.catalogue.value",
        },
    ),
    *mutants_of("supervisor/calls/approvals.py", "supervisor/test_apps.py", {"if not tool.for_models:": "if False:"}),
    *mutants_of(
        "supervisor/servers/view.py",
        "supervisor/gateway/views/test_apps.py",
        {"if may_be_public(name, self.snapshots, self.settings.template):": "if False:"},
    ),
    *mutants_of(
        "supervisor/gateway/views/view.py",
        "supervisor/gateway/views/test_apps.py",
        {
            "return self.access.has_tool(server, tool) and (self.apps or self.supervisor.for_models(server, tool))": "return self.access.has_tool(server, tool)",
            'for_client = self.apps or is_for_models(said.get("_meta"))': "for_client = True",
        },
    ),
    *mutants_of(
        "supervisor/gateway/views/all.py",
        "supervisor/gateway/views/test_apps.py",
        {
            "key = self.access.allow, self.apps": "key = self.access.allow",
            "if not self.apps or not self.supervisor.app_tools(name):": "if not self.supervisor.app_tools(name):",
            "claims = {*filter(self.access.has_server, tools), *self._unknown()}": "claims = set[str]()",
            "return self.access.has_tool(server, tool) and self.supervisor.spec(server).offers(tool)": "return True",
        },
    ),
    *mutants_of(
        "supervisor/security/redaction.py",
        "supervisor/security/test_redaction.py",
        {
            "yield value.lower()": "yield value",
            'yield encoded(value.encode(errors="surrogatepass")).decode().rstrip("=")': "yield value",
            "yield _HEX.sub(lambda found: found[0].lower(), form)": "yield form",
            'return f"{self.text(text[:MAX_SAID])[:-CUT_MARGIN]}… ({len(text)} characters)"': 'return f"{self.text(text[:MAX_SAID])}… ({len(text)} characters)"',
            "hidden = secret or is_secret_name(str(key))": "hidden = secret",
            'for form in (quoted, quoted.replace("%20", "+")):': "for form in (quoted,):",
            "found = _worth_looking_for(form for value in values for form in (value, behind_scheme(value)))": "found = _worth_looking_for(values)",
        },
    ),
    *mutants_of(
        "supervisor/security/redaction.py",
        "supervisor/storage/test_definitions.py",
        {"first, end = max(0, start - overlap), start + SMALL": "first, end = start, start + SMALL"},
    ),
    *mutants_of(
        "supervisor/security/secret_values.py",
        "supervisor/security/test_plain_values.py property/test_secrets.py",
        {
            "return _PLACE.fullmatch(value) is None or not is_plain(value)": "return not is_plain(value)",
            "return len(word) <= _LONGEST_NUMBER": "return True",
            "return len(word) < _LONG_WORD or _UNSPEAKABLE.search(word) is None": "return True",
        },
    ),
    *mutants_of(
        "supervisor/gateway/auth/bearer_tokens.py",
        "supervisor/gateway/auth/test_bearer_tokens.py",
        {
            "if hmac.compare_digest(entry.digest, digest):": "if found is None:",
            "return found if found is not None and not _has_expired(found) else None": "return found",
            "return any(each == principal and _expiry_of(each) >= _expiry_of(principal) for each in self.principals)": "return any(each == principal for each in self.principals)",
            "if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) or found.st_uid not in (0, os.geteuid()):": "if found.st_mode & stat.S_IWOTH or found.st_uid not in (0, os.geteuid()):",
            "if (other := first.setdefault(entry.digest, name)) != name:": "if False:",
            "return _expiry_of(principal) <= time.time()": "return _expiry_of(principal) < time.time() - 1",
            "if _parse(text, path) != left:": "if False:",
            "if unknown := fields.keys() - _FIELDS:": "if unknown := set[str]():",
        },
    ),
    *mutants_of(
        "supervisor/gateway/auth/principal.py",
        "supervisor/gateway/auth/test_principal.py",
        {
            "return self.allow is None or fits_any(self._tools_of(server))(tool) is not None": "return True",
            "return self.allow is None or bool(self._tools_of(server))": "return True",
            "return self.allow is None or METRICS in self.allow": "return True",
            'scheme, _, token = (given[0] if len(given) == 1 else b"").decode("latin-1").partition(" ")': 'scheme, _, token = (given[0] if given else b"").decode("latin-1").partition(" ")',
        },
    ),
    *mutants_of(
        "supervisor/gateway/auth/issuer.py",
        "real/test_gateway_oauth.py",
        {
            'if found is None or found.get("alg", algorithm) != algorithm:': "if found is None:",
            'if algorithm not in ALGORITHMS or "crit" in header or str(header.get("typ", "JWT")).lower() not in _TOKEN_TYPES:': 'if algorithm not in ALGORITHMS or str(header.get("typ", "JWT")).lower() not in _TOKEN_TYPES:',
        },
    ),
)
