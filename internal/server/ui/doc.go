// Package ui has the operators' page: its files, which are embedded, and the headers under which
// a browser shows them. The page reads the public JSON API and nothing else, so the package
// knows nothing of the service.
//
// web has the sources (TypeScript, style, and the two libraries in web/vendor, pinned by
// web/package-lock.json); dist has the bundle, which `go generate` makes from them without network.
// A test compares the two.
package ui

//go:generate go run -C build . -write
