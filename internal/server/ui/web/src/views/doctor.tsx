import { h, Fragment } from "preact";
import { usePoll } from "../api";
import { clock, plural } from "../format";
import { Fault, Loading } from "../parts";
import { address } from "../route";
import type { Doctor, Finding } from "../types";

void Fragment;

/** Where the pages of documentation are, which findings name by their path in the repository. */
const pages = "https://github.com/select-service/select-service/blob/main/";

export function DoctorView() {
  const { data, failure } = usePoll<Doctor>("/doctor", 5000);
  const errors = data?.findings.filter((f) => f.severity === "error") ?? [], warnings = data?.findings.filter((f) => f.severity !== "error") ?? [];
  return (
    <>
      <div class="heading"><h1>Doctor</h1>{data && <span class="dim">looked at {clock(data.time)}</span>}</div>
      {failure && !data && <Fault failure={failure} what="the diagnosis" />}
      {!data && !failure && <Loading what="the diagnosis" />}
      {data && (
        <>
          <p class={"verdict" + (errors.length ? " bad" : warnings.length ? " warn" : " good")} role="status">
            {data.findings.length === 0 ? "Nothing is wrong." : `${[errors.length && plural(errors.length, "error"), warnings.length && plural(warnings.length, "warning")].filter(Boolean).join(" and ")}.`}
          </p>
          <ul class="findings">{[...errors, ...warnings].map((f, i) => <FindingCard key={i} f={f} />)}</ul>
          {data.truncated && <p class="note">There are more findings than these.</p>}
          <section aria-labelledby="checks">
            <h2 id="checks">What was looked at</h2>
            <ul class="checks">
              {data.checks.map((c) => (
                <li key={c.check} class={"is-" + c.result}>
                  <span class={"badge" + (errors.some((f) => f.check === c.check) ? " bad" : "")}>{{ ok: "ok", finding: "finding", not_applicable: "n/a" }[c.result]}</span> {c.title}
                </li>
              ))}
            </ul>
            {data.checks.some((c) => c.result === "not_applicable") && <p class="note">n/a: what the check needs is not configured, or nobody reports it.</p>}
          </section>
        </>
      )}
    </>
  );
}

function FindingCard(props: { f: Finding }) {
  const { f } = props;
  return (
    <li class={"finding is-" + f.severity}>
      <p><span class={"badge " + (f.severity === "error" ? "bad" : "warn")}>{f.severity}</span> <b>{f.sentence}</b></p>
      <p>{f.remedy}</p>
      <p class="links">
        {f.runbook && <a href={pages + f.runbook} target="_blank" rel="noreferrer">Runbook</a>}
        {f.worker_id !== undefined && <a href={address("fleet", { worker: f.worker_id, rank: f.dp_rank })}>Show worker {f.worker_id}{f.dp_rank !== undefined && ` rank ${f.dp_rank}`}</a>}
        {f.worker_id === undefined && f.model_name && <a href={address("fleet", { model: f.model_name, group: f.routing_group })}>Show {f.model_name}</a>}
        {f.peer && <a href={address("replicas")}>Show the replicas</a>}
        <span class="dim">{f.check}</span>
      </p>
    </li>
  );
}
