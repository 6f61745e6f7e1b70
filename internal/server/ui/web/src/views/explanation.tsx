import { h, Fragment } from "preact";
import { useMemo, useState } from "preact/hooks";
import { count, decimal, percent, plural, rankName, rankShort, seconds } from "../format";
import { Bar, Empty, Key, type Part } from "../parts";
import { address } from "../route";
import type { Candidate, Explanation } from "../types";

void Fragment;

const termNames = { wait: "wait", prefill: "prefill", delay: "delay of others", decode: "decode load", answer: "slower answers", taint: "taints" } as const;
const tierNames = { device: "device", host: "host memory", disk: "disk or external" } as const;

/** Why a rank cannot be chosen, in words. */
// decidedBy says why a policy decides; nothing is said of the default of the contract.
const decidedBy: Record<string, string> = {
  section: ", set by PUT /policies",
  option: ", by an option",
  file: ", by the policy file",
  front: ", the built-in policy where a gateway or proxy port serves the model",
  weight: ", since a weight of Dynamo’s cost is given",
};
const excludedBecause: Record<string, string> = {
  not_schedulable: "its worker cannot be scheduled (incomplete, or the engine is not ready)",
  draining: "it is draining",
  not_allowed: "the request allows other workers only",
  missing_taint: "it lacks a taint that the request requires",
  not_pinned: "the request is pinned to another",
  not_affinity_target: "the request's affinity target is another",
  overloaded: "it is above a busy threshold",
  not_of_session: "the request's session is on another",
  stalled: "its engine makes no progress",
  silent: "its engine has not been heard of",
};

const blocksOf = (tokens: number, size: number) => Math.ceil(tokens / Math.max(size, 1));

/** The candidate that was chosen; none is undefined. */
export const chosenOf = (x: Explanation) =>
  x.chosen ? x.candidates.find((c) => String(c.worker_id) === String(x.chosen!.worker_id) && c.dp_rank === x.chosen!.dp_rank) : undefined;

/** The share of a prompt that counts as cached on a rank: also what others compute there, for requests that are kept together. */
export const cachedShare = (c: Candidate, x: Explanation) => (x.isl_tokens - c.uncached_tokens) / Math.max(x.isl_tokens, 1);

/** The cached prefix of a prompt as a strip of blocks. */
function Prefix(props: { c: Candidate; x: Explanation }) {
  const { c, x } = props;
  const all = Math.max(x.isl_tokens, 1);
  const parts: Part[] = [];
  let from = 0;
  for (const tier of ["device", "host", "disk"] as const) {
    const to = from + c.cached_tokens[tier] / all;
    if (to > from) parts.push({ from, to, kind: "tier-" + tier, title: `${tierNames[tier]}: ${count(c.cached_tokens[tier])} tokens` });
    from = to;
  }
  const n = blocksOf(x.isl_tokens, x.block_size);
  return <Bar kind="tall" parts={parts} ticks={n <= 64 ? n : 0} label={`${percent(from)} of the prompt cached, ${count(x.isl_tokens - c.uncached_tokens)} of ${count(x.isl_tokens)} tokens`} />;
}

/** The terms that add up to a cost; taints multiply their sum. */
function termsOf(c: Candidate): [keyof typeof termNames, number][] {
  const { wait, prefill, delay, decode, answer } = c.terms;
  const sum = wait + prefill + delay + decode + answer;
  return [["wait", wait], ["prefill", prefill], ["delay", delay], ["decode", decode], ["answer", answer], ["taint", c.cost - sum]];
}

function Cost(props: { c: Candidate; most: number }) {
  const { c, most } = props;
  const parts: Part[] = [];
  let from = 0;
  for (const [term, value] of termsOf(c)) {
    if (value <= 0 || most <= 0) continue;
    parts.push({ from, to: from + value / most, kind: "term-" + term, title: `${termNames[term]}: ${decimal(value)} ${c.unit}` });
    from += value / most;
  }
  const text = termsOf(c).filter(([, v]) => Math.abs(v) > 1e-9).map(([t, v]) => `${termNames[t]} ${decimal(v)}`).join(", ");
  return <Bar kind="tall" parts={parts} label={`cost ${decimal(c.cost)} ${c.unit}: ${text || "nothing"}`} />;
}

/** What decided, in one sentence. */
function verdict(x: Explanation, sorted: Candidate[]): string {
  if (!x.chosen) return x.refusal ? `No rank was chosen: ${x.refusal}.` : "No rank can be chosen.";
  const chosen = chosenOf(x);
  const name = rankName(x.chosen);
  const Name = name[0]!.toUpperCase() + name.slice(1);
  if (!chosen) return `${Name} was chosen.`;
  const next = sorted.find((c) => c !== chosen);
  const cost = `${decimal(chosen.cost)} ${chosen.unit}`;
  if (!next) return `${Name} wins: it is the only candidate (cost ${cost}).`;
  const by = next.cost - chosen.cost;
  if (Math.abs(by) < 1e-9) return `${Name} and ${rankName(next)} cost the same, ${cost}: chance decided.`;
  if (by < 0) return `${Name} was chosen at ${cost}, though ${rankName(next)} costs ${decimal(-by)} less${x.temperature > 0 ? `: at temperature ${x.temperature} chance has a part` : x.warmup ? ": a fresh rank warms up" : ""}.`;
  const terms = termsOf(chosen), others = new Map(termsOf(next));
  let most = "", gain = 0;
  for (const [term, value] of terms) {
    const saved = (others.get(term) ?? 0) - value;
    if (saved > gain) [most, gain] = [termNames[term], saved];
  }
  return `${Name} wins at ${cost}, ${decimal(by)} (${percent(by / Math.max(next.cost, 1e-9))}) below ${rankName(next)}` + (most ? `, mainly by less ${most}.` : ".");
}

const movedBecause: Record<string, string> = {
  gone: "that worker cannot be scheduled",
  overloaded: "that worker is above a busy threshold",
  filtered: "the request does not allow it",
};

/** What the session of a request, or the group that the session belongs to, has to do with the choice. */
function Session(props: { x: Explanation; past: boolean }) {
  const { session, group, home, moved_because: moved } = props.x;
  if (!session) return null;
  const stays = home && props.x.chosen && rankShort(home) === rankShort(props.x.chosen);
  const goes = props.past ? "went" : "goes";
  return (
    <p class="note session">
      Session <b class="clip" title={session}>{session}</b>{group && <>, started by <b class="clip" title={group}>{group}</b></>}:{" "}
      {!home ? "no request of it has been placed before" : stays ? <>it stays at home, {rankName(home)}</>
        : <>its home is <a href={address("fleet", { worker: home.worker_id, rank: home.dp_rank })}>{rankName(home)}</a>{moved && <>, and it {goes} elsewhere since {movedBecause[moved] ?? moved.replace(/^busy: /, "")}</>}</>}.
    </p>
  );
}

/** What came of the time by which the request wants its first token. */
function Wanted(props: { x: Explanation }) {
  const t = props.x.target;
  if (!t) return null;
  if (!t.predictable) return <p class="note">The target of the request has no effect on the choice: {t.why_not}.</p>;
  const { predicted_ttft_seconds: first = 0, within_seconds: within = 0, margin = 1, holding = 0 } = t;
  return (
    <p class="note">
      The first token is wanted within {seconds(Math.max(within, 0))}, and predicted after {seconds(first)}, times a margin of {decimal(margin)}:{" "}
      {holding > 0 ? <>{plural(holding, "rank")} {holding === 1 ? "holds" : "hold"} that, and the cheapest of these counts.</>
        : <>no rank holds that. {t.would_refuse ? "The request would be refused." : t.probe ? "The request was placed as a probe." : "Where the first token comes soonest counts."}</>}
    </p>
  );
}

/** Why a rank was chosen, or would be. */
export function ExplanationPanel(props: { x: Explanation; past: boolean }) {
  const { x } = props;
  const [all, setAll] = useState(false);
  const sorted = useMemo(() => [...x.candidates].sort((a, b) => a.cost - b.cost), [x]);
  const most = Math.max(...sorted.map((c) => c.terms.wait + c.terms.prefill + c.terms.delay + c.terms.decode + c.terms.answer), ...sorted.map((c) => c.cost), 0);
  const shown = all ? sorted : sorted.slice(0, 12);
  const chosen = chosenOf(x), isChosen = (c: Candidate) => c === chosen;
  const chosenBelow = sorted.slice(shown.length).find(isChosen);
  if (chosenBelow) shown.push(chosenBelow);
  const reasons = new Map<string, string[]>();
  for (const e of x.excluded) reasons.set(e.reason, [...(reasons.get(e.reason) ?? []), rankShort(e)]);
  const terms = (Object.keys(termNames) as (keyof typeof termNames)[]).filter((t) => sorted.some((c) => (termsOf(c).find(([n]) => n === t)?.[1] ?? 0) > 1e-9));
  const tiers = (["device", "host", "disk"] as const).filter((t) => sorted.some((c) => c.cached_tokens[t] > 0));
  return (
    <div class="why">
      <p class={"verdict" + (x.chosen ? "" : " bad")}>{verdict(x, sorted)}</p>
      <p class="note">
        {plural(x.isl_tokens, "token")} in {plural(blocksOf(x.isl_tokens, x.block_size), "block")} of {count(x.block_size)} for <b>{x.model_name}</b>
        {x.routing_group !== "default" && <> / {x.routing_group}</>}, policy <b>{x.policy}</b>{x.policy_type && x.policy_type !== x.policy ? ` (${x.policy_type})` : ""}{decidedBy[x.decided_by] ?? ""}.
      </p>
      <Session x={x} past={props.past} />
      <Wanted x={x} />
      {sorted.length > 0 && (
        <section aria-labelledby="candidates">
          <div class="heading"><h2 id="candidates">{plural(sorted.length, "candidate")}</h2>
            <Key entries={[...tiers.map((t): [string, string] => ["tier-" + t, tierNames[t]]), ...terms.map((t): [string, string] => ["term-" + t, termNames[t]])]} />
          </div>
          <table class="candidates cards" role="table">
            <thead role="rowgroup"><tr role="row">
              <th role="columnheader" scope="col">Worker · rank</th><th role="columnheader" scope="col" class="wide">Prompt cached</th><th role="columnheader" scope="col" class="num">Cached</th>
              <th role="columnheader" scope="col" class="wide">Cost, {sorted[0]!.unit}</th><th role="columnheader" scope="col" class="num">Cost</th><th role="columnheader" scope="col" class="num">Running</th><th role="columnheader" scope="col" class="num">Predicted TTFT</th>
            </tr></thead>
            <tbody role="rowgroup">
              {shown.map((c) => (
                <tr role="row" key={rankShort(c)} class={isChosen(c) ? "chosen" : undefined}>
                  <th role="rowheader" scope="row"><a href={address("fleet", { worker: c.worker_id, rank: c.dp_rank })}>{rankShort(c)}</a>{isChosen(c) && <span class="badge">chosen</span>}</th>
                  <td role="cell" class="wide"><Prefix c={c} x={x} /></td>
                  <td role="cell" class="num"><span class="label">Cached</span> {percent(cachedShare(c, x))}</td>
                  <td role="cell" class="wide"><Cost c={c} most={most} /></td>
                  <td role="cell" class="num"><span class="label">Cost</span> {decimal(c.cost)}</td>
                  <td role="cell" class="num"><span class="label">Running</span> {count(c.active_requests)}</td>
                  <td role="cell" class="num"><span class="label">TTFT</span> {seconds(c.predicted_wait_seconds + c.predicted_prefill_seconds)}</td>
                </tr>
              ))}
            </tbody>
          </table>
          {sorted.length > shown.length && <button type="button" onClick={() => setAll(true)}>Show all {count(sorted.length)}</button>}
        </section>
      )}
      {reasons.size > 0 && (
        <section aria-labelledby="excluded">
          <h2 id="excluded">{plural(x.excluded.length, "rank")} excluded</h2>
          <ul class="plain">
            {[...reasons].map(([reason, ranks]) => <li key={reason}><b>{ranks.slice(0, 20).join(", ")}{ranks.length > 20 && ` and ${ranks.length - 20} more`}</b>: {excludedBecause[reason] ?? reason.replaceAll("_", " ")}</li>)}
          </ul>
        </section>
      )}
      <section aria-labelledby="shadows">
        <h2 id="shadows">Other policies</h2>
        {x.shadows.length === 0 ? (
          <p class="note">None is asked what it would have done. Name some as <code>shadow</code> under <code>worker_selection</code> in the policy file (<code>--router-policy-config</code>); they decide nothing.</p>
        ) : (
          <div class="scroll" tabIndex={0} role="region" aria-label="What other policies would choose">
            <table>
              <thead><tr><th scope="col">Policy</th><th scope="col">{props.past ? "Would have chosen" : "Would choose"}</th><th scope="col">First token there, predicted</th><th scope="col" class="num">Cheaper by its own cost</th></tr></thead>
              <tbody>
                {x.shadows.map((s) => (
                  <tr key={s.policy}>
                    <th scope="row">{s.policy}</th><td>{rankShort(s)}{s.same ? <span class="dim"> the same</span> : <> <span class="badge warn">another</span></>}</td>
                    <td>{s.same || Math.abs(s.ttft_foregone_seconds) < 5e-5 ? "as soon" : seconds(Math.abs(s.ttft_foregone_seconds)) + (s.ttft_foregone_seconds > 0 ? " sooner" : " later")}</td><td class="num">{s.same ? "–" : decimal(s.cost_foregone)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </div>
        )}
      </section>
      {sorted.length === 0 && reasons.size === 0 && <Empty title="There are no ranks to choose from." />}
    </div>
  );
}
