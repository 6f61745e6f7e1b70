import { Store, useStore } from "./store";

/** Where the page is: a view and its settings, as the address has them after #. */
export interface Route {
  view: string;
  query: URLSearchParams;
}

function read(): Route {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { view: path || "fleet", query: new URLSearchParams(query) };
}

const route = new Store<Route>(read());
window.addEventListener("hashchange", () => route.set(read()));

export const useRoute = () => useStore(route);

/** The address of a view, with the settings that are not empty. */
export function address(view: string, settings: Record<string, string | number | null | undefined> = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(settings)) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  return "#/" + view + (query.size ? "?" + query : "");
}

/** Changes settings of the present view. Steps that a person would go back to are kept in the history. */
export function change(settings: Record<string, string | null>, step = false) {
  const now = read();
  for (const [name, value] of Object.entries(settings)) {
    if (value) now.query.set(name, value);
    else now.query.delete(name);
  }
  const to = address(now.view, Object.fromEntries(now.query));
  if (to === location.hash) return;
  if (step) location.hash = to;
  else {
    history.replaceState(null, "", to);
    route.set(read());
  }
}
