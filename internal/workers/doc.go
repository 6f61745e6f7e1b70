// Package workers has who the workers are, and who changes them.
//
// The workers of the API and of the workers file are in a [Store]: that of a process alone ([NewAlone]), or
// that of a fleet (package fleet). A discovering [Source], like Kubernetes, has workers that belong to it
// alone. The [Registry] has the use cases: registering, changing, draining and removing workers.
// Whatever changes them, [Changes] applies the change to this process: to its catalog, and with it to scopes,
// event streams, loads and reservations. [Drains] removes what operators have drained.
//
// A [Source] knows the full set of its workers at any time: the workers file does, and so does Kubernetes.
// The [Manager] runs the sources of a process and hands their sets to the registry. The catalog keeps the
// workers of different sources apart (see catalog.Set).
package workers
