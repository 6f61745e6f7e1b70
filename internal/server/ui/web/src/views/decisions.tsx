import { h, Fragment } from "preact";
import { useMemo, useState } from "preact/hooks";
import { token, usePoll } from "../api";
import { Scatter } from "../chart";
import { fleet, names } from "../fleet";
import { clock, count, percent, plural, rankShort, seconds } from "../format";
import { Bar, Choice, Empty, Fault, Loading } from "../parts";
import { address, change, useRoute } from "../route";
import { Store, useStore } from "../store";
import type { Decision } from "../types";
import { Calibrations } from "./calibration";

void Fragment;

/** What became of a decision. */
export function OutcomeText(props: { d: Decision }) {
  const { outcome, predicted_ttft_seconds: predicted } = props.d;
  if (outcome.ttft_seconds !== null) {
    return <span>First token after <b>{seconds(outcome.ttft_seconds)}</b>, predicted {seconds(predicted)}{outcome.freed_after_seconds !== null && <>, done after {seconds(outcome.freed_after_seconds)}</>}.</span>;
  }
  const words: Record<string, string> = { selected: "Only asked: nothing was booked.", prefilling: "In prefill.", freed: "Done; its first token was not reported.", gone: "Its worker or its lease is gone.", decoding: "It decodes." };
  return <span>{words[outcome.state] ?? outcome.state} Predicted {seconds(predicted)}.</span>;
}

/** Of the list, without the ranks that were compared: these may be thousands for each decision. */
const query = (model: string, group: string) => {
  const q = new URLSearchParams({ reasons: "false" });
  if (model) q.set("model_name", model);
  if (group) q.set("routing_group", group);
  return "?" + q;
};

/** How many decisions are read at first, and the most that the service lists. */
export const fewDecisions = 100, mostDecisions = 1000;

/** The list that was paused, which stays while a decision of it is looked at. */
const paused = new Store<Decision[] | null>(null);
token.follow(() => paused.set(null));

export function DecisionsView() {
  const { query: settings } = useRoute();
  const model = settings.get("model") ?? "", group = settings.get("group") ?? "", worker = settings.get("worker") ?? "", text = settings.get("q") ?? "";
  const held = useStore(paused);
  const [most, setMost] = useState(fewDecisions);
  const polled = usePoll<Decision[]>(held ? null : "/decisions" + query(model, group), 2000, worker || text ? mostDecisions : most);
  const { models, groups } = names(useStore(fleet));
  const data = held ?? polled.data;
  const shown = useMemo(() => data?.filter((d) => (!model || d.model_name === model) && (!group || d.routing_group === group) && (!worker || String(d.chosen?.worker_id) === worker) && (!text || [d.selection_id, d.session, d.group].some((name) => name?.includes(text)))) ?? [], [data, model, group, worker, text]);
  return (
    <>
      <div class="heading"><h1>Decisions</h1>
        {data && <span class="dim">{plural(shown.length, "recent decision")}{held ? ", paused" : ""}</span>}
        <button type="button" disabled={!data} aria-pressed={held !== null} onClick={() => paused.set(held ? null : data)}>{held ? "Resume" : "Pause"}</button>
      </div>
      <div class="filters" role="search">
        <label class="field grow"><span class="hidden">Request id or session</span><input type="search" placeholder="Request id or session" value={text} onInput={(e) => change({ q: e.currentTarget.value })} /></label>
        {models.length > 1 && <Choice label="Model" value={model} all="all models" names={models} pick={(v) => change({ model: v }, true)} />}
        {groups.length > 1 && <Choice label="Tenant" value={group} all="all tenants" names={groups} pick={(v) => change({ group: v }, true)} />}
        {worker && <button type="button" class="chip" aria-pressed="true" onClick={() => change({ worker: null }, true)}>worker {worker} ✕</button>}
      </div>
      {polled.failure && !data && <Fault failure={polled.failure} what="the decisions" />}
      {!data && !polled.failure && <Loading what="the decisions" />}
      {data && shown.length === 0 && <Empty title={data.length ? "No decision matches." : "No decision has been made yet."}>{!data.length && <>Each <code>POST /select</code> or <code>/select_and_reserve</code> is one.</>}</Empty>}
      {shown.length > 0 && (
        <>
          <div class="two">
            <Observed list={shown} />
            <Shares list={shown} />
          </div>
          <Calibrations model={model} group={group} />
          <table class="cards decisions" role="table">
            <caption class="hidden">Recent decisions, the newest first</caption>
            <thead role="rowgroup"><tr role="row">
              <th role="columnheader" scope="col">Time</th><th role="columnheader" scope="col">Model</th><th role="columnheader" scope="col">Chosen</th><th role="columnheader" scope="col" class="num">Tokens</th><th role="columnheader" scope="col" class="num">Cached</th>
              <th role="columnheader" scope="col" class="num">Foregone</th><th role="columnheader" scope="col" class="num">Predicted</th><th role="columnheader" scope="col" class="num">Observed</th><th role="columnheader" scope="col">State</th>
            </tr></thead>
            <tbody role="rowgroup">
              {shown.slice(0, most).map((d) => (
                <tr role="row" key={d.time} class="row" onClick={() => { location.hash = address("why", { decision: d.time }); }}>
                  <th role="rowheader" scope="row"><a href={address("why", { decision: d.time })} onClick={(e: MouseEvent) => e.stopPropagation()}>{clock(d.time)}</a></th>
                  <td role="cell">{d.model_name}{d.routing_group !== "default" && <span class="dim"> / {d.routing_group}</span>}</td>
                  <td role="cell">{d.chosen ? rankShort(d.chosen) : <span class="warn">{d.refusal ?? "none"}</span>}{d.moved_because && d.home && <> <span class="badge warn" title={`The session was on ${rankShort(d.home)}: ${d.moved_because}`}>moved</span></>}{d.session && <> <span class="dim clip" title={d.group ? `${d.session}, started by ${d.group}` : d.session}>{d.session}</span></>}</td>
                  <td role="cell" class="num"><span class="label">Tokens</span> {count(d.isl_tokens)}</td>
                  <td role="cell" class="num"><span class="label">Cached</span> {percent((d.cached_blocks * d.block_size) / Math.max(d.isl_tokens, 1))}</td>
                  <td role="cell" class={"num" + (d.cached_blocks_foregone ? "" : " dim")}><span class="label">Foregone</span> {count(d.cached_blocks_foregone)}</td>
                  <td role="cell" class="num"><span class="label">Predicted</span> {seconds(d.predicted_ttft_seconds)}</td>
                  <td role="cell" class="num"><span class="label">Observed</span> {seconds(d.outcome.ttft_seconds)}</td>
                  <td role="cell" class="dim">{d.outcome.state}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {most < mostDecisions && shown.length >= most && <button type="button" onClick={() => setMost(mostDecisions)}>Show more</button>}
        </>
      )}
    </>
  );
}

function Observed(props: { list: Decision[] }) {
  const points = useMemo(
    () => props.list.filter((d) => d.outcome.ttft_seconds !== null && d.outcome.ttft_seconds > 0 && d.predicted_ttft_seconds > 0).map((d): [number, number] => [d.predicted_ttft_seconds, d.outcome.ttft_seconds!]),
    [props.list],
  );
  const within = points.filter(([p, o]) => o <= p * 1.5 && o >= p / 1.5).length;
  const text = points.length ? `${percent(within / points.length)} of ${count(points.length)} first tokens came within a factor of 1.5 of the prediction` : "";
  return (
    <section class="card" aria-labelledby="observed">
      <h2 id="observed">Time to first token: predicted and observed</h2>
      {points.length ? <><p class="note">{text}; on the dashed line they agree.</p><Scatter points={points} format={seconds} text={text} xName="predicted" yName="observed" /></>
        : <p class="note">No first token of these is known. Streamed answers through the proxy or a gateway show it, other callers report it (<code>prefill_complete</code>).</p>}
    </section>
  );
}

function Shares(props: { list: Decision[] }) {
  const shares = useMemo(() => {
    const of = new Map<string, number>();
    for (const d of props.list) if (d.chosen) of.set(String(d.chosen.worker_id), (of.get(String(d.chosen.worker_id)) ?? 0) + 1);
    return [...of].sort((a, b) => b[1] - a[1]);
  }, [props.list]);
  const all = shares.reduce((n, [, k]) => n + k, 0);
  const foregone = props.list.reduce((n, d) => n + d.cached_blocks_foregone, 0), cached = props.list.reduce((n, d) => n + d.cached_blocks, 0);
  const blocks = Math.max(props.list.reduce((n, d) => n + Math.floor(d.isl_tokens / Math.max(d.block_size, 1)), 0), cached + foregone, 1);
  const top = shares[0]?.[1] ?? 1;
  return (
    <section class="card" aria-labelledby="shares">
      <h2 id="shares">Share of each worker</h2>
      <p class="note">Of the prompts’ {plural(blocks, "block")}, {percent(cached / blocks)} were cached where they went, {percent(foregone / blocks)} only elsewhere (foregone for less load), {percent(1 - (cached + foregone) / blocks)} nowhere{cached + foregone < blocks / 2 && <>: new prompts, or what the <a href={address("doctor")}>doctor</a> says</>}.</p>
      <ul class="shares">
        {shares.slice(0, 10).map(([worker, n]) => (
          <li key={worker}>
            <a href={address("decisions", { worker })}>{worker}</a><Bar parts={[{ from: 0, to: n / top, kind: "booked" }]} /><span class="num">{percent(n / all)}</span>
          </li>
        ))}
      </ul>
      {shares.length > 10 && <p class="note">and {count(shares.length - 10)} more workers</p>}
    </section>
  );
}
