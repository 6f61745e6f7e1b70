import { h } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { colour, colours } from "./theme";
import { useStore } from "./store";

export interface Line {
  name: string;
  colour: string; // the name of a variable of the style
  values: (number | null)[];
  fill?: boolean;
}

const axis = (size: number, format?: (v: number) => string): uPlot.Axis => ({
  stroke: () => colour("muted"),
  grid: { stroke: () => colour("line"), width: 1 },
  ticks: { show: false },
  font: "11px system-ui, sans-serif",
  size,
  ...(format ? { values: (_: uPlot, splits: number[]) => splits.map((v) => (v === null ? "" : format(v))) } : {}),
});

const hour = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit" });

/** Keeps a picture as wide as its box. */
function keepWidth(box: HTMLElement, plot: uPlot): () => void {
  const observer = new ResizeObserver(() => plot.setSize({ width: box.clientWidth, height: plot.height }));
  observer.observe(box);
  return () => observer.disconnect();
}

/** Lines over time, stacked if they are filled. The text says to a screen reader what they show. */
export function TimeChart(props: { end: string; interval: number; lines: Line[]; format: (v: number) => string; text: string; height?: number }) {
  const box = useRef<HTMLDivElement>(null);
  const drawn = useStore(colours);
  const { end, interval, lines, format } = props;
  useEffect(() => {
    if (!box.current || lines.length === 0) return;
    const n = Math.max(...lines.map((l) => l.values.length));
    const last = Date.parse(end) / 1000;
    const times = Array.from({ length: n }, (_, i) => last - (n - 1 - i) * interval);
    const sums: number[] = new Array(n).fill(0);
    const series = lines.map((l) =>
      l.fill ? l.values.map((v, i) => (v === null ? null : (sums[i] = (sums[i] ?? 0) + v))) : l.values,
    );
    // What is stacked is drawn from the top down, so that each covers the sum below it.
    const order = lines.map((_, i) => i).reverse();
    const plot = new uPlot(
      {
        width: box.current.clientWidth, height: props.height ?? 160, legend: { show: false }, cursor: { show: false },
        padding: [8, 12, 0, 0],
        scales: { y: { range: (_u, _min, max) => [0, max > 0 ? max * 1.08 : 1] } },
        // Labels have minutes: a finer grid would repeat them.
        axes: [{ ...axis(26, (v) => hour.format(v * 1000)), space: 64, incrs: [60, 120, 300, 600, 900, 1800, 3600] }, axis(52, format)],
        series: [
          {},
          ...order.map((i): uPlot.Series => {
            const line = lines[i]!;
            return { label: line.name, stroke: () => colour(line.colour), fill: line.fill ? () => colour(line.colour) : undefined, width: line.fill ? 0 : 1.5, points: { show: false } };
          }),
        ],
      },
      [times, ...order.map((i) => series[i]!)] as uPlot.AlignedData,
      box.current,
    );
    const forget = keepWidth(box.current, plot);
    return () => {
      forget();
      plot.destroy();
    };
  }, [end, interval, lines, drawn]);
  return <div class="chart" ref={box} role="img" aria-label={props.text} />;
}

/** Points of predicted (x) against observed (y) times, on equal logarithmic axes, with the line where they agree. */
export function Scatter(props: { points: [number, number][]; format: (v: number) => string; text: string; xName: string; yName: string }) {
  const box = useRef<HTMLDivElement>(null);
  const drawn = useStore(colours);
  const { points, format } = props;
  useEffect(() => {
    if (!box.current || points.length === 0) return;
    const all = points.flat();
    const least = Math.min(...all), most = Math.max(...all);
    // Of one digit: from 0.0997, say, uPlot's logarithmic axis never comes to an end.
    const decade = Math.floor(Math.log10(least / 1.3));
    const low = Number(`${Math.floor(least / 1.3 / 10 ** decade)}e${decade}`), high = Math.max(most * 1.3, low * 4);
    const scale: uPlot.Scale = { time: false, distr: 3, range: [low, high] };
    const sorted = [...points].sort((a, b) => a[0] - b[0]);
    const plot = new uPlot(
      {
        width: box.current.clientWidth, height: 300, legend: { show: false }, cursor: { show: false }, padding: [10, 14, 0, 0],
        scales: { x: scale, y: scale },
        axes: [
          { ...axis(24, format), label: props.xName, labelSize: 18, labelFont: "11px system-ui, sans-serif", space: 60 },
          { ...axis(56, format), label: props.yName, labelSize: 16, labelFont: "11px system-ui, sans-serif" },
        ],
        series: [
          {},
          {
            label: props.yName, stroke: () => colour("accent"), paths: () => null, width: 0,
            points: { show: true, size: 5, fill: () => colour("accent-soft"), stroke: () => colour("accent"), width: 1 },
          },
        ],
        hooks: {
          drawAxes: [
            (u) => {
              const { ctx } = u;
              ctx.save();
              ctx.strokeStyle = colour("muted");
              ctx.setLineDash([4, 4]);
              ctx.beginPath();
              ctx.moveTo(u.valToPos(low, "x", true), u.valToPos(low, "y", true));
              ctx.lineTo(u.valToPos(high, "x", true), u.valToPos(high, "y", true));
              ctx.stroke();
              ctx.restore();
            },
          ],
        },
      },
      [sorted.map((p) => p[0]), sorted.map((p) => p[1])],
      box.current,
    );
    const forget = keepWidth(box.current, plot);
    return () => {
      forget();
      plot.destroy();
    };
  }, [points, drawn]);
  return <div class="chart" ref={box} role="img" aria-label={props.text} />;
}
