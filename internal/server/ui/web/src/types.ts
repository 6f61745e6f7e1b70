// The shapes of the answers that the page reads, as far as it reads them; api/openapi.yaml has all.
import type { WorkerID } from "./format";

export interface Rank {
  worker_id: WorkerID;
  dp_rank: number;
}

export type State = "ready" | "draining" | "overloaded" | "stalled" | "silent" | "incomplete";

export interface Row extends Rank {
  scope: number;
  source: string;
  state: State;
  reason?: string;
  causes?: string[];
  urgency?: number;
  stream?: "live" | "replaying" | "stale" | "connecting";
  lag?: number;
  lost?: number;
  requests?: number;
  active_blocks?: number;
  prefill_tokens?: number;
  cached_blocks?: number;
  total_blocks?: number;
  max_batched_tokens?: number;
  hit_rate?: number;
  reported?: {
    source: string;
    stale?: boolean;
    last?: string; // when it came, if it is stale
    running?: number;
    waiting?: number;
    kv_blocks_used?: number;
    kv_blocks_total?: number;
  };
  foreign?: { requests: number; prefill_tokens: number; blocks: number };
  drain?: { deadline?: string };
}

export interface Scope extends Totals {
  scope: number;
  model_name: string;
  routing_group: string;
  block_size?: number;
  hit_rate?: number;
  unique_blocks?: number;
}

export interface Totals {
  workers: number;
  ranks: number;
  states: Partial<Record<State, number>>;
  running: number;
  waiting: number;
  queued: number;
  active_blocks: number;
  total_blocks: number;
  prefill_tokens: number;
  requests: number;
  selections: number;
  refused: number;
  prompt_blocks: number;
  cached_blocks: number;
}

export interface FleetAnswer {
  version: string;
  full: boolean;
  time: string;
  interval_seconds: number;
  roles: string[];
  totals: Totals;
  scopes: Scope[];
  removed_scopes?: number[];
  rows: Row[];
  removed?: { worker_id: WorkerID; dp_rank: number; scope: number }[];
  truncated: boolean;
}

export interface Candidate extends Rank {
  cost: number;
  unit: string;
  terms: { wait: number; prefill: number; delay: number; decode: number; answer: number; taint: number };
  cached_tokens: { device: number; host: number; disk: number };
  uncached_tokens: number;
  active_requests: number;
  predicted_wait_seconds: number;
  predicted_prefill_seconds: number;
  predicted_delay_seconds: number;
  speed_factor: number;
  source: string;
}

export interface Target {
  predictable: boolean;
  why_not?: string;
  holding?: number;
  predicted_ttft_seconds?: number;
  within_seconds?: number;
  margin?: number;
  probe?: boolean;
  would_refuse?: boolean;
}

export interface Explanation {
  model_name: string;
  routing_group: string;
  policy: string;
  policy_type?: string;
  decided_by: string;
  isl_tokens: number;
  block_size: number;
  temperature: number;
  chosen: Rank | null;
  warmup?: boolean;
  refusal?: string;
  /** The session of the request, the one that has started it, where they were, and why the request went elsewhere. */
  session?: string;
  group?: string;
  home?: Rank;
  moved_because?: string;
  /** What the time by which the request wants its first token has done to the choice. */
  target?: Target;
  candidates: Candidate[];
  excluded: (Rank & { reason: string })[];
  shadows: (Rank & { policy: string; same: boolean; cost_foregone: number; ttft_foregone_seconds: number })[];
}

export interface Decision extends Explanation {
  time: string;
  selection_id?: string;
  reservation_id?: string;
  reserved: boolean;
  cached_blocks: number;
  cached_blocks_foregone: number;
  predicted_ttft_seconds: number;
  outcome: { ttft_seconds: number | null; freed_after_seconds: number | null; state: string };
}

/** A series of /history; null is not known. */
export type Points = (number | null)[];

export interface History {
  interval_seconds: number;
  end: string;
  series: {
    model_name: string;
    routing_group: string;
    worker_id?: WorkerID;
    dp_rank?: number;
    requests?: Points;
    queued?: Points;
    active_blocks?: Points;
    prefill_tokens?: Points;
    selections?: Points;
    refused?: Points;
    hit_rate?: Points;
    ttft_seconds?: Points;
    predicted_ttft_seconds?: Points;
    device_blocks?: Points;
    host_blocks?: Points;
    disk_blocks?: Points;
    external_blocks?: Points;
    lag?: Points;
  }[];
  truncated: boolean;
}

export interface PrefixNode {
  id: number;
  parent: number | null;
  depth: number;
  blocks: number;
  holders: number;
  held: number;
  subtree_blocks: number;
  subtree_held: number;
  tiers: Partial<Record<"device" | "host_pinned" | "disk" | "external", number>>;
  ranks: Rank[];
  block_hash?: WorkerID; // of its first block
  lora_name?: string;
  salted?: boolean;
  hottest?: number;
}

export interface Prefixes {
  model_name: string;
  routing_group: string;
  block_size?: number;
  unique_blocks: number;
  held_blocks: number;
  nodes: PrefixNode[];
  walked: number;
  truncated: boolean;
  time: string;
}

export interface Finding {
  check: string;
  severity: "error" | "warning" | "note";
  sentence: string;
  remedy: string;
  runbook?: string;
  model_name?: string;
  routing_group?: string;
  worker_id?: WorkerID;
  dp_rank?: number;
  peer?: string;
  count?: number;
}

export interface Doctor {
  time: string;
  healthy: boolean;
  findings: Finding[];
  checks: { check: string; title: string; result: "ok" | "finding" | "not_applicable" }[];
  truncated: boolean;
}

export interface Load {
  requests: number;
  blocks: number;
  prefill_tokens: number;
}

export interface Replicas {
  enabled: boolean;
  process?: string;
  settings_version?: number; // of those that the fleet shares
  stats?: {
    sequence: number; // of the last message sent
    lost: number;
    late: number;
    duplicates: number;
    snapshots: number;
    snapshots_failed: number;
    send_queue: number;
    receive_queue: number;
  };
  peers: {
    endpoint: string;
    connected: boolean;
    processes: {
      process: string;
      url?: string;
      absent: boolean;
      snapshot_wanted: boolean;
      error?: string; // why it could not be read; what follows is then old or left out
      read?: string; // when it was
      version?: string;
      clock_ahead_seconds?: number;
      clocks_agree?: boolean;
      policies_agree?: boolean;
      thresholds_differ?: string[]; // of these models
      loads?: { model_name: string; routing_group: string; agree: boolean; own?: Load; peer?: Load }[];
    }[];
  }[];
}

export interface Thresholds {
  model: string;
  active_decode_blocks_threshold?: number | null;
  active_prefill_tokens_threshold?: number | null;
  active_prefill_tokens_threshold_frac?: number | null;
}

export interface TokenizedPrompt {
  model_name: string;
  routing_group: string;
  lora_name: string | null;
  cache_salt: string | null;
  token_ids: number[];
}

/** Who uses the engines, where tenants take turns. */
export interface Fairness {
  consumers: Consumer[];
  total: number;
  classes: FairClass[];
}

export interface Consumer {
  model_name: string;
  routing_group: string;
  policy_class: string;
  tenant: string;
  program?: string;
  engine_seconds: number;
  share: number;
  weight: number;
  running: number;
  queued: number;
  attained: number;
  missed: number;
  refused: number;
}

export interface FairClass {
  model_name: string;
  routing_group: string;
  policy_class: string;
  by: "tenant" | "program";
  active_tenants: number;
  active_programs: number;
  jain_tenants: number;
  jain_programs: number;
}

/** The policy of a scope; what it does not say here is not shown. */
export interface ScopePolicy {
  model_name: string;
  routing_group: string;
  learned: null | {
    calibration: { samples: number; q50: number; q90: number; held: number | null; deciles: { predicted_seconds: number; observed_seconds: number }[] };
  };
}
