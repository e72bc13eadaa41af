// The start page asks the API every two seconds and shows what it says. All
// text goes in as text, never as markup: names are the clients' own.

const refreshMs = 2000;
const number = new Intl.NumberFormat();
const sort = { key: "name", down: false };
let streams = [];
// detail is the stream that is shown in full, if any.
let detail = null;
// shownMax bounds the rows of a table: the page is for looking, not for lists.
const shownMax = 500;

const byId = (id) => document.getElementById(id);

function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  while (n >= 1000 && i < units.length - 1) { n /= 1000; i++; }
  return `${n >= 100 || i === 0 ? Math.round(n) : n.toFixed(1)} ${units[i]}`;
}

async function ask(path) {
  // The origin is without the credentials that the page's address may hold:
  // a relative address would take them over, which fetch refuses.
  const answer = await fetch(new URL(path, location.origin), { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(`${path}: ${(await answer.json()).message}`);
  return answer.json();
}

function row(cells) {
  const tr = document.createElement("tr");
  for (const cell of cells) {
    const td = document.createElement("td");
    td.textContent = cell.text;
    if (cell.number) td.className = "number";
    if (cell.open) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "link";
      button.textContent = cell.text;
      button.dataset.key = cell.key;
      button.addEventListener("click", cell.open);
      td.replaceChildren(button);
    }
    if (cell.title) td.title = cell.title;
    tr.append(td);
  }
  return tr;
}

const text = (t, title) => ({ text: t, title });
const count = (n) => ({ text: number.format(n), number: true });
const size = (n) => ({ text: bytes(n), number: true, title: `${number.format(n)} B` });
const tracking = (s) => s.bytes.trailer + s.bytes.delta + s.bytes.snapshot;
const share = (part, whole) => whole > 0 ? part / whole : 0;
const percent = (part, whole, title) => ({ text: whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "–", number: true, title });

function period(ms) {
  const units = [["d", 86400e3], ["h", 3600e3], ["min", 60e3], ["s", 1e3]];
  for (const [name, length] of units) if (ms >= 2 * length) return `${Math.floor(ms / length)} ${name}`;
  return `${ms} ms`;
}
const span = (ms) => ms === undefined ? text("–") : { text: period(ms), number: true };

function showHealth(good, words) {
  const health = byId("health");
  health.className = good ? "good" : "bad";
  health.textContent = (good ? "✓ " : "✗ ") + words;
}

function showNode(status) {
  showHealth(status.ready, status.ready ? "ready" : `not ready: ${status.reason}`);
  const known = {
    Name: status.node, Version: status.version, "Clients connect to": status.addresses.advertised,
    "Up since": new Date(status.started).toLocaleString(), "Data directory": status.data_dir,
    "Disk free": bytes(status.disk.free_bytes) + ({ low: ", low: retention runs", alarm: ", too low: publishers are stopped" }[status.disk.level] || ""),
  };
  facts(byId("node"), known);
}

function sortValue(s) {
  if (sort.key === "user") return s.bytes.user;
  if (sort.key === "tracking") return tracking(s);
  if (sort.key === "share") return share(s.tracking_bytes, s.tracking_bound_bytes);
  return s[sort.key] ?? "";
}

function showStreams() {
  const wanted = byId("filter").value.toLowerCase();
  const shown = streams.filter((s) => s.name.toLowerCase().includes(wanted));
  shown.sort((a, b) => {
    const x = sortValue(a), y = sortValue(b);
    const order = typeof x === "number" ? x - y : String(x).localeCompare(String(y));
    return sort.down ? -order : order;
  });
  byId("stream-count").textContent = wanted ? `${shown.length} of ${streams.length}` : streams.length;
  byId("no-streams").hidden = streams.length > 0;
  const focused = document.activeElement?.dataset.key; // the rows are made anew
  document.querySelector("#streams tbody").replaceChildren(...shown.map((s) => row([
    { ...text(s.name, `incarnation ${s.incarnation}`), key: s.incarnation, open: () => open(s) }, text(s.vhost), count(s.messages), count(s.first_offset),
    count(s.next_offset), size(s.bytes.user), size(tracking(s)),
    percent(s.tracking_bytes, s.tracking_bound_bytes, `${number.format(s.tracking_bytes)} of ${number.format(s.tracking_bound_bytes)} B`),
    span(s.window_ms), count(s.segments), text(s.leader || "none at present"),
  ])));
  if (focused) document.querySelector(`#streams button.link[data-key="${focused}"]`)?.focus();
}

function open(s) {
  detail = s;
  byId("detail").hidden = false;
  showDetail().then(() => byId("detail-title").focus());
}

function close() {
  detail = null;
  byId("detail").hidden = true;
}

// facts fills a list of names and values.
function facts(into, list) {
  into.replaceChildren(...Object.entries(list).flatMap(([name, value]) => {
    const dt = document.createElement("dt"), dd = document.createElement("dd");
    dt.textContent = name;
    dd.textContent = value;
    return [dt, dd];
  }));
}

function state(r) {
  return [r.state, r.stale && "stale", r.ahead && "ahead", r.sessions > 0 && "connected"].filter(Boolean).join(", ");
}

// showDetail shows one stream's figures, readers and segments.
async function showDetail() {
  if (!detail) return;
  const wanted = detail;
  const path = `/api/v1/streams/${encodeURIComponent(wanted.vhost)}/${encodeURIComponent(wanted.name)}`;
  let answers;
  try {
    answers = await Promise.all([ask(path), ask(`${path}/tracking`), ask(`${path}/segments`)]);
  } catch (err) {
    if (detail === wanted) facts(byId("detail-facts"), { "No answer": err.message });
    return;
  }
  if (detail !== wanted) return; // another one was opened meanwhile
  const [s, references, segments] = answers;
  const c = s.compaction;
  byId("detail-title").textContent = s.name;
  facts(byId("detail-facts"), {
    Messages: `${number.format(s.messages)}, offsets ${number.format(s.first_offset)} up to ${number.format(s.next_offset)}`,
    "User bytes": bytes(s.bytes.user),
    Tracking: `${bytes(s.tracking_bytes)} of the ${bytes(s.tracking_bound_bytes)} it may take; publishers' sequences ${bytes(s.sequence_bytes)}`,
    References: `${number.format(s.stored_offsets)} of ${number.format(s.stored_offsets_max)} stored offsets (${s.stored_offsets_evicted} evicted, ` +
      `${s.stored_offsets_pending} not written yet), ${number.format(s.publisher_sequences)} of ${number.format(s.publisher_sequences_max)} publishers (${s.publisher_sequences_evicted} evicted)`,
    Window: `${period(s.window_ms)}: so far back a stored offset may fall if all power is lost`,
    Compaction: `could gain ${bytes(c.droppable_bytes)}, has gained ${bytes(c.dropped_bytes)} in ${c.drops} drops and ${c.merges} merges`,
  });
  byId("reference-count").textContent = references.length;
  references.sort((a, b) => (b.lag_messages ?? -1) - (a.lag_messages ?? -1));
  byId("references").tBodies[0].replaceChildren(...references.slice(0, shownMax).map((r) => row([
    text(r.reference), text(r.kind), count(r.value), r.lag_messages === undefined ? text("–") : count(r.lag_messages),
    span(r.lag_ms), r.age_ms === undefined ? text("–") : { ...span(r.age_ms), text: `${period(r.age_ms)} ago` }, text(state(r)),
  ])));
  byId("segment-count").textContent = segments.length;
  byId("segments").tBodies[0].replaceChildren(...segments.slice(-shownMax).map((g) => row([
    text(g.file), count(g.first_offset), count(g.records), size(g.bytes.user), size(g.bytes.trailer), size(g.bytes.delta),
    size(g.bytes.snapshot), size(g.bytes.filter), size(g.bytes.index), size(g.droppable_bytes), size(g.dropped_bytes), text(g.state),
  ])));
}

function showConnections({ items: list, unknown }) {
  byId("connection-count").textContent = list.length;
  byId("connections-unknown").textContent = unknown.length === 0 ? "" : `not known: ${unknown.join("; ")}`;
  document.querySelector("#connections tbody").replaceChildren(...list.map((c) => row([
    text(c.node), text(c.name), text(c.client_properties.connection_name ?? ""), text(c.client_properties.product ?? ""),
    text(c.user), count(c.publishers), count(c.subscriptions),
  ])));
}

async function refresh() {
  try {
    const [status, list, connections] = await Promise.all([
      ask("/api/v1/status"), ask("/api/v1/streams"), ask("/api/v1/connections"),
    ]);
    streams = list;
    showNode(status);
    showStreams();
    showConnections(connections);
    await showDetail();
  } catch (err) {
    showHealth(false, `no answer: ${err.message}`);
  }
  setTimeout(refresh, refreshMs);
}

for (const th of document.querySelectorAll("#streams th")) {
  th.querySelector("button").addEventListener("click", () => {
    sort.down = sort.key === th.dataset.key && !sort.down;
    sort.key = th.dataset.key;
    for (const other of document.querySelectorAll("#streams th")) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
    showStreams();
  });
}
byId("filter").addEventListener("input", showStreams);
byId("detail-close").addEventListener("click", close);
refresh();
