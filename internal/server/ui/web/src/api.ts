import { useEffect, useState } from "preact/hooks";
import { Store, useStore } from "./store";

/** The service's root: the page is one step below it, whatever proxies put before both. */
const root = new URL("..", document.baseURI);

/** The dialect that the page speaks, whatever --contract says. */
const dialect = "v1.6";

/** The bearer token. It is kept in memory only and ends with the page. */
export const token = new Store<string | null>(null);

/** Whether the service asks for a token: "" no, else why. */
export const wanted = new Store<string>("");

/** Whether the service has refused a call that had no valid token. */
export const locked = new Store(false);

/** Since when the service does not answer, and why; null while it does. */
export const lost = new Store<{ since: number; why: string } | null>(null);

/** An answer that is no success; status 0 is none at all. */
export class Failure extends Error {
  constructor(readonly status: number, text: string) {
    super(text);
  }
}

/** Numbers above 2^53 would lose digits: ids that long become texts. */
function parse(text: string): unknown {
  return JSON.parse(text.replace(/("(?:worker_id|block_hash)":\s*)(-?\d{16,})/g, '$1"$2"'));
}

/** What the service says is wrong; undefined: the answer is not the service's. */
function errorOf(text: string): string | undefined {
  try {
    return (JSON.parse(text) as { error?: string }).error;
  } catch {
    return undefined; // a proxy's page
  }
}

export async function call<T>(method: string, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json" };
  const sent = token.value;
  if (sent !== null) headers.Authorization = "Bearer " + sent;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response: Response, text: string;
  try {
    response = await fetch(new URL(dialect + path, root), {
      method, headers, signal, cache: "no-store", body: body === undefined ? undefined : JSON.stringify(body),
    });
    text = await response.text();
  } catch (e) {
    if (signal?.aborted) throw e;
    lost.set(lost.value ?? { since: Date.now(), why: "it cannot be reached" });
    throw new Failure(0, "The service cannot be reached.");
  }
  const told = response.ok ? undefined : errorOf(text);
  const away = told === undefined && (response.status === 502 || response.status === 504);
  if (away) lost.set(lost.value ?? { since: Date.now(), why: "a proxy answers " + response.status });
  else if (lost.value) lost.set(null);
  if (response.ok) {
    try {
      return parse(text) as T;
    } catch {
      throw new Failure(response.status, "The answer is not JSON: is this address the service's?");
    }
  }
  const why = told ?? text.slice(0, 300);
  if (response.status === 401 && token.value === sent) {
    if (sent !== null) wanted.set("The token is not valid (any more).");
    else if (wanted.value === "") wanted.set("This service asks for a token.");
    locked.set(true);
    if (sent !== null) token.set(null); // else nothing has changed, and what others were told stays
  }
  throw new Failure(response.status, why || "status " + response.status);
}

export interface Polled<T> {
  data: T | null; // the last good answer
  failure: Failure | null; // of the last call
  at: number; // when data came
}

/**
 * Reads a path now, again every so many milliseconds, and at once after a login. It rests while the
 * page is hidden, and tries less often while the service does not answer. A null path is not read.
 * While only the limit changes, what was read stays.
 */
export function usePoll<T>(path: string | null, every: number, limit?: number): Polled<T> {
  const held = useStore(token);
  const [state, set] = useState<Polled<T> & { path: string | null; held: string | null }>({ data: null, failure: null, at: 0, path, held });
  useEffect(() => {
    if (path === null) return;
    set((old) => (old.path === path && old.held === held ? old : { data: null, failure: null, at: 0, path, held }));
    return poll(
      async (signal) => {
        try {
          const data = await call<T>("GET", limit === undefined ? path : `${path}${path.includes("?") ? "&" : "?"}limit=${limit}`, undefined, signal);
          if (!signal.aborted) set({ data, failure: null, at: Date.now(), path, held });
        } catch (e) {
          if (e instanceof Failure && !signal.aborted) set((old) => ({ ...old, failure: e, path, held }));
          throw e;
        }
      },
      every,
    );
  }, [path, every, limit, held]);
  return state.path === path && state.held === held ? state : { data: null, failure: null, at: 0 }; // what one caller saw is not for another
}

/** Calls step again and again until the returned function is called. */
export function poll(step: (signal: AbortSignal) => Promise<void>, every: number): () => void {
  const end = new AbortController();
  let timer = 0, faults = 0, resting = false;
  const run = async () => {
    if (document.hidden) {
      resting = true;
      return;
    }
    try {
      await step(end.signal);
      faults = 0;
    } catch (e) {
      if (end.signal.aborted) return;
      if (!(e instanceof Failure)) throw e;
      if (e.status === 401) return; // a login starts anew
      faults++;
    }
    if (!end.signal.aborted) timer = window.setTimeout(run, faults ? Math.min(every * 2 ** Math.min(faults, 4), Math.max(every, 5000)) : every);
  };
  const wake = () => {
    if (!document.hidden && resting) {
      resting = false;
      void run();
    }
  };
  document.addEventListener("visibilitychange", wake);
  void run();
  return () => {
    end.abort();
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", wake);
  };
}
