import { call, Failure, poll, token } from "./api";
import { Store } from "./store";
import type { Finding, FleetAnswer, Row, Scope, State, Totals } from "./types";

/** What is known of the fleet. */
export interface Fleet {
  rows: Row[];
  scopes: Map<number, Scope>;
  totals: Totals | null;
  roles: string[]; // of this caller
  truncated: boolean;
  at: number; // when it was read
  failure: Failure | null; // why the last reading failed
}

/** Samples of the last minute, the newest last; null: unknown. */
export interface Minute {
  requests: (number | null)[];
  waiting: (number | null)[];
  rate: (number | null)[]; // selections per second
  hit: (number | null)[];
  blocks: (number | null)[];
}

export const samples = 60;

const nothing: Fleet = { rows: [], scopes: new Map(), totals: null, roles: [], truncated: false, at: 0, failure: null };
export const fleet = new Store<Fleet>(nothing);
/** The last minute of the whole fleet, and of the first scopes by their numbers. */
export const minutes = new Store<{ all: Minute; scopes: Map<number, Minute> }>({ all: noMinute(), scopes: new Map() });
const maxMinutes = 64;
/** What the doctor has found, as the head of the page last read it. */
export const found = new Store<Finding[]>([]);

function noMinute(): Minute {
  return { requests: [], waiting: [], rate: [], hit: [], blocks: [] };
}

let version = "";
let life = ""; // of the service: the numbers of scopes belong to one
let narrowed = ""; // the query of model and tenant that is read alone
let tooLarge = false; // the whole fleet has more ranks than one answer
let room = 0; // how many ranks one answer has
const known = new Map<string, Row>();
const keyOf = (r: { scope: number; worker_id: unknown; dp_rank: number }) => `${r.scope}/${r.worker_id}/${r.dp_rank}`;

/** Takes an answer of /fleet: the whole or what has changed. */
function take(answer: FleetAnswer) {
  const now = Date.now(), of = answer.version.split("-", 1)[0]!;
  const last = of === life ? fleet.value : { ...nothing, at: fleet.value.at };
  if (of !== life) minutes.set({ all: minutes.value.all, scopes: new Map() });
  life = of;
  const scopes = answer.full && !narrowed ? new Map<number, Scope>() : new Map(last.scopes);
  if (answer.full) known.clear();
  for (const s of answer.removed_scopes ?? []) scopes.delete(s);
  for (const s of answer.scopes) scopes.set(s.scope, s);
  for (const r of answer.removed ?? []) known.delete(keyOf(r));
  for (const r of answer.rows) known.set(keyOf(r), r);
  version = answer.version;
  const truncated = answer.full ? answer.truncated : last.truncated;
  if (answer.full && truncated) room = answer.rows.length;
  else if (truncated && answer.totals.ranks <= room) version = ""; // they fit now: read those that were left out
  if (!narrowed) tooLarge = truncated;
  const totals = narrowed && last.totals ? last.totals : answer.totals;
  sample(last, totals, scopes, now);
  fleet.set({ rows: [...known.values()], scopes, totals, roles: answer.roles, truncated, at: now, failure: null });
}

/** Adds one sample to the last minute, at most once a second or so. */
function sample(last: Fleet, totals: Totals, scopes: Map<number, Scope>, now: number) {
  const took = (now - last.at) / 1000;
  if (last.totals && took < 0.5) return;
  const of = new Map<number, Minute>();
  for (const [number, s] of scopes) {
    if (of.size < maxMinutes) of.set(number, next(minutes.value.scopes.get(number) ?? noMinute(), last.scopes.get(number), s, took));
  }
  minutes.set({ all: next(minutes.value.all, last.totals ?? undefined, totals, took), scopes: of });
}

/** A minute with one more sample: of t, which was before so many seconds ago. */
function next(m: Minute, before: Totals | undefined, t: Totals, took: number): Minute {
  const fresh = before && t.selections >= before.selections && took < 10;
  const prompts = fresh ? t.prompt_blocks - before.prompt_blocks : 0;
  const add = (list: (number | null)[], v: number | null) => [...list, v].slice(-samples);
  return {
    requests: add(m.requests, t.requests),
    waiting: add(m.waiting, t.queued + t.waiting),
    rate: add(m.rate, fresh ? (t.selections - before.selections) / took : null),
    hit: add(m.hit, prompts > 0 && before ? (t.cached_blocks - before.cached_blocks) / prompts : null),
    blocks: add(m.blocks, t.active_blocks),
  };
}

/** The sum of some scopes. */
export function sum(scopes: Scope[]): Totals {
  const all: Totals = {
    workers: 0, ranks: 0, states: {}, running: 0, waiting: 0, queued: 0, active_blocks: 0, total_blocks: 0, prefill_tokens: 0, requests: 0,
    selections: 0, refused: 0, prompt_blocks: 0, cached_blocks: 0,
  };
  for (const s of scopes) {
    for (const name of Object.keys(all) as (keyof Totals)[]) if (name !== "states") all[name] += s[name];
    for (const [state, n] of Object.entries(s.states) as [State, number][]) all.states[state] = (all.states[state] ?? 0) + n;
  }
  return all;
}

/**
 * Reads the fleet every so many milliseconds until the returned function is called. A fleet that is too large
 * for one answer is read only as far as the model and the tenant say, if they do.
 */
export function followFleet(every: number, model: string, group: string): () => void {
  return poll(async (signal) => {
    const query = new URLSearchParams(), held = token.value;
    if (tooLarge && model) query.set("model_name", model);
    if (tooLarge && group) query.set("routing_group", group);
    if (query.toString() !== narrowed) {
      narrowed = query.toString();
      version = "";
    }
    if (version) query.set("since", version);
    try {
      const answer = await call<FleetAnswer>("GET", "/fleet" + (query.size ? "?" + query : ""), undefined, signal);
      if (!signal.aborted && token.value === held) take(answer);
    } catch (e) {
      if (e instanceof Failure && !signal.aborted && fleet.value.failure?.message !== e.message) fleet.set({ ...fleet.value, failure: e });
      throw e;
    }
  }, every);
}

// Another caller may see another fleet.
token.follow(() => {
  version = narrowed = life = "";
  tooLarge = false;
  known.clear();
  fleet.set(nothing);
  found.set([]);
  minutes.set({ all: noMinute(), scopes: new Map() });
});

/** Whether this caller may change something. */
export const mayOperate = (f: Fleet) => f.roles.includes("operate");

/** The names of models and routing groups. */
export function names(f: Fleet): { models: string[]; groups: string[] } {
  const models = new Set<string>(), groups = new Set<string>();
  for (const s of f.scopes.values()) {
    models.add(s.model_name);
    groups.add(s.routing_group);
  }
  return { models: [...models].sort(), groups: [...groups].sort() };
}
