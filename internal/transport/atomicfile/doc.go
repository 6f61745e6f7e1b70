// Package atomicfile replaces files. Whoever reads one, also after a crash at any moment, finds
// the old content or the new one, whole.
package atomicfile
