import { h, Fragment } from "preact";
import { usePoll } from "../api";
import { count, decimal, percent, plural } from "../format";
import { Bar } from "../parts";
import { change, useRoute } from "../route";
import type { Fairness } from "../types";

void Fragment;

/** How many consumers are shown. */
const few = 10;

/** Who uses the engines most, where tenants take turns; nothing elsewhere. */
export function Consumers(props: { model: string; group: string }) {
  const by = useRoute().query.get("by") === "program" ? "program" : "tenant";
  const q = new URLSearchParams({ by, limit: String(few) });
  if (props.model) q.set("model_name", props.model);
  if (props.group) q.set("routing_group", props.group);
  const read = usePoll<Fairness>("/fairness?" + q, 5000).data;
  if (!read || read.classes.length === 0) return null;
  const top = Math.max(...read.consumers.map((c) => c.share), 1e-9);
  const several = read.classes.length > 1;
  return (
    <section class="card" aria-labelledby="consumers">
      <div class="heading">
        <h2 id="consumers">Greatest consumers of engine time</h2>
        <label class="check"><input type="checkbox" checked={by === "program"} onChange={(e) => change({ by: e.currentTarget.checked ? "program" : null }, true)} /> By program</label>
      </div>
      {read.classes.slice(0, 3).map((c) => (
        <p class="note" key={c.model_name + c.routing_group + c.policy_class}>
          {several && <>{c.model_name}, class {c.policy_class}: </>}{plural(c.active_tenants, "tenant")}{c.by === "program" && <> and {plural(c.active_programs, "program")}</>} active.
          Evenness by weight {decimal(c.jain_tenants)}{c.by === "program" && <>, of programs {decimal(c.jain_programs)}</>} (1: all have their share).
        </p>
      ))}
      {read.consumers.length === 0 ? <p class="note">Nobody has used the engines lately.</p> : (
        <table class="cards consumers" role="table">
          <thead role="rowgroup"><tr role="row">
            <th role="columnheader" scope="col">Tenant</th>{by === "program" && <th role="columnheader" scope="col">Program</th>}
            <th role="columnheader" scope="col">Share</th><th role="columnheader" scope="col" class="num">Seconds</th><th role="columnheader" scope="col" class="num">Weight</th>
            <th role="columnheader" scope="col" class="num">Running</th><th role="columnheader" scope="col" class="num">Queued</th>
            <th role="columnheader" scope="col" class="num">In time</th><th role="columnheader" scope="col" class="num">Late</th><th role="columnheader" scope="col" class="num">Refused</th>
          </tr></thead>
          <tbody role="rowgroup">
            {read.consumers.map((c) => (
              <tr role="row" key={[c.model_name, c.routing_group, c.policy_class, c.tenant, c.program].join("/")}>
                <th role="rowheader" scope="row"><span class="clip" title={c.tenant}>{c.tenant || "–"}</span>{several && <span class="dim"> {c.model_name}, {c.policy_class}</span>}</th>
                {by === "program" && <td role="cell"><span class="clip" title={c.program}>{c.program ?? "its own"}</span></td>}
                <td role="cell" class="wide"><div class="shares"><Bar parts={[{ from: 0, to: c.share / top, kind: "booked" }]} /><span class="num">{percent(c.share)}</span></div></td>
                <td role="cell" class="num"><span class="label">Seconds</span> {decimal(c.engine_seconds)}</td>
                <td role="cell" class="num"><span class="label">Weight</span> {decimal(c.weight)}</td>
                <td role="cell" class="num"><span class="label">Running</span> {count(c.running)}</td>
                <td role="cell" class="num"><span class="label">Queued</span> {count(c.queued)}</td>
                <td role="cell" class="num"><span class="label">In time</span> {count(c.attained)}</td>
                <td role="cell" class={"num" + (c.missed ? " warn" : "")}><span class="label">Late</span> {count(c.missed)}</td>
                <td role="cell" class={"num" + (c.refused ? " warn" : "")}><span class="label">Refused</span> {count(c.refused)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {read.total > read.consumers.length && <p class="note">and {count(read.total - read.consumers.length)} more: <code>selectctl top {by}s</code></p>}
    </section>
  );
}
