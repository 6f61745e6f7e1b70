// Package yamlread reads the YAML files of this service strictly: one document, mappings whose
// keys are all known and given once, and all faults of the file with the line and path of the
// key. The library's own decoder does not name the key in type errors.
package yamlread
