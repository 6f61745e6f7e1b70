export type WorkerID = number | string; // a text where a number would lose digits

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** 12,345; above 100,000 it is 123k, 1.2M. Unknown is an en dash. */
export function count(n: number | null | undefined): string {
  if (n === null || n === undefined || !Number.isFinite(n)) return "–";
  const a = Math.abs(n);
  if (a < 1e5) return whole.format(n);
  if (a < 1e6) return whole.format(n / 1e3) + "k";
  if (a < 1e9) return (n / 1e6).toFixed(a < 1e7 ? 1 : 0) + "M";
  return (n / 1e9).toFixed(1) + "G";
}

/** A cost or a rate: three digits that count. */
export function decimal(n: number | null | undefined): string {
  if (n === null || n === undefined || !Number.isFinite(n)) return "–";
  const a = Math.abs(n);
  if (a >= 1000) return whole.format(n);
  return n.toFixed(a >= 100 ? 0 : a >= 10 ? 1 : a >= 0.1 || a === 0 ? 2 : 4);
}

/** A share in percent; from the tenfold on ×12. */
export function percent(n: number | null | undefined): string {
  if (n === null || n === undefined || !Number.isFinite(n)) return "–";
  return n >= 9.995 ? "×" + count(n) : (n * 100).toFixed(n > 0 && n < 0.0995 ? 1 : 0) + "\u00a0%";
}

/** Seconds as 12 ms, 1.23 s, 4 min. */
export function seconds(s: number | null | undefined): string {
  if (s === null || s === undefined || !Number.isFinite(s)) return "–";
  const a = Math.abs(s);
  if (a === 0) return "0 ms";
  if (a < 0.001) return (s * 1e6).toFixed(0) + " µs";
  if (a < 1) return (s * 1e3).toFixed(a < 0.01 ? 1 : 0) + " ms";
  if (a < 120) return s.toFixed(a < 10 ? 2 : 1) + " s";
  return a < 7200 ? Math.round(s / 60) + " min" : Math.round(s / 3600) + " h";
}

const clockFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
export const clock = (time: number | string | Date) => clockFormat.format(new Date(time));

export const plural = (n: number, one: string, many = one + "s") => count(n) + " " + (n === 1 ? one : many);

export const rankName = (r: { worker_id: WorkerID; dp_rank: number }) => `worker ${r.worker_id} rank ${r.dp_rank}`;
export const rankShort = (r: { worker_id: WorkerID; dp_rank: number }) => `${r.worker_id} · ${r.dp_rank}`;
