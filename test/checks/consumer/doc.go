// Package consumer proves that programs outside this module can import pkg/: types that its
// public functions take are public too.
package consumer
