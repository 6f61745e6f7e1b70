import { useEffect, useState } from "preact/hooks";

/** A value that components follow. */
export class Store<T> {
  private followers = new Set<(value: T) => void>();
  constructor(public value: T) {}
  set(value: T) {
    this.value = value;
    for (const follow of this.followers) follow(value);
  }
  follow(f: (value: T) => void): () => void {
    this.followers.add(f);
    return () => this.followers.delete(f);
  }
}

/** The value of a store; the component is drawn again when it changes. */
export function useStore<T>(store: Store<T>): T {
  const [value, set] = useState<{ of: T }>({ of: store.value });
  useEffect(() => {
    set({ of: store.value });
    return store.follow((of) => set({ of }));
  }, [store]);
  return value.of;
}
