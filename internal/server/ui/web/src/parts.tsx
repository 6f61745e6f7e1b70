import { h, Fragment, type ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Failure, token } from "./api";
import type { Fleet } from "./fleet";
import type { State } from "./types";

void Fragment;

/** A part of a whole of an SVG bar; start and width as fractions. */
export interface Part {
  from: number;
  to: number;
  kind: string; // a class of the style
  title?: string;
}

const clamp = (x: number) => Math.min(1, Math.max(0, Number.isFinite(x) ? x : 0));

/** A bar of parts; what it shows must stand beside it or in its label. */
export function Bar(props: { parts: Part[]; marks?: number[]; label?: string; kind?: string; ticks?: number }) {
  const { parts, marks = [], label, ticks = 0 } = props;
  return (
    <svg class={"bar " + (props.kind ?? "")} viewBox="0 0 1000 10" preserveAspectRatio="none" role={label ? "img" : undefined}
      aria-label={label} aria-hidden={label ? undefined : "true"}>
      <rect class="rail" width="1000" height="10" />
      {parts.map((p) => {
        const x = clamp(p.from) * 1000;
        const width = clamp(p.to) * 1000 - x;
        return width > 0 && <rect class={p.kind} x={x} width={Math.max(width, 4)} height="10">{p.title && <title>{p.title}</title>}</rect>;
      })}
      {ticks > 1 && Array.from({ length: ticks - 1 }, (_, i) => <rect class="tick" x={((i + 1) * 1000) / ticks} width="1.5" height="10" />)}
      {marks.map((m) => <rect class="mark" x={Math.min(clamp(m) * 1000, 992)} width="8" height="10" />)}
    </svg>
  );
}

/** A line over the last samples, without axes. */
export function Spark(props: { values: (number | null)[]; size: number; label: string }) {
  const known = props.values.filter((v): v is number => v !== null);
  const top = Math.max(...known, 0), low = Math.min(...known, 0);
  const at = (v: number, i: number) => {
    const x = ((props.size - props.values.length + i) * 100) / Math.max(props.size - 1, 1);
    return `${x.toFixed(1)} ${(top === low ? 23 : 23 - ((v - low) / (top - low)) * 21).toFixed(1)}`;
  };
  let path = "", pen = "M";
  props.values.forEach((v, i) => {
    if (v === null) pen = "M";
    else {
      path += pen + at(v, i);
      pen = "L";
    }
  });
  return (
    <svg class="spark" viewBox="0 0 100 24" preserveAspectRatio="none" role="img" aria-label={props.label}>
      <path d={path} />
    </svg>
  );
}

const stateWords: Record<State, string> = {
  ready: "ready", draining: "draining", overloaded: "overloaded", stalled: "stalled", silent: "silent", incomplete: "incomplete",
};

/** A state as a shape with its word, so that it does not depend on colour. */
export function StateMark(props: { state: State; title?: string; word?: boolean }) {
  return (
    <span class={"state is-" + props.state} title={props.title}>
      <svg viewBox="0 0 12 12" aria-hidden="true">
        {props.state === "ready" && <circle cx="6" cy="6" r="4" />}
        {(props.state === "draining" || props.state === "overloaded") && <path d="M6 1.5 11 10.5H1Z" />}
        {(props.state === "stalled" || props.state === "silent") && <path d="M2 2h8v8H2Z" />}
        {props.state === "incomplete" && <circle class="hollow" cx="6" cy="6" r="3.4" />}
      </svg>
      {props.word !== false && stateWords[props.state]}
    </span>
  );
}

/** What stands where there is nothing to show yet. */
export function Loading(props: { what: string }) {
  return <p class="note" role="status">Reading {props.what} …</p>;
}

export function Empty(props: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{props.title}</p>
      {props.children && <p>{props.children}</p>}
    </div>
  );
}

/** Why a view cannot be shown. */
export function Fault(props: { failure: Failure; what: string }) {
  const { status, message } = props.failure;
  if (status === 401) return <p class="note">Sign in to see {props.what}.</p>;
  let hint = "";
  if (status === 403) hint = token.value ? "Another token may see it: sign out and in again." : "";
  if (message === "route not found") hint = "The service may be older than this page: load the page again.";
  return (
    <div class="notice bad" role="alert">
      <strong>Cannot read {props.what}.</strong> {message} {hint}
    </div>
  );
}

/** What stands where the fleet is needed and has never been read. */
export function NoFleet(props: { of: Fleet; what: string }) {
  return props.of.failure ? <Fault failure={props.of.failure} what={props.what} /> : <Loading what={props.what} />;
}

/** A modal dialog; the browser keeps the focus in it and closes it with Escape. */
export function Dialog(props: { title: string; close: () => void; children: ComponentChildren; kind?: string }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const d = dialog.current;
    if (d && !d.open) d.showModal();
  }, []);
  return (
    <dialog ref={dialog} class={props.kind} aria-labelledby="dialog-title" onClose={props.close}
      onClick={(e: MouseEvent) => e.target === dialog.current && dialog.current?.close()}>
      <div class="dialog-body">
        <header>
          <h2 id="dialog-title">{props.title}</h2>
          <button type="button" class="quiet" aria-label="Close" onClick={() => dialog.current?.close()}>✕</button>
        </header>
        {props.children}
      </div>
    </dialog>
  );
}

/** Asks before something is changed: what will happen stands in children. */
export function Confirm(props: {
  title: string; verb: string; danger?: boolean; close: () => void; act: () => Promise<unknown>; children: ComponentChildren;
}) {
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState<string | null>(null);
  const act = async () => {
    setBusy(true);
    setFailure(null);
    try {
      await props.act();
      props.close();
    } catch (e) {
      setFailure(e instanceof Error ? e.message : String(e));
      setBusy(false);
    }
  };
  return (
    <Dialog title={props.title} close={props.close} kind="confirm">
      {props.children}
      {failure && <p class="notice bad" role="alert">{failure}</p>}
      <div class="buttons">
        <button type="button" onClick={props.close}>Cancel</button>
        <button type="button" class={props.danger ? "danger" : "primary"} disabled={busy} onClick={act}>{busy ? "…" : props.verb}</button>
      </div>
    </Dialog>
  );
}

/** Whether the page is narrow: then rows of tables are cards. */
export function useNarrow(): boolean {
  const [narrow, set] = useState(() => matchMedia("(max-width: 760px)").matches);
  useEffect(() => {
    const query = matchMedia("(max-width: 760px)");
    const follow = () => set(query.matches);
    query.addEventListener("change", follow);
    return () => query.removeEventListener("change", follow);
  }, []);
  return narrow;
}

/**
 * Which of n rows of equal height are in the window (first inclusive, last exclusive), with a few
 * beyond. The element is the one that holds the rows.
 */
export function useVisible(n: number, height: number) {
  const holder = useRef<HTMLTableSectionElement>(null);
  const [range, set] = useState({ first: 0, last: 40 });
  useEffect(() => {
    let frame = 0;
    const measure = () => {
      frame = 0;
      if (!holder.current) return;
      const above = -holder.current.getBoundingClientRect().top;
      const first = Math.max(0, Math.floor(above / height) - 10);
      const last = Math.ceil((above + window.innerHeight) / height) + 10;
      set((old) => (old.first === first && old.last === last ? old : { first, last }));
    };
    const later = () => {
      frame ||= requestAnimationFrame(measure);
    };
    measure();
    window.addEventListener("scroll", later, { passive: true });
    window.addEventListener("resize", later);
    return () => {
      cancelAnimationFrame(frame);
      window.removeEventListener("scroll", later);
      window.removeEventListener("resize", later);
    };
  }, [height]);
  const first = Math.min(range.first, Math.max(0, n - 1));
  return { holder, first, last: Math.min(n, Math.max(range.last, first)) };
}

/** A row that keeps the place of those that are not drawn. */
export function Spacer(props: { height: number }) {
  const row = useRef<HTMLTableRowElement>(null);
  useEffect(() => {
    if (row.current) row.current.style.height = props.height + "px";
  });
  return props.height > 0 ? <tr ref={row} class="spacer" aria-hidden="true"><td /></tr> : null;
}

/** A chooser among a few names. */
export function Choice(props: { label: string; value: string; all?: string; names: string[]; pick: (name: string) => void }) {
  return (
    <label class="field">
      <span>{props.label}</span>
      <select value={props.value} onChange={(e) => props.pick(e.currentTarget.value)}>
        {props.all !== undefined && <option value="">{props.all}</option>}
        {props.value !== "" && !props.names.includes(props.value) && <option value={props.value}>{props.value}</option>}
        {props.names.map((name) => <option value={name} key={name}>{name}</option>)}
      </select>
    </label>
  );
}

/** The names of colours of a picture. */
export function Key(props: { entries: [string, string][] }) {
  return (
    <ul class="key">
      {props.entries.map(([kind, name]) => <li key={kind}><span class={"swatch " + kind} />{name}</li>)}
    </ul>
  );
}
