// The start page asks the API every two seconds and shows what it says. All
// text goes in as text, never as markup: names are the clients' own.

const refreshMs = 2000;
const number = new Intl.NumberFormat();
const sort = { key: "name", down: false };
let streams = [];

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
    if (cell.title) td.title = cell.title;
    tr.append(td);
  }
  return tr;
}

const text = (t, title) => ({ text: t, title });
const count = (n) => ({ text: number.format(n), number: true });
const size = (n) => ({ text: bytes(n), number: true, title: `${number.format(n)} B` });
const tracking = (s) => s.bytes.trailer + s.bytes.delta + s.bytes.snapshot;

function showHealth(good, words) {
  const health = byId("health");
  health.className = good ? "good" : "bad";
  health.textContent = (good ? "✓ " : "✗ ") + words;
}

function showNode(status) {
  showHealth(status.ready, status.ready ? "ready" : `not ready: ${status.reason}`);
  const facts = {
    Name: status.node, Version: status.version, "Clients connect to": status.addresses.advertised,
    "Up since": new Date(status.started).toLocaleString(), "Data directory": status.data_dir,
    "Disk free": bytes(status.disk.free_bytes) + ({ low: ", low: retention runs", alarm: ", too low: publishers are stopped" }[status.disk.level] || ""),
  };
  byId("node").replaceChildren(...Object.entries(facts).flatMap(([name, value]) => {
    const dt = document.createElement("dt"), dd = document.createElement("dd");
    dt.textContent = name;
    dd.textContent = value;
    return [dt, dd];
  }));
}

function sortValue(s) {
  if (sort.key === "user") return s.bytes.user;
  if (sort.key === "tracking") return tracking(s);
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
  document.querySelector("#streams tbody").replaceChildren(...shown.map((s) => row([
    text(s.name, `incarnation ${s.incarnation}`), text(s.vhost), count(s.messages), count(s.first_offset),
    count(s.next_offset), size(s.bytes.user), size(tracking(s)), count(s.segments), text(s.leader || "none at present"),
  ])));
}

function showConnections(list) {
  byId("connection-count").textContent = list.length;
  document.querySelector("#connections tbody").replaceChildren(...list.map((c) => row([
    text(c.name), text(c.client_properties.connection_name ?? ""), text(c.client_properties.product ?? ""),
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
refresh();
