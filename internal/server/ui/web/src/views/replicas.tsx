import { h, Fragment } from "preact";
import { usePoll } from "../api";
import { clock, count, plural, seconds } from "../format";
import { Empty, Fault, Loading } from "../parts";
import type { Replicas } from "../types";

void Fragment;

type Process = Replicas["peers"][number]["processes"][number];

/** In what a peer differs from this replica; empty: in nothing that is known. */
function differences(p: Process): string[] {
  const list: string[] = [];
  if (p.thresholds_differ?.length) list.push("thresholds");
  if (p.policies_agree === false) list.push("policies");
  if (p.clocks_agree === false) list.push("clock");
  const loads = p.loads?.filter((l) => !l.agree).length ?? 0;
  if (loads) list.push(`loads of ${plural(loads, "model")}`);
  return list;
}

export function ReplicasView() {
  const { data, failure } = usePoll<Replicas>("/replicas", 5000);
  return (
    <>
      <h1>Replicas</h1>
      {failure && !data && <Fault failure={failure} what="the replicas" />}
      {!data && !failure && <Loading what="the replicas" />}
      {data && !data.enabled && <Empty title="This replica is alone.">Reservations are shared with others by <code>--replica-sync-port</code> and <code>--replica-sync-peers</code>.</Empty>}
      {data?.enabled && <Shown data={data} />}
    </>
  );
}

function Shown(props: { data: Replicas }) {
  const { data } = props;
  const processes = data.peers.flatMap((peer) => peer.processes.filter((p) => !p.absent));
  const odd = processes.filter((p) => differences(p).length > 0 || p.error);
  const down = data.peers.filter((p) => !p.connected);
  const s = data.stats;
  return (
    <>
      <p class={"verdict" + (down.length ? " bad" : odd.length || processes.length === 0 ? " warn" : " good")} role="status">
        {data.peers.length === 0 ? "There are no peers yet." : down.length ? `${count(down.length)} of ${plural(data.peers.length, "peer")} cannot be reached.` : odd.length ? `${count(odd.length)} of ${plural(processes.length, "replica")} ${odd.length === 1 ? "differs" : "differ"} from this one.` : processes.length === 0 ? "Nothing is heard of the peers." : `${plural(processes.length, "other replica agrees", "other replicas agree")} with this one.`}
      </p>
      {data.peers.length > 0 && (
        <table class="cards" role="table">
          <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Peer</th><th role="columnheader" scope="col">Connection</th><th role="columnheader" scope="col" class="num">Clock</th><th role="columnheader" scope="col">Thresholds</th><th role="columnheader" scope="col">Policies</th><th role="columnheader" scope="col">Loads</th><th role="columnheader" scope="col">Version</th></tr></thead>
          <tbody role="rowgroup">
            {data.peers.map((peer) => peer.processes.length === 0 ? (
              <tr role="row" key={peer.endpoint}><th role="rowheader" scope="row">{peer.endpoint}</th><td role="cell"><Yes is={peer.connected} yes="connected" no="not connected" /></td><td role="cell" class="dim">nothing heard yet</td></tr>
            ) : peer.processes.map((p) => <PeerRow key={p.process} endpoint={peer.endpoint} connected={peer.connected} p={p} />))}
          </tbody>
        </table>
      )}
      <Loads data={data} />
      {s && (
        <section aria-labelledby="stats">
          <h2 id="stats">This replica</h2>
          <dl class="facts">
            {data.settings_version && <><dt>Settings</dt><dd>version {data.settings_version} of the fleet's</dd></>}
            <dt>Messages</dt><dd>{count(s.sequence)} sent</dd>
            <dt>Lost</dt><dd class={s.lost ? "warn" : ""}>{count(s.lost)} lost, {count(s.late)} late, {count(s.duplicates)} twice</dd>
            <dt>Snapshots</dt><dd>{count(s.snapshots)} read of peers, {count(s.snapshots_failed)} failed</dd>
            <dt>Queues</dt><dd>{count(s.send_queue)} to send, {count(s.receive_queue)} received</dd>
          </dl>
        </section>
      )}
    </>
  );
}

function Yes(props: { is: boolean | undefined; yes: string; no: string }) {
  if (props.is === undefined) return <span class="dim">unknown</span>;
  return props.is ? <span>{props.yes}</span> : <span class="badge warn">{props.no}</span>;
}

function PeerRow(props: { endpoint: string; connected: boolean; p: Process }) {
  const { p } = props;
  const told: Partial<Process> = p.absent ? {} : p; // what has gone has nothing to agree about
  const loads = told.loads ? told.loads.every((l) => l.agree) : undefined;
  return (
    <tr role="row">
      <th role="rowheader" scope="row">{p.url ?? props.endpoint}<br /><span class="dim">{p.url ? props.endpoint : "process " + p.process}</span></th>
      <td role="cell">{p.absent ? <span class="badge bad">gone</span> : <Yes is={props.connected} yes="connected" no="not connected" />}{p.snapshot_wanted && <span class="dim"> reads its snapshot</span>}{p.error && <div class="note">{p.error}{p.read && `; what it said is of ${clock(p.read)}`}</div>}</td>
      <td role="cell" class={"num" + (told.clocks_agree === false ? " warn" : "")}><span class="label">Clock</span> {told.clock_ahead_seconds === undefined ? "–" : (told.clock_ahead_seconds > 0 ? "+" : "") + seconds(told.clock_ahead_seconds)}</td>
      <td role="cell"><span class="label">Thresholds</span> <Yes is={told.thresholds_differ && told.thresholds_differ.length === 0} yes="agree" no={"differ: " + (told.thresholds_differ ?? []).join(", ")} /></td>
      <td role="cell"><span class="label">Policies</span> <Yes is={told.policies_agree} yes="agree" no="differ" /></td>
      <td role="cell"><span class="label">Loads</span> <Yes is={loads} yes="agree" no="differ" /></td>
      <td role="cell" class="dim">{p.version ?? "–"}</td>
    </tr>
  );
}

/** The loads that a peer sees otherwise than this replica. */
function Loads(props: { data: Replicas }) {
  const rows = props.data.peers.flatMap((peer) => peer.processes.filter((p) => !p.absent).flatMap((p) => (p.loads ?? []).filter((l) => !l.agree).map((l) => ({ who: p.url ?? peer.endpoint, l }))));
  if (rows.length === 0) return null;
  return (
    <section aria-labelledby="loads">
      <h2 id="loads">Loads that differ</h2>
      <p class="note">A difference that lasts for more than a few seconds is messages lost.</p>
      <table class="cards" role="table">
        <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Model</th><th role="columnheader" scope="col">Peer</th><th role="columnheader" scope="col" class="num">Requests here / there</th><th role="columnheader" scope="col" class="num">Blocks here / there</th><th role="columnheader" scope="col" class="num">Prefill here / there</th></tr></thead>
        <tbody role="rowgroup">
          {rows.map(({ who, l }, i) => (
            <tr role="row" key={i}>
              <th role="rowheader" scope="row">{l.model_name}{l.routing_group !== "default" && " / " + l.routing_group}</th><td role="cell">{who}</td>
              {(["requests", "blocks", "prefill_tokens"] as const).map((m) => <td role="cell" class="num" key={m}><span class="label">{m.replace("_", " ")}</span> {count(l.own?.[m])} / {count(l.peer?.[m])}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  );
}
