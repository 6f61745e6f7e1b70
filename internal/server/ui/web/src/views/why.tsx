import { h, Fragment } from "preact";
import { useState } from "preact/hooks";
import { call, Failure, usePoll } from "../api";
import { fleet, names } from "../fleet";
import { clock, count, percent, plural, rankShort } from "../format";
import { Choice, Empty, Fault, Loading } from "../parts";
import { address, change, useRoute } from "../route";
import { useStore } from "../store";
import type { Decision, Explanation, TokenizedPrompt } from "../types";
import { cachedShare, chosenOf, ExplanationPanel } from "./explanation";
import { fewDecisions, mostDecisions, OutcomeText } from "./decisions";

void Fragment;

/** Token ids as people paste them: a JSON list, or numbers with anything between. Null: something else. */
export function tokensOf(text: string): number[] | null {
  const words = text.replace(/[[\],;]/g, " ").split(/\s+/).filter(Boolean);
  const ids = words.map(Number);
  return ids.every((n, i) => /^\d+$/.test(words[i]!) && n < 2 ** 32) ? ids : null;
}

export function WhyView() {
  const { query } = useRoute();
  const at = query.get("decision");
  return (
    <>
      <h1>Why a request goes where it goes</h1>
      <div class="tabs" role="group" aria-label="What to explain">
        <a href={address("why")} aria-current={at === null ? "true" : undefined}>A prompt, now</a>
        <a href={address("why", { decision: at ?? "last" })} aria-current={at !== null ? "true" : undefined}>A decision that was made</a>
      </div>
      {at === null ? <Ask /> : <Past at={at} />}
    </>
  );
}

/** The forms in which a prompt can be given, with what the field says. */
const forms = {
  tokens: { name: "Token ids", field: "Token ids of the prompt", sample: "[128000, 9906, 1917, …]" },
  message: { name: "A user’s message", field: "Message of a user, alone in a chat", sample: "Why is the sky blue?" },
  text: { name: "Text as it is", field: "Text of the prompt, without a chat’s template", sample: "The sky is blue because" },
  request: { name: "A request", field: "Request as a client sends it, in JSON", sample: '{"model": "…", "messages": [{"role": "user", "content": "…"}]}' },
} as const;
type Form = keyof typeof forms;

/** The request that has a prompt in one of the forms; a text: what is wrong with it. */
function requestOf(form: Form, text: string): object | string {
  if (form === "message") return { messages: [{ role: "user", content: text }] };
  if (form === "text") return { prompt: text };
  try {
    const request: unknown = JSON.parse(text);
    return typeof request === "object" && request !== null && !Array.isArray(request) ? request : "a JSON object, such as a chat’s";
  } catch {
    return "not JSON yet";
  }
}

/** Explains what would be chosen for a prompt. It stays in this page: the address does not have it. */
function Ask() {
  const all = useStore(fleet);
  const { query } = useRoute();
  const { models, groups } = names(all);
  const model = query.get("model") ?? models[0] ?? "", group = query.get("group") ?? (groups.includes("default") ? "default" : groups[0]) ?? "";
  const as = query.get("as") ?? "", form = Object.hasOwn(forms, as) ? (as as Form) : "tokens";
  const [text, setText] = useState("");
  const [lora, setLora] = useState("");
  const [session, setSession] = useState("");
  const [answer, setAnswer] = useState<Explanation | null>(null);
  const [failure, setFailure] = useState<Failure | null>(null);
  const [what, setWhat] = useState("");
  const [busy, setBusy] = useState(false);
  const tokens = form === "tokens" ? tokensOf(text) : null;
  const request = form === "tokens" ? null : requestOf(form, text);
  const wrong = form === "tokens" ? (tokens ? "" : "numbers only, such as 1, 2, 3") : typeof request === "string" && text ? request : "";
  const ready = form === "tokens" ? tokens !== null : text !== "" && wrong === "";
  const explain = async (e: Event) => {
    e.preventDefault();
    if (!ready) return;
    setBusy(true);
    setFailure(null);
    const scope = { ...(model && { model_name: model }), ...(group && { routing_group: group }) };
    let asked = "the token ids";
    try {
      // Its answer has the members of /explain, the scope among them.
      const prompt = tokens ? { ...scope, token_ids: tokens } : await call<TokenizedPrompt>("POST", "/tokenize", { ...scope, request });
      asked = "the explanation";
      setAnswer(await call<Explanation>("POST", "/explain", { ...prompt, ...(lora && { lora_name: lora }), ...(session && { session_context: { session_id: session } }) }));
    } catch (e) {
      if (e instanceof Failure) {
        setFailure(e);
        setWhat(asked);
        setAnswer(null);
      } else throw e;
    } finally {
      setBusy(false);
    }
  };
  return (
    <>
      <form class="ask" onSubmit={explain}>
        <label class="field">
          <span>{forms[form].field} {wrong ? <strong class="warn">{wrong}</strong> : tokens && <span class="dim">{plural(tokens.length, "token")}</span>}</span>
          <textarea rows={3} spellcheck={false} placeholder={forms[form].sample} value={text} aria-invalid={wrong !== ""} onInput={(e) => setText(e.currentTarget.value)} />
        </label>
        <div class="filters">
          <label class="field">
            <span>The prompt is</span>
            <select value={form} onChange={(e) => change({ as: e.currentTarget.value === "tokens" ? null : e.currentTarget.value })}>
              {Object.entries(forms).map(([value, f]) => <option value={value} key={value}>{f.name}</option>)}
            </select>
          </label>
          <Choice label="Model" value={model} names={models} pick={(v) => change({ model: v })} />
          {groups.length > 1 && <Choice label="Tenant" value={group} names={groups} pick={(v) => change({ group: v })} />}
          <label class="field"><span>LoRA adapter</span><input value={lora} placeholder="none" onInput={(e) => setLora(e.currentTarget.value.trim())} /></label>
          <label class="field"><span>Session</span><input value={session} placeholder="none" onInput={(e) => setSession(e.currentTarget.value.trim())} /></label>
          <button type="submit" class="primary" disabled={!ready || busy}>{busy ? "…" : "Explain"}</button>
        </div>
      </form>
      {failure && <Fault failure={failure} what={what} />}
      {answer ? <ExplanationPanel x={answer} past={false} /> : !failure && (
        <Empty title="Paste a prompt as token ids or as text, or leave it out to see the choice by load alone.">
          Nothing is booked, kept or counted. Text becomes token ids by the service’s tokenizer. Or look at <a href={address("why", { decision: "last" })}>the last decision</a>.
        </Empty>
      )}
    </>
  );
}

/** Explains one of the decisions that the service remembers, by its time. */
function Past(props: { at: string }) {
  const { data, failure } = usePoll<Decision[]>("/decisions?reasons=false", 5000, props.at === "last" ? fewDecisions : mostDecisions);
  const [kept, setKept] = useState<Decision | null>(null); // with its reasons; it stays when newer ones push it out
  const found = props.at === "last" ? data?.[0] : data?.find((d) => d.time === props.at || d.selection_id === props.at);
  const full = usePoll<Decision[]>(found ? "/decisions?" + new URLSearchParams({ time: found.time }) : null, 60000).data?.[0];
  if (full && full.time !== kept?.time) setKept(full);
  const x = kept && (props.at === "last" || kept.time === props.at || kept.selection_id === props.at) ? kept : null;
  const chosen = x && chosenOf(x);
  if (failure && !data) return <Fault failure={failure} what="the decisions" />;
  if (!data) return <Loading what="the decisions" />;
  if (data.length === 0) return <Empty title="No decision has been made yet." />;
  return (
    <>
      <div class="filters">
        <label class="field grow">
          <span>Decision</span>
          <select value={(x ?? found)?.time ?? ""} onChange={(e) => change({ decision: e.currentTarget.value }, true)}>
            {!x && !found && <option value="">choose one</option>}
            {x && !data.some((d) => d.time === x.time) && <option value={x.time}>{clock(x.time)}, no longer remembered</option>}
            {data.slice(0, 200).map((d) => (
              <option key={d.time} value={d.time}>{clock(d.time)}  {d.model_name}, {count(d.isl_tokens)} tokens → {d.chosen ? rankShort(d.chosen) : "nowhere"}</option>
            ))}
          </select>
        </label>
        <a class="button" href={address("decisions")}>All decisions</a>
      </div>
      {x ? (
        <>
          <p class="note">
            {clock(x.time)}{x.selection_id && <>, request <code>{x.selection_id}</code></>}: {chosen && <>{percent(cachedShare(chosen, x))} counted as cached there, </>}
            {x.cached_blocks_foregone ? plural(x.cached_blocks_foregone, "cached block") + " elsewhere foregone" : "no rank had more"}. <OutcomeText d={found?.time === x.time ? found : x} />
          </p>
          <ExplanationPanel x={x} past />
        </>
      ) : found ? <Loading what="the decision" /> : <Empty title="This decision is no longer remembered.">The service keeps the most recent ones only.</Empty>}
    </>
  );
}
