// Package engines connects to the HTTP servers of engines. Below it is what engines say of
// themselves (their description, their load, and the use of its reports), and which of their routes requests may name.
package engines
