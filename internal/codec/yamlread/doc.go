// Package yamlread reads the YAML files of this service strictly into Go values: one document,
// mappings whose keys are all known and given once, values of the wanted type only, and all faults of
// the file with the line and path of the key. The library's own decoder does not name the key in type
// errors, and takes unknown types of values where they can be converted.
package yamlread
