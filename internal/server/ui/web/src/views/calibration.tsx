import { h, Fragment } from "preact";
import { useMemo } from "preact/hooks";
import { usePoll } from "../api";
import { Scatter } from "../chart";
import { count, decimal, percent, seconds } from "../format";
import { address } from "../route";
import type { ScopePolicy } from "../types";

void Fragment;

/** How many models are shown at once. */
const few = 4;

/** How the latest predictions of the first token compare with what was observed, by decile, for each model that has some. */
export function Calibrations(props: { model: string; group: string }) {
  const q = new URLSearchParams();
  if (props.model) q.set("model_name", props.model);
  if (props.group) q.set("routing_group", props.group);
  const read = usePoll<ScopePolicy[]>("/policies" + (q.size ? "?" + q : ""), 10000).data;
  const known = read?.filter((p) => p.learned && p.learned.calibration.deciles.length > 0) ?? [];
  if (known.length === 0) return null;
  return <div class="two">{known.slice(0, few).map((p) => <Calibration key={p.model_name + "/" + p.routing_group} of={p} alone={known.length === 1} />)}</div>;
}

function Calibration(props: { of: ScopePolicy; alone: boolean }) {
  const { of } = props, c = of.learned!.calibration;
  const said = JSON.stringify(c.deciles);
  const points = useMemo(() => c.deciles.filter((d) => d.predicted_seconds > 0 && d.observed_seconds > 0).map((d): [number, number] => [d.predicted_seconds, d.observed_seconds]), [said]);
  const id = "calibration-" + of.model_name + "-" + of.routing_group;
  const text = `Half of the first tokens came within ${decimal(c.q50)} times the predicted time, nine of ten within ${decimal(c.q90)} times` +
    (c.held === null ? "" : `; of the latest ones ${percent(c.held)} kept to the latter, as 90 % should`);
  return (
    <section class="card" aria-labelledby={id}>
      <h2 id={id}>Calibration by decile{!props.alone && <>: {of.model_name}{of.routing_group !== "default" && <span class="dim"> / {of.routing_group}</span>}</>}</h2>
      <p class="note">{text} ({count(c.samples)} compared). Each point has the means of a tenth of the latest predictions, from the shortest to the longest. If they are off, the <a href={address("doctor")}>doctor</a> says what to look for.</p>
      <Scatter points={points} format={seconds} text={text} xName="predicted" yName="observed" />
    </section>
  );
}
