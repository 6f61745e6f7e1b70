// Package workers runs the sources of workers. A [Source] knows the full set of its workers
// at any time: the workers file does, and so does Kubernetes. The [Manager] runs the sources
// of a process and hands their sets to the catalog, which keeps the workers of different sources
// apart (see catalog.Set).
package workers
