// Package engines has below it what engines say of themselves: load, reports of their load.
package engines
