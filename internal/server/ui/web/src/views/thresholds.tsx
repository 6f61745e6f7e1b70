import { h, Fragment } from "preact";
import { useState } from "preact/hooks";
import { call, usePoll } from "../api";
import { count, percent } from "../format";
import { Confirm, Dialog, Fault, Loading } from "../parts";
import type { Thresholds } from "../types";

void Fragment;

const kinds = [
  { name: "active_decode_blocks_threshold", title: "Decode blocks", unit: "share of a rank's blocks, 0 to 1", show: (v: number) => percent(v) + " of the blocks" },
  { name: "active_prefill_tokens_threshold", title: "Prefill tokens", unit: "tokens", show: (v: number) => count(v) + " tokens" },
  { name: "active_prefill_tokens_threshold_frac", title: "Prefill, in batches", unit: "multiple of max_num_batched_tokens", show: (v: number) => v + " batches" },
] as const;

type Kind = (typeof kinds)[number];

/** The load above which ranks count as busy, by model; who may, changes it. */
export function ThresholdsDialog(props: { may: boolean; close: () => void }) {
  const [round, setRound] = useState(0);
  const { data, failure } = usePoll<{ thresholds: Thresholds[] }>("/busy_threshold?round=" + round, 10000);
  const [edited, setEdited] = useState<{ model: string; kind: Kind } | null>(null);
  const [text, setText] = useState("");
  const [asked, setAsked] = useState(false);
  const value = Number(text), bad = text !== "" && !(value >= 0);
  const close = () => { setAsked(false); setEdited(null); setRound(round + 1); };
  return (
    <Dialog title="Thresholds" close={props.close} kind="wide">
      <p class="note">A rank above one of these is busy. While every eligible rank of a model is busy, its requests are refused. What is set here counts for the life of this process. In a fleet it counts for all replicas, and for those that start later.</p>
      {failure && <Fault failure={failure} what="the thresholds" />}
      {!data && !failure && <Loading what="the thresholds" />}
      {data && data.thresholds.length === 0 && <p class="note">There are no models yet.</p>}
      {data && data.thresholds.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Thresholds of each model">
          <table>
            <thead><tr><th scope="col">Model</th>{kinds.map((k) => <th scope="col" key={k.name}>{k.title}</th>)}</tr></thead>
            <tbody>
              {data.thresholds.map((t) => (
                <tr key={t.model}>
                  <th scope="row">{t.model}</th>
                  {kinds.map((k) => {
                    const v = t[k.name];
                    return (
                      <td key={k.name}>
                        {v === null || v === undefined ? <span class="dim">none</span> : k.show(v)}{" "}
                        {props.may && <button type="button" class="link" aria-label={`Change ${k.title} of ${t.model}`} onClick={() => { setEdited({ model: t.model, kind: k }); setText(v === null || v === undefined ? "" : String(v)); }}>change</button>}
                      </td>
                    );
                  })}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {edited && (
        <form class="filters" onSubmit={(e) => { e.preventDefault(); if (!bad) setAsked(true); }}>
          <label class="field grow">
            <span>{edited.kind.title} of {edited.model} ({edited.kind.unit}; empty: none)</span>
            <input inputMode="decimal" value={text} aria-invalid={bad} onInput={(e) => setText(e.currentTarget.value.trim())} />
          </label>
          <button type="submit" class="primary" disabled={bad}>{text === "" ? "Unset …" : "Set …"}</button>
          <button type="button" onClick={() => setEdited(null)}>Cancel</button>
        </form>
      )}
      {asked && edited && (
        <Confirm title={text === "" ? "Unset a threshold?" : "Set a threshold?"} verb={text === "" ? "Unset it" : "Set it"} close={close}
          act={() => text === ""
            ? call("DELETE", "/busy_threshold?" + new URLSearchParams({ model: edited.model, threshold: edited.kind.name }))
            : call("POST", "/busy_threshold", { model: edited.model, [edited.kind.name]: value })}>
          <p>{text === ""
            ? `Requests for ${edited.model} are no longer refused for their ${edited.kind.title.toLowerCase()}.`
            : `For all tenants of ${edited.model}, a rank with more than ${edited.kind.show(value)} (${edited.kind.title.toLowerCase()}) counts as busy from the next selection on, and requests are refused while all are.`}</p>
          <p>Other replicas keep theirs, unless the fleet shares its settings.</p>
        </Confirm>
      )}
    </Dialog>
  );
}
