// Package codec is the wing of readers and writers of formats: JSON bodies, msgpack, YAML. Its
// packages are below.
package codec
