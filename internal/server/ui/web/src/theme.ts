import { Store } from "./store";

export type Theme = "auto" | "light" | "dark";

/** What the browser keeps for the page, if its owner lets it. */
const storage = (() => {
  try {
    return localStorage;
  } catch {
    return null;
  }
})();

const saved = storage?.getItem("theme");

/** The chosen theme; auto follows the system. It is the one thing that the page keeps. */
export const theme = new Store<Theme>(saved === "light" || saved === "dark" ? saved : "auto");

/** Counts changes of the colours in effect, for pictures that are drawn with them. */
export const colours = new Store(0);

const dark = matchMedia("(prefers-color-scheme: dark)");

function apply() {
  const on = theme.value === "auto" ? dark.matches : theme.value === "dark";
  document.documentElement.dataset.theme = on ? "dark" : "light";
  colours.set(colours.value + 1);
}

theme.follow((value) => {
  if (value === "auto") storage?.removeItem("theme");
  else storage?.setItem("theme", value);
  apply();
});
dark.addEventListener("change", apply);
apply();

/** A colour of the style, by the name of its variable. */
export const colour = (name: string) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
