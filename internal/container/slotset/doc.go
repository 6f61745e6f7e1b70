// Package slotset stores a number of blocks for each slot of a scope. Scopes may have thousands
// of slots, nearly all with the same number for a prompt; handling them one by one would cost
// more than the rest of a selection.
package slotset
