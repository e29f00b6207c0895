"use strict";
// Follows the changes of a page: one stream of events, whose messages replace parts of the document. What servers say
// was escaped where the parts were made; the policy of the page forbids scripts and styles of any other origin.
(() => {
  const MOST_LINES = 500;
  const content = document.getElementById("content");
  const away = document.getElementById("away");
  const filter = document.getElementById("filter");

  // -- clocks, which go on without a message

  const spoken = (seconds) => {
    const whole = Math.max(0, Math.floor(seconds));
    for (const [size, unit, small, part] of [[86400, "d", 3600, "h"], [3600, "h", 60, "min"], [60, "min", 1, "s"]]) {
      if (whole >= size) return `${Math.floor(whole / size)} ${unit} ${Math.floor((whole % size) / small)} ${part}`;
    }
    return `${whole} s`;
  };
  const tick = () => {
    const now = Date.now() / 1000;
    for (const clock of document.querySelectorAll("time[data-since], time[data-until]")) {
      const { since, until } = clock.dataset;
      const text = spoken(since === undefined ? until - now : now - since);
      if (clock.textContent !== text) clock.textContent = text;
    }
  };
  const slide = () => {
    const now = Date.now() / 1000;
    for (const drawn of document.querySelectorAll("svg[data-drawn]")) {
      const { drawn: at, window } = drawn.dataset;
      drawn.setAttribute("x", `${(-100 * (now - at) / window).toFixed(2)}%`);
    }
  };
  setInterval(tick, 1000);
  setInterval(slide, 5000);
  tick(); // what is shown may have been made a while ago
  slide();

  // -- the filter of a list

  const show = (row) => {
    row.hidden = Boolean(filter?.value) && !row.textContent.toLowerCase().includes(filter.value.toLowerCase());
  };
  filter?.addEventListener("input", () => {
    for (const row of document.getElementById(filter.dataset.filters).children) show(row);
  });

  // -- parts

  const place = (list, row) => {
    let low = 0;
    let high = list.children.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list.children[middle].dataset.order < row.dataset.order) low = middle + 1;
      else high = middle;
    }
    list.insertBefore(row, list.children[low] ?? null);
  };
  const put = (html) => {
    const template = document.createElement("template");
    template.innerHTML = html;
    const part = template.content.firstElementChild;
    const old = document.getElementById(part.id);
    const open = old ? [...old.querySelectorAll("details")].map((each) => each.open) : [];
    const list = part.dataset.list && document.getElementById(part.dataset.list);
    [...part.querySelectorAll("details")].forEach((each, number) => { each.open = open[number] ?? false; });
    if (list && (old?.dataset.order !== part.dataset.order || old.dataset.list !== part.dataset.list)) {
      old?.remove();
      place(list, part);
    } else if (old) {
      old.replaceWith(part);
    }
    if (list && list.id === filter?.dataset.filters) show(part);
  };
  const append = ([id, text]) => {
    const log = document.getElementById(id);
    const atEnd = log.scrollTop + log.clientHeight >= log.scrollHeight - 4;
    const lines = (log.textContent + text).split("\n");
    log.textContent = lines.slice(Math.max(0, lines.length - MOST_LINES - 1)).join("\n");
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  const change = (message) => {
    if (message.gone) location.assign("/ui");
    const focused = document.activeElement?.id;
    if (message.all) {
      const there = new Set(message.all);
      for (const row of document.querySelectorAll("[data-list]")) if (!there.has(row.id)) row.remove();
    }
    for (const html of message.put ?? []) put(html);
    for (const more of message.text ?? []) append(more);
    if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus();
    tick();
  };

  // -- the stream

  // A browser has few connections to a host: only the page that is seen has one. One that is seen again is
  // sent what has changed.

  const LATER = 2000;
  let stream = null;
  const say = (text) => {
    away.hidden = !text;
    if (away.textContent !== text) away.textContent = text;
  };
  const close = () => {
    stream?.close();
    stream = null;
  };
  const follow = () => {
    if (stream || document.hidden) return;
    stream = new EventSource(content.dataset.live);
    stream.onopen = () => {
      say("");
      document.getElementById("stderr")?.replaceChildren();
    };
    stream.onmessage = (event) => {
      const message = JSON.parse(event.data);
      if (message.full) {
        close();
        say("Too many pages are open. This one shows what was, and tries again.");
        setTimeout(follow, 2 * LATER);
      } else change(message);
    };
    stream.onerror = () => {
      say("The gateway does not answer. Trying again …");
      if (stream?.readyState === EventSource.CLOSED) {
        close();
        setTimeout(follow, LATER);
      }
    };
  };
  if (content.dataset.live) {
    follow();
    document.addEventListener("visibilitychange", () => (document.hidden ? close() : follow()));
    addEventListener("pagehide", close);
    addEventListener("pageshow", follow);
  }
})();
