import { h, Fragment } from "preact";
import { useMemo, useState } from "preact/hooks";
import { usePoll } from "../api";
import { TimeChart } from "../chart";
import { fleet, names } from "../fleet";
import { count, plural, rankShort } from "../format";
import { Choice, Empty, Fault, Key, Loading, NoFleet, useNarrow } from "../parts";
import { address, change, useRoute } from "../route";
import { useStore } from "../store";
import type { History, PrefixNode, Prefixes } from "../types";

void Fragment;

const tiers = [["device", "device"], ["host", "host memory"], ["disk", "disk"], ["external", "external"]] as const;
const held = (n: PrefixNode, tier: (typeof tiers)[number][0]) => n.tiers[tier === "host" ? "host_pinned" : tier];

/** A node of the picture: from and to as fractions of the width, at a level below the root of the view. */
interface Box {
  node: PrefixNode;
  from: number;
  to: number;
  level: number;
}

/** The most levels that are drawn: what is deeper is seen by zooming. */
const deepest = 10;

/** Lays out what is below a node (null: everything) by the blocks held. */
function layout(nodes: PrefixNode[], top: PrefixNode | null): { boxes: Box[]; levels: number } {
  const children = new Map<number | null, PrefixNode[]>();
  for (const n of nodes) children.set(n.parent, [...(children.get(n.parent) ?? []), n]);
  const boxes: Box[] = [];
  let levels = 0;
  const place = (n: PrefixNode, from: number, to: number, level: number) => {
    if (level >= deepest) return;
    boxes.push({ node: n, from, to, level });
    levels = Math.max(levels, level + 1);
    inside(children.get(n.id) ?? [], from, to, n.subtree_held, level + 1);
  };
  const inside = (list: PrefixNode[], from: number, to: number, whole: number, level: number) => {
    const sum = Math.max(whole, list.reduce((s, n) => s + n.subtree_held, 0), 1);
    let at = from;
    for (const n of [...list].sort((a, b) => b.subtree_held - a.subtree_held)) {
      const width = ((to - from) * n.subtree_held) / sum;
      place(n, at, at + width, level);
      at += width;
    }
  };
  if (top) place(top, 0, 1, 0);
  else inside(children.get(null) ?? [], 0, 1, 0, 0);
  return { boxes, levels };
}

/** One of five steps of a colour: how many of the ranks hold it. */
const step = (holders: number, most: number) => "hold-" + Math.min(4, Math.floor((4.999 * Math.log(holders + 1)) / Math.log(most + 1)));

/** What names each prefix in the address: where it begins, and its first block. */
function placesOf(nodes: PrefixNode[]): Map<PrefixNode, string> {
  const places = new Map<PrefixNode, string>(), taken = new Map<string, number>();
  for (const n of nodes) {
    const place = `${n.depth}.${n.block_hash ?? ""}`, twins = taken.get(place) ?? 0;
    taken.set(place, twins + 1);
    places.set(n, twins ? `${place}.${twins}` : place);
  }
  return places;
}

const nameOf = (n: PrefixNode) => `blocks ${count(n.depth + 1)} to ${count(n.depth + n.blocks)}` + (n.lora_name ? ` of ${n.lora_name}` : "");

export function CacheView() {
  const all = useStore(fleet);
  const { query } = useRoute();
  const { models, groups } = names(all);
  const model = query.get("model") ?? models[0] ?? "", group = query.get("group") ?? (groups.includes("default") ? "default" : groups[0]) ?? "";
  const scope = model ? new URLSearchParams({ model_name: model, routing_group: group }).toString() : "";
  const known = all.totals !== null;
  const { data, failure } = usePoll<Prefixes>(known && scope ? "/index/prefixes?limit=200&" + scope : null, 10000);
  return (
    <>
      <div class="heading"><h1>Cache</h1>
        {data && <span class="dim">{plural(data.unique_blocks, "block")} known, {count(data.held_blocks)} held</span>}
      </div>
      <div class="filters">
        {models.length > 0 && <Choice label="Model" value={model} names={models} pick={(v) => change({ model: v, at: null }, true)} />}
        {groups.length > 1 && <Choice label="Tenant" value={group} names={groups} pick={(v) => change({ group: v, at: null }, true)} />}
      </div>
      {!known && <NoFleet of={all} what="the index" />}
      {known && !scope && <Empty title="There are no models yet." />}
      {failure && !data && <Fault failure={failure} what="the index" />}
      {known && scope && !data && !failure && <Loading what="the index" />}
      {data && (data.nodes.length === 0 ? <Empty title="No blocks are cached.">Engines announce what they cache in their KV events; see the <a href={address("doctor")}>doctor</a> if they should have by now.</Empty> : <Icicle data={data} />)}
      {known && scope && <Tiers scope={scope} />}
    </>
  );
}

function Icicle(props: { data: Prefixes }) {
  const { data } = props;
  const { query } = useRoute();
  const narrow = useNarrow();
  const [over, setOver] = useState<PrefixNode | null>(null);
  const at = query.get("at");
  const places = useMemo(() => placesOf(data.nodes), [data]);
  const top = data.nodes.find((n) => places.get(n) === at) ?? null;
  const { boxes, levels } = useMemo(() => layout(data.nodes, top), [data, top]);
  const byID = useMemo(() => new Map(data.nodes.map((n) => [n.id, n])), [data]);
  const most = Math.max(...data.nodes.map((n) => n.holders), 1);
  const path: PrefixNode[] = [];
  for (let n = top; n; n = n.parent === null ? null : (byID.get(n.parent) ?? null)) path.unshift(n);
  const width = narrow ? 360 : 1200, height = 30;
  const zoom = (n: PrefixNode | null) => change({ at: n && (places.get(n) ?? null) }, true);
  const pick = (n: PrefixNode) => zoom(n !== top ? n : n.parent === null ? null : (byID.get(n.parent) ?? null)); // the one that fills the picture leads back
  const hottest = [...data.nodes].filter((n) => n.hottest).sort((a, b) => a.hottest! - b.hottest!).slice(0, 25);
  const about = over ?? top;
  return (
    <>
      <section class="card" aria-labelledby="icicle">
        <div class="heading"><h2 id="icicle">Cached prefixes</h2>
          <Key entries={[["hold-0", "held by one rank"], ["hold-2", "by some"], ["hold-4", `by ${most}`]]} />
        </div>
        <p class="note">Width: blocks held, with all that continues them. Downwards: what comes next. Select a prefix to zoom.</p>
        <nav class="path" aria-label="Zoom">
          <button type="button" class="link" onClick={() => zoom(null)} disabled={!top}>everything</button>
          {path.map((n) => <> › <button type="button" class="link" key={n.id} disabled={n === top} onClick={() => zoom(n)}>{nameOf(n)}</button></>)}
        </nav>
        <svg class="icicle" viewBox={`0 0 ${width} ${levels * height}`} role="group" aria-label="Cached prefixes by blocks held" onMouseLeave={() => setOver(null)}>
          {boxes.filter((b) => (b.to - b.from) * width >= 1.5).map((b) => {
            const x = b.from * width, w = (b.to - b.from) * width, y = b.level * height;
            const fits = (text: string) => text.length * 7.4 + 14 <= w;
            const label = [`${count(b.node.blocks)} blocks × ${count(b.node.holders)}`, `${count(b.node.blocks)}×${count(b.node.holders)}`].find(fits) ?? "";
            return (
              <g key={b.node.id} class={"box " + step(b.node.holders, most)} role="button" tabIndex={w >= 12 ? 0 : -1}
                aria-label={`${label ? label + ", " : ""}${nameOf(b.node)}, held by ${plural(b.node.holders, "rank")}`}
                onClick={() => pick(b.node)}
                onKeyDown={(e: KeyboardEvent) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); pick(b.node); } }}
                onMouseEnter={() => setOver(b.node)} onFocus={() => setOver(b.node)}>
                <rect x={x + 0.5} y={y + 0.5} width={Math.max(w - 1, 0.5)} height={height - 1} rx="2" />
                {label && <text x={x + 7} y={y + 19.5}>{label}</text>}
              </g>
            );
          })}
        </svg>
        <p class="note about" aria-live="polite">
          {about ? <><b>{nameOf(about)[0]!.toUpperCase() + nameOf(about).slice(1)}</b>: {plural(about.blocks, "block")} held by {plural(about.holders, "rank")} (<Holders n={about} />){about.subtree_blocks > about.blocks && <>, {plural(about.subtree_blocks - about.blocks, "block")} below</>}.</> : "Point at a prefix to see who holds it."}
        </p>
        {data.truncated && <p class="note">The index is larger than what one look takes in: small prefixes are left out.</p>}
      </section>
      <section aria-labelledby="hottest">
        <h2 id="hottest">Hottest prefixes</h2>
        <p class="note">By blocks × holders: the index counts no uses.</p>
        <table class="cards" role="table">
          <thead role="rowgroup"><tr role="row"><th role="columnheader" scope="col">Place in the prompt</th><th role="columnheader" scope="col" class="num">Blocks</th><th role="columnheader" scope="col" class="num">Holders</th><th role="columnheader" scope="col" class="num">Held</th><th role="columnheader" scope="col">Who</th><th role="columnheader" scope="col">Tiers</th></tr></thead>
          <tbody role="rowgroup">
            {hottest.map((n) => (
              <tr role="row" key={n.id}>
                <th role="rowheader" scope="row"><button type="button" class="link" onClick={() => { zoom(n); window.scrollTo(0, 0); }}>{nameOf(n)}</button>{n.salted && <span class="dim"> salted</span>}</th>
                <td role="cell" class="num"><span class="label">Blocks</span> {count(n.blocks)}</td><td role="cell" class="num"><span class="label">Holders</span> {count(n.holders)}</td><td role="cell" class="num"><span class="label">Held</span> {count(n.held)}</td>
                <td role="cell"><Holders n={n} /></td>
                <td role="cell" class="dim">{tiers.filter(([t]) => held(n, t)).map(([t, name]) => name + (held(n, t) === n.holders ? "" : ` of ${count(held(n, t))}`)).join(", ")}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </>
  );
}

function Holders(props: { n: PrefixNode }) {
  const { n } = props;
  const shown = n.ranks.slice(0, 6);
  return <>{shown.map((r, i) => <>{i > 0 && ", "}<a key={rankShort(r)} href={address("fleet", { worker: r.worker_id, rank: r.dp_rank })}>{rankShort(r)}</a></>)}{n.holders > shown.length && ` and ${count(n.holders - shown.length)} more`}</>;
}

function Tiers(props: { scope: string }) {
  const { data, failure } = usePoll<History>("/history?" + props.scope, 10000);
  const series = data?.series[0];
  const lines = useMemo(() => tiers.flatMap(([tier, name]) => {
    const values = series?.[`${tier}_blocks`];
    return values?.some((v) => v) ? [{ name, colour: "tier-" + tier, values, fill: true }] : [];
  }), [series]);
  if (failure && !data) return <Fault failure={failure} what="the last hour" />;
  if (!data || !series || lines.length === 0) return null;
  return (
    <section class="card" aria-labelledby="tiers">
      <div class="heading"><h2 id="tiers">Blocks held, by tier, over the last hour</h2><Key entries={lines.map((l): [string, string] => [l.colour, l.name])} /></div>
      <TimeChart end={data.end} interval={data.interval_seconds} lines={lines} format={count} text={"Blocks held over the last hour: now " + lines.map((l) => `${l.name} ${count(l.values.at(-1))}`).join(", ")} />
    </section>
  );
}
