import { h, Fragment, type ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { locked, lost, token, usePoll, wanted } from "./api";
import { fleet, followFleet, found } from "./fleet";
import { clock, count, plural } from "./format";
import { Dialog } from "./parts";
import { address, useRoute } from "./route";
import { useStore } from "./store";
import { theme, type Theme } from "./theme";
import type { Doctor } from "./types";
import { CacheView } from "./views/cache";
import { DecisionsView } from "./views/decisions";
import { DoctorView } from "./views/doctor";
import { FleetView } from "./views/fleet";
import { ReplicasView } from "./views/replicas";
import { WhyView } from "./views/why";

void Fragment;

const views: { name: string; title: string; show: () => ComponentChildren }[] = [
  { name: "fleet", title: "Fleet", show: () => <FleetView /> },
  { name: "why", title: "Why", show: () => <WhyView /> },
  { name: "decisions", title: "Decisions", show: () => <DecisionsView /> },
  { name: "cache", title: "Cache", show: () => <CacheView /> },
  { name: "doctor", title: "Doctor", show: () => <DoctorView /> },
  { name: "replicas", title: "Replicas", show: () => <ReplicasView /> },
];

export function App() {
  const route = useRoute();
  const main = useRef<HTMLElement>(null);
  const view = views.find((v) => v.name === route.view);
  const why = useStore(wanted);
  const held = useStore(token);
  const shut = useStore(locked);
  const onFleet = view?.name === "fleet";
  const model = (onFleet && route.query.get("model")) || "", group = (onFleet && route.query.get("group")) || "";
  useEffect(() => followFleet(onFleet ? 1000 : 10000, model, group), [onFleet, held, model, group]);
  const shown = useRef(route.view);
  const last = useRef(new Map<string, string>()).current; // the address of each view as it was left
  last.set(route.view, address(route.view, Object.fromEntries(route.query)));
  useEffect(() => {
    document.title = (view ? view.title + " · " : "") + "select-service";
    if (shown.current !== route.view) {
      shown.current = route.view;
      window.scrollTo(0, 0);
      main.current?.focus({ preventScroll: true });
    }
  }, [route.view]);
  return (
    <>
      <a class="skip" href="#main" onClick={(e: MouseEvent) => { e.preventDefault(); main.current?.focus(); }}>Skip to content</a>
      <header class="top">
        <a class="brand" href={address("fleet")} aria-label="select-service">
          <svg viewBox="0 0 16 16" aria-hidden="true"><rect width="16" height="16" rx="3.5" /><path d="M3.5 8h4M7.5 8l4-4M7.5 8l4 4M7.5 8h5" /></svg>
          <span>select-service</span>
        </a>
        <nav aria-label="Views">
          {views.map((v) => <a key={v.name} href={(v !== view && last.get(v.name)) || address(v.name)} aria-current={v === view ? "page" : undefined}>{v.title}{v.name === "doctor" && <Findings />}</a>)}
        </nav>
        <div class="tools">
          <Connection />
          <ThemeSwitch />
          {held !== null && <button type="button" class="quiet" onClick={() => { token.set(null); wanted.set("You have signed out."); }}>Sign out</button>}
          {held === null && shut && <button type="button" class="quiet" onClick={() => wanted.set("This service asks for a token.")}>Sign in …</button>}
        </div>
      </header>
      <LostNotice />
      <main id="main" ref={main} tabIndex={-1}>
        {view ? view.show() : <p class="note">There is no view “{route.view}”. <a href={address("fleet")}>Go to the fleet</a></p>}
      </main>
      {why !== "" && held === null && <Login why={why} />}
    </>
  );
}

/** How much the doctor has found, whatever view is open. */
function Findings() {
  const read = usePoll<Doctor>("/doctor", 30000).data, findings = read?.findings ?? [];
  useEffect(() => found.set(read?.findings ?? []), [read]);
  if (findings.length === 0) return null;
  return <span class={"badge " + (findings.some((f) => f.severity === "error") ? "bad" : "warn")} title={plural(findings.length, "finding")}>{count(findings.length)}</span>;
}

/** Whether what is shown is of now. */
function Connection() {
  const at = useStore(fleet).at;
  const gone = useStore(lost);
  if (gone) return <span class="live is-lost"><span class="dot" />no answer</span>;
  if (!at) return null;
  return <span class="live" title={"Last read at " + clock(at)}><span class="dot" /><span class="host">{location.host} </span>live</span>;
}

function LostNotice() {
  const gone = useStore(lost);
  const [, redraw] = useState(0);
  useEffect(() => {
    if (!gone) return;
    const timer = setInterval(() => redraw((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, [gone]);
  if (!gone || Date.now() - gone.since < 1500) return null;
  return (
    <div class="banner" role="alert">
      The service does not answer since {clock(gone.since)}: {gone.why}. What you see is what was last read; the page tries again by itself.
    </div>
  );
}

const nextTheme: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };

function ThemeSwitch() {
  const now = useStore(theme);
  return (
    <button type="button" class="quiet" aria-label={`Colours: ${now}. Change to ${nextTheme[now]}`} title={`Colours: ${now}`} onClick={() => theme.set(nextTheme[now])}>
      <svg class="glyph" viewBox="0 0 16 16" aria-hidden="true">
        {now === "light" && <><circle cx="8" cy="8" r="3" /><path d="M8 1.5v1.8M8 12.7v1.8M1.5 8h1.8M12.7 8h1.8M3.4 3.4l1.3 1.3M11.3 11.3l1.3 1.3M12.6 3.4l-1.3 1.3M4.7 11.3l-1.3 1.3" /></>}
        {now === "dark" && <path d="M13.2 9.6A5.6 5.6 0 0 1 6.4 2.8a5.6 5.6 0 1 0 6.8 6.8Z" />}
        {now === "auto" && <><circle cx="8" cy="8" r="5.5" /><path class="solid" d="M8 2.5a5.5 5.5 0 0 1 0 11Z" /></>}
      </svg>
    </button>
  );
}

function Login(props: { why: string }) {
  const [text, setText] = useState("");
  return (
    <Dialog title="Sign in" close={() => wanted.set("")} kind="confirm">
      <form onSubmit={(e) => {
        e.preventDefault();
        if (text.trim()) {
          wanted.set("");
          token.set(text.trim());
        }
      }}>
        <p>{props.why} The token is kept in the memory of this page only, and gone when you load it again.</p>
        <label class="field">
          <span>Token</span>
          <input type="password" autocomplete="off" spellcheck={false} autofocus value={text} onInput={(e) => setText(e.currentTarget.value)} />
        </label>
        <div class="buttons"><button type="submit" class="primary" disabled={!text.trim()}>Sign in</button></div>
      </form>
    </Dialog>
  );
}
