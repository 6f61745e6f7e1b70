import { h, Fragment, type ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";
import { call, usePoll } from "../api";
import { TimeChart } from "../chart";
import { fleet, found, mayOperate, minutes, names, samples, sum, type Fleet } from "../fleet";
import { clock, count, decimal, percent, plural, rankShort, type WorkerID } from "../format";
import { Bar, Choice, Confirm, Dialog, Empty, Fault, NoFleet, Spacer, Spark, StateMark, useNarrow, useVisible } from "../parts";
import { address, change, useRoute } from "../route";
import { useStore } from "../store";
import type { Finding, History, Points, Row, Scope, State, Totals } from "../types";
import { Consumers } from "./consumers";
import { ThresholdsDialog } from "./thresholds";

void Fragment;

const states: State[] = ["silent", "stalled", "incomplete", "overloaded", "draining", "ready"];

/** How urgent a line is, as the service judges its rank. What the doctor has found comes right after what takes a rank out of service. */
function urgency(r: Row & { finding?: Finding }): number {
  const own = r.urgency ?? 0;
  return r.finding && own < 7 ? 6 + own / 10 : own;
}

/** What the doctor has found about workers, by worker and rank, without a rank if it is about the worker, and by worker for the sum of its ranks. */
function byWorker(findings: Finding[]): Map<string, Finding> {
  const of = new Map<string, Finding>();
  for (const f of findings) {
    if (f.worker_id === undefined) continue;
    for (const key of [`${f.worker_id}`, `${f.worker_id}/${f.dp_rank ?? ""}`]) if (of.get(key)?.severity !== "error") of.set(key, f);
  }
  return of;
}

const load = (r: Row) => Math.max(share(r.active_blocks, r.total_blocks) ?? 0, share(r.prefill_tokens, r.max_batched_tokens) ?? 0);

function share(part: number | undefined, whole: number | undefined): number | undefined {
  return whole ? (part ?? 0) / whole : undefined;
}

/** The columns by which rows can be sorted: what comes first is worth a look. */
const orders: Record<string, { title: string; less: (a: Line, b: Line) => number }> = {
  trouble: { title: "State", less: (a, b) => urgency(b) - urgency(a) || load(b) - load(a) },
  rank: { title: "Worker · rank", less: () => 0 },
  requests: { title: "Requests", less: (a, b) => (b.requests ?? 0) - (a.requests ?? 0) },
  blocks: { title: "KV blocks", less: (a, b) => (share(b.active_blocks, b.total_blocks) ?? 0) - (share(a.active_blocks, a.total_blocks) ?? 0) || (b.active_blocks ?? 0) - (a.active_blocks ?? 0) },
  prefill: { title: "Prefill", less: (a, b) => (b.prefill_tokens ?? 0) - (a.prefill_tokens ?? 0) },
  cached: { title: "Cached", less: (a, b) => (b.cached_blocks ?? 0) - (a.cached_blocks ?? 0) },
  hits: { title: "Hit rate", less: (a, b) => (a.hit_rate ?? 2) - (b.hit_rate ?? 2) },
  lag: { title: "Events", less: (a, b) => (b.lag ?? 0) - (a.lag ?? 0) || (b.lost ?? 0) - (a.lost ?? 0) },
};

const compareID = (a: WorkerID, b: WorkerID) =>
  typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
const byName = (a: Row, b: Row) => a.scope - b.scope || compareID(a.worker_id, b.worker_id) || a.dp_rank - b.dp_rank;

/** A row of the table: a rank, or the sum of a worker's ranks. */
interface Line extends Row {
  ranks: number;
  finding?: Finding; // of the doctor
}

function fold(rows: Row[]): Line[] {
  const workers = new Map<string, Line>();
  const weights = new Map<string, number>();
  for (const r of rows) {
    const key = r.scope + "/" + r.worker_id;
    const sum = workers.get(key);
    if (!sum) {
      workers.set(key, { ...r, reported: r.reported && { ...r.reported }, ranks: 1 });
      weights.set(key, r.hit_rate === undefined ? 0 : 1);
      continue;
    }
    sum.ranks++;
    if (urgency(r) > urgency(sum)) Object.assign(sum, { state: r.state, causes: r.causes, urgency: r.urgency, reason: r.reason && `rank ${r.dp_rank}: ${r.reason}`, stream: r.stream });
    for (const m of ["requests", "active_blocks", "prefill_tokens", "cached_blocks", "total_blocks", "max_batched_tokens", "lag", "lost"] as const) {
      if (r[m] !== undefined) sum[m] = (sum[m] ?? 0) + r[m];
    }
    if (r.reported && sum.reported) {
      for (const m of ["running", "waiting", "kv_blocks_used", "kv_blocks_total"] as const) {
        if (r.reported[m] !== undefined) sum.reported[m] = (sum.reported[m] ?? 0) + r.reported[m];
      }
    }
    if (r.foreign) {
      const { requests, prefill_tokens, blocks } = sum.foreign ?? { requests: 0, prefill_tokens: 0, blocks: 0 };
      sum.foreign = { requests: requests + r.foreign.requests, prefill_tokens: prefill_tokens + r.foreign.prefill_tokens, blocks: blocks + r.foreign.blocks };
    }
    if (r.hit_rate !== undefined) {
      const n = weights.get(key) ?? 0;
      sum.hit_rate = ((sum.hit_rate ?? 0) * n + r.hit_rate) / (n + 1);
      weights.set(key, n + 1);
    }
  }
  return [...workers.values()];
}

export function FleetView() {
  const all = useStore(fleet);
  const { query } = useRoute();
  const findings = useStore(found);
  const [thresholds, setThresholds] = useState(false);
  const model = query.get("model") ?? "", group = query.get("group") ?? "", text = query.get("q") ?? "";
  const state = query.get("state") ?? "", sort = Object.hasOwn(orders, query.get("sort") ?? "") ? query.get("sort")! : "trouble", folded = query.get("fold") === "1";
  const lines = useMemo(() => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    let kept = all.rows.filter((r) => {
      const s = all.scopes.get(r.scope);
      if (model && s?.model_name !== model || group && s?.routing_group !== group || state && r.state !== state) return false;
      if (words.length === 0) return true;
      const line = `worker ${r.worker_id} rank ${r.dp_rank} ${s?.model_name} ${s?.routing_group} ${r.state} ${r.reason ?? ""} ${r.stream ?? ""} ${r.source}`.toLowerCase();
      return words.every((w) => line.includes(w));
    }) as Line[];
    if (folded) kept = fold(kept);
    const of = byWorker(findings);
    if (of.size > 0) {
      kept = kept.map((r) => {
        const finding = folded ? of.get(`${r.worker_id}`) : (of.get(`${r.worker_id}/${r.dp_rank}`) ?? of.get(`${r.worker_id}/`));
        return finding ? { ...r, finding } : r;
      });
    }
    const less = orders[sort]!.less;
    return kept.sort((a, b) => less(a, b) || byName(a, b));
  }, [all, model, group, state, text, sort, folded, findings]);

  const t = all.totals;
  if (!t) return <><h1 class="hidden">Fleet</h1><NoFleet of={all} what="the fleet" /></>;
  const { models, groups } = names(all);
  const filtered = model || group || state || text;
  const inView = [...all.scopes.values()].filter((s) => (!model || s.model_name === model) && (!group || s.routing_group === group));
  const shown = model || group ? sum(inView) : t;
  return (
    <>
      <h1 class="hidden">Fleet</h1>
      {all.failure?.status === 403 && <Fault failure={all.failure} what="the fleet" />}
      <TotalsOf t={shown} scopes={model || group ? inView : null} />
      {all.scopes.size > 1 && <Models scopes={[...all.scopes.values()]} model={model} group={group} />}
      <Consumers model={model} group={group} />
      <div class="filters" role="search">
        <label class="field grow">
          <span class="hidden">Find</span>
          <input type="search" placeholder="Worker, rank, model, reason …" value={text} onInput={(e) => change({ q: e.currentTarget.value })} />
        </label>
        {models.length > 1 && <Choice label="Model" value={model} all="all models" names={models} pick={(v) => change({ model: v }, true)} />}
        {groups.length > 1 && <Choice label="Tenant" value={group} all="all tenants" names={groups} pick={(v) => change({ group: v }, true)} />}
        <div class="chips" role="group" aria-label="State">
          {states.filter((s) => shown.states[s] || s === state).map((s) => (
            <button type="button" key={s} class="chip" aria-pressed={s === state} onClick={() => change({ state: s === state ? null : s }, true)}>
              <StateMark state={s} /> <b>{count(shown.states[s] ?? 0)}</b>
            </button>
          ))}
        </div>
        <div class="ends">
          <label class="check"><input type="checkbox" checked={folded} onChange={(e) => change({ fold: e.currentTarget.checked ? "1" : null }, true)} /> One line a worker</label>
          <button type="button" onClick={() => setThresholds(true)}>Thresholds …</button>
        </div>
      </div>
      {all.truncated && <div class="notice">There are more ranks than one answer has room for. Narrow the view by model or tenant.</div>}
      {lines.length > 0 ? <Table lines={lines} all={all} sort={sort} folded={folded} /> : filtered ? (
        <Empty title="No rank matches.">
          <button type="button" onClick={() => change({ model: null, group: null, state: null, q: null }, true)}>Show all {count(t.ranks)} ranks</button>
        </Empty>
      ) : (
        <Empty title="No workers yet.">Register one with <code>POST /workers</code>, <code>selectctl workers add</code>, a workers file or <code>--engines</code>.</Empty>
      )}
      {query.get("worker") && <RankPanel worker={query.get("worker")!} rank={query.get("rank")} all={all} />}
      {thresholds && <ThresholdsDialog may={mayOperate(all)} close={() => setThresholds(false)} />}
    </>
  );
}

/** The totals of everything, or of some scopes. Several scopes together have no past. */
function TotalsOf(props: { t: Totals; scopes: Scope[] | null }) {
  const { t, scopes } = props;
  const past = useStore(minutes);
  const one = scopes?.length === 1 ? past.scopes.get(scopes[0]!.scope) : undefined;
  const m = scopes ? (one ?? { requests: undefined, waiting: undefined, rate: undefined, hit: undefined, blocks: undefined }) : past.all;
  const last = (list?: (number | null)[]) => list?.at(-1) ?? null;
  const recent = (m.hit ?? []).filter((v): v is number => v !== null);
  const rate = recent.length ? recent.reduce((a, b) => a + b, 0) / recent.length : null;
  const bad = t.ranks - (t.states.ready ?? 0);
  const tile = (title: string, value: string, unit: string, values?: (number | null)[]) => (
    <div class="tile">
      <dt>{title}</dt>
      <dd><b>{value}</b> <span>{unit}</span></dd>
      {values && <dd><Spark values={values} size={samples} label={`${title} over the last minute`} /></dd>}
    </div>
  );
  return (
    <dl class="totals">
      {tile("Ranks", count(t.ranks), `of ${plural(t.workers, "worker")}` + (bad ? `, ${count(bad)} not ready` : ", all ready"))}
      {tile("Requests", count(t.requests), "booked", m.requests)}
      {tile("Waiting", count(t.queued + t.waiting), `${count(t.queued)} here, ${count(t.waiting)} in engines`, m.waiting)}
      {tile("Selections", decimal(last(m.rate)), "per second", m.rate)}
      {tile("Hit rate", percent(rate), "of prompt blocks, last minute", m.hit)}
      {tile("KV blocks", count(t.active_blocks), t.total_blocks ? `of ${count(t.total_blocks)} booked (${percent(t.active_blocks / t.total_blocks)})` : "booked", m.blocks)}
    </dl>
  );
}

/** The models, those with ranks in trouble first and then those with the lowest hit rates. One opens its ranks. */
function Models(props: { scopes: Scope[]; model: string; group: string }) {
  const { model, group } = props;
  const [all, setAll] = useState(false);
  const few = 6;
  const bad = (s: Scope) => s.ranks - (s.states.ready ?? 0);
  const sorted = [...props.scopes].sort((a, b) => Math.sign(bad(b)) - Math.sign(bad(a)) || (a.hit_rate ?? 2) - (b.hit_rate ?? 2) || a.model_name.localeCompare(b.model_name) || a.scope - b.scope);
  const chosen = (s: Scope) => s.model_name === model && s.routing_group === group;
  const shown = sorted.filter((s, i) => all || i < few || chosen(s));
  return (
    <section aria-labelledby="models">
      <h2 id="models" class="hidden">Models</h2>
      <table class="cards models" role="table">
        <thead role="rowgroup"><tr role="row">
          <th role="columnheader" scope="col">Model</th><th role="columnheader" scope="col" class="num">Ranks</th><th role="columnheader" scope="col">State</th>
          <th role="columnheader" scope="col" class="num">Requests</th><th role="columnheader" scope="col" class="num">Waiting</th><th role="columnheader" scope="col" class="num">KV blocks</th><th role="columnheader" scope="col" class="num">Hit rate</th>
        </tr></thead>
        <tbody role="rowgroup">
          {shown.map((s) => {
            const pick = () => change(chosen(s) ? { model: null, group: null } : { model: s.model_name, group: s.routing_group }, true);
            return (
              <tr role="row" key={s.scope} class={"row" + (chosen(s) ? " chosen" : "")} onClick={pick}>
                <th role="rowheader" scope="row"><button type="button" class="link" aria-pressed={chosen(s)} onClick={(e: MouseEvent) => { e.stopPropagation(); pick(); }}>{s.model_name}</button>{s.routing_group !== "default" && <span class="dim"> / {s.routing_group}</span>}</th>
                <td role="cell" class="num"><span class="label">Ranks</span> {count(s.ranks)}</td>
                <td role="cell">{states.filter((x) => x !== "ready" && s.states[x]).map((x) => <span key={x} class="states"><StateMark state={x} /> {count(s.states[x])}</span>)}{bad(s) === 0 && <StateMark state="ready" />}</td>
                <td role="cell" class="num"><span class="label">Requests</span> {count(s.requests)}</td>
                <td role="cell" class="num"><span class="label">Waiting</span> {count(s.queued + s.waiting)}</td>
                <td role="cell" class="num"><span class="label">KV</span> {s.total_blocks ? percent(s.active_blocks / s.total_blocks) : count(s.active_blocks)}</td>
                <td role="cell" class="num"><span class="label">Hits</span> {percent(s.hit_rate)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
      {sorted.length > shown.length && <button type="button" onClick={() => setAll(true)}>Show all {count(sorted.length)} models</button>}
    </section>
  );
}

function Table(props: { lines: Line[]; all: Fleet; sort: string; folded: boolean }) {
  const { lines, all, sort, folded } = props;
  const narrow = useNarrow();
  const height = narrow ? 92 : 38;
  const { holder, first, last } = useVisible(lines.length, height);
  const single = all.scopes.size <= 1;
  return (
    <table class="fleet" aria-rowcount={lines.length + 1} role="table">
      <caption class="hidden">{folded ? "Workers" : "Ranks"}, the first {orders[sort]!.title}</caption>
      <thead role="rowgroup">
        <tr role="row" aria-rowindex={1}>
          {Object.entries(orders).map(([name, order]) => (
            <th key={name} role="columnheader" scope="col" class={"c-" + name} aria-sort={name === sort ? "descending" : undefined}>
              <button type="button" onClick={() => change({ sort: name === "trouble" ? null : name }, true)}>
                {name === "rank" && folded ? "Worker" : order.title}{name === sort && <span aria-hidden="true"> ↓</span>}
              </button>
            </th>
          ))}
        </tr>
      </thead>
      <tbody ref={holder} role="rowgroup">
        <Spacer height={first * height} />
        {lines.slice(first, last).map((r, i) => <FleetRow key={`${r.scope}/${r.worker_id}/${r.dp_rank}`} r={r} all={all} index={first + i + 2} single={single} folded={folded} />)}
        <Spacer height={(lines.length - last) * height} />
      </tbody>
    </table>
  );
}

function FleetRow(props: { r: Line; all: Fleet; index: number; single: boolean; folded: boolean }) {
  const { r, all, folded } = props;
  const s = all.scopes.get(r.scope);
  const told = r.reported && !r.reported.stale ? r.reported : undefined;
  const blocks = share(r.active_blocks, r.total_blocks), toldBlocks = share(told?.kv_blocks_used, told?.kv_blocks_total);
  const prefill = share(r.prefill_tokens, r.max_batched_tokens);
  const open = () => change({ worker: String(r.worker_id), rank: folded ? null : String(r.dp_rank) }, true);
  const stream = r.stream === "stale" ? "stale" : r.stream && r.stream !== "live" ? r.stream : r.lag ? count(r.lag) + " behind" : r.lost ? count(r.lost) + " lost" : r.stream === "live" ? "live" : "–";
  return (
    <tr role="row" aria-rowindex={props.index} class={"row is-" + r.state} onClick={open}>
      <td role="cell" class="c-trouble"><div class="status"><StateMark state={r.state} />
        {r.finding && <a class={"badge " + (r.finding.severity === "error" ? "bad" : "warn")} href={address("doctor")} title={r.finding.sentence} onClick={(e: MouseEvent) => e.stopPropagation()}>{r.finding.severity}</a>}
        {r.reason && <span class="reason" title={r.reason}>{r.reason}</span>}</div></td>
      <th role="rowheader" scope="row" class="c-rank">
        <button type="button" class="link" onClick={(e: MouseEvent) => { e.stopPropagation(); open(); }}>
          {folded ? r.worker_id : rankShort(r)}
        </button>
        {folded && r.ranks > 1 && <span class="dim"> {r.ranks} ranks</span>}
        {!props.single && <span class="dim scope">{s?.model_name}{s && s.routing_group !== "default" ? " / " + s.routing_group : ""}</span>}
      </th>
      <td role="cell" class="c-requests num"><span class="label">Requests</span> {count(r.requests ?? 0)}
        {told?.running !== undefined && <span class="dim" title={`The engine says: ${told.running} running, ${told.waiting ?? "?"} waiting`}> / {count(told.running)}{told.waiting ? "+" + count(told.waiting) : ""}</span>}
      </td>
      <td role="cell" class="c-blocks"><span class="label">KV</span>
        <Bar parts={[{ from: 0, to: blocks ?? 0, kind: (blocks ?? 0) > 0.9 ? "full" : "booked" }]} marks={toldBlocks === undefined ? [] : [toldBlocks]} />
        <span class="num">{count(r.active_blocks ?? 0)}{blocks !== undefined && <span class="dim"> {percent(blocks)}</span>}</span>
      </td>
      <td role="cell" class="c-prefill"><span class="label">Prefill</span>
        <Bar parts={[{ from: 0, to: prefill ?? 0, kind: "prefill" }]} />
        <span class="num">{count(r.prefill_tokens ?? 0)}</span>
      </td>
      <td role="cell" class="c-cached num"><span class="label">Cached</span> {count(r.cached_blocks)}</td>
      <td role="cell" class="c-hits num"><span class="label">Hits</span> {percent(r.hit_rate)}</td>
      <td role="cell" class={"c-lag " + (r.stream === "stale" || r.lost ? "warn" : "")}><span class="label">Events</span> {stream}</td>
    </tr>
  );
}

/** The sum of some series; unknown where all of them are. */
function total(series: Points[]): Points {
  const sum: Points = [];
  for (const values of series) values.forEach((v, i) => { sum[i] = v === null ? (sum[i] ?? null) : (sum[i] ?? 0) + v; });
  return sum;
}

/** What is known of one rank or, without one, of a worker as a whole, its last hour, and what an operator may do with it. */
function RankPanel(props: { worker: string; rank: string | null; all: Fleet }) {
  const { worker, rank, all } = props;
  const [asked, setAsked] = useState<"drain" | "undrain" | "delete" | null>(null);
  const history = usePoll<History>(`/history?worker_id=${encodeURIComponent(worker)}`, 30000).data;
  const rows = all.rows.filter((r) => String(r.worker_id) === worker);
  const r = rank === null ? fold(rows)[0] : rows.find((x) => String(x.dp_rank) === rank);
  const close = () => change({ worker: null, rank: null }, true);
  const title = rank === null ? `Worker ${worker}` : `Worker ${worker}, rank ${rank}`;
  const charts = useMemo(() => {
    const series = history?.series.filter((s) => rank === null || String(s.dp_rank) === rank) ?? [];
    return series.length > 0 && {
      requests: [{ name: "requests", colour: "accent", values: total(series.map((s) => s.requests ?? [])) }],
      blocks: [{ name: "cached", colour: "tier-device", values: total(series.map((s) => s.device_blocks ?? [])), fill: true }],
    };
  }, [history, rank]);
  if (!r) {
    return <Dialog title={title} close={close}><p>There is no such {rank === null ? "worker" : "rank"} (any more).</p></Dialog>;
  }
  const s = all.scopes.get(r.scope);
  const requests = rows.reduce((n, x) => n + (x.requests ?? 0), 0), cached = rows.reduce((n, x) => n + (x.cached_blocks ?? 0), 0);
  const facts: [string, ComponentChildren][] = [
    ["State", <><StateMark state={r.state} />{r.reason && " – " + r.reason}</>],
    ["Model", `${s?.model_name}${s?.routing_group !== "default" ? ", tenant " + s?.routing_group : ""}`],
    ["Comes from", { api: "the API", file: "the workers file or --engines", kubernetes: "Kubernetes", slots: "the slot tracker" }[r.source] ?? r.source],
    ["Requests", `${count(r.requests ?? 0)} booked`],
    ["KV blocks", `${count(r.active_blocks ?? 0)} booked` + (r.total_blocks ? ` of ${count(r.total_blocks)}` : "")],
    ["Prefill", `${count(r.prefill_tokens ?? 0)} tokens booked` + (r.max_batched_tokens ? `, ${count(r.max_batched_tokens)} a batch` : "")],
    ["Cached", r.cached_blocks === undefined ? "–" : `${count(r.cached_blocks)} blocks on the device`],
    ["Hit rate", percent(r.hit_rate) + (r.hit_rate === undefined ? "" : " of the prompts it got in the last 30 s")],
    ["Events", r.stream ? `${r.stream}, ${count(r.lag ?? 0)} messages behind, ${count(r.lost ?? 0)} lost` : "none"],
    ["The engine says", r.reported ? `${count(r.reported.running)} running, ${count(r.reported.waiting)} waiting, ${count(r.reported.kv_blocks_used)} of ${count(r.reported.kv_blocks_total)} blocks used; ` +
      { push: "its load stream", scrape: "its metrics", told: "PUT /workers/{id}/load" }[r.reported.source]  + (r.reported.stale ? `; too old to count${r.reported.last ? ", of " + clock(r.reported.last) : ""}` : "") : "nothing of its load"],
    ["Beside our bookings", r.foreign ? `${count(r.foreign.requests)} requests, ${count(r.foreign.blocks)} blocks, ${count(r.foreign.prefill_tokens)} prefill tokens` : "nothing"],
  ];
  const done = async (method: string, path: string, body?: unknown) => { await call(method, path, body); };
  return (
    <Dialog title={title} close={close} kind="panel">
      <dl class="facts">{facts.map(([name, value]) => <><dt>{name}</dt><dd>{value}</dd></>)}</dl>
      {history && charts && (
        <>
          <h3>Requests, the last hour</h3>
          <TimeChart end={history.end} interval={history.interval_seconds} lines={charts.requests} format={count} height={110} text={`Requests of ${title} over the last hour`} />
          <h3>Blocks that it holds</h3>
          <TimeChart end={history.end} interval={history.interval_seconds} lines={charts.blocks} format={count} height={110} text={`Blocks of ${title} over the last hour`} />
        </>
      )}
      {mayOperate(all) && r.source !== "slots" && (
        <div class="buttons">
          {r.drain ? <button type="button" onClick={() => setAsked("undrain")}>Take the drain back …</button> : <button type="button" onClick={() => setAsked("drain")}>Drain …</button>}
          <button type="button" class="danger" onClick={() => setAsked("delete")}>Delete …</button>
        </div>
      )}
      {asked === "drain" && (
        <Confirm title={`Drain worker ${worker}?`} verb={`Drain worker ${worker}`} close={() => setAsked(null)} act={() => done("POST", `/workers/${worker}/drain`, {})}>
          <p>No new request goes to {plural(rows.length, "rank")} of it. The {plural(requests, "request")} that it has go on.{r.source === "api" && " Once it has none left, the worker is removed."}</p>
        </Confirm>
      )}
      {asked === "undrain" && (
        <Confirm title={`Give worker ${worker} work again?`} verb="Take the drain back" close={() => setAsked(null)} act={() => done("DELETE", `/workers/${worker}/drain`)}>
          <p>New requests may go to it again.{r.drain?.deadline && ` It would otherwise be removed at ${clock(r.drain.deadline)}.`}</p>
        </Confirm>
      )}
      {asked === "delete" && (
        <Confirm title={`Delete worker ${worker}?`} verb={`Delete worker ${worker}`} danger close={() => setAsked(null)} act={() => done("DELETE", `/workers/${worker}`)}>
          <p>{plural(rows.length, "rank")} with {plural(cached, "cached block")} and {plural(requests, "reservation")} are forgotten at once: requests that run there are no longer counted. To let them end first, drain it.</p>
          {r.source !== "api" && <p>It comes from {r.source}, which may bring it back or refuse this.</p>}
        </Confirm>
      )}
    </Dialog>
  );
}

