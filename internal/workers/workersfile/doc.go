// Package workersfile reads the full set of workers from a file and follows its
// changes. The file is YAML or JSON with the shape of the body of PUT /workers:
//
//	model_name: m          # the scope of the set, both optional
//	tenant_id: t           # or routing_group
//	workers:
//	  - worker_id: 1
//	    endpoint: http://worker-1:8000
//	    block_size: 16
//	    drain: true        # optional, only in a file: it gets no new work
//	engines: [http://worker-2:8000] # those that describe themselves, see enginelist
//
// It is read strictly: unknown keys, values of another type, YAML aliases and files without the
// key workers are faults, and so is every entry that no catalog would accept. All faults are
// reported with their lines. So a typing error removes no worker.
package workersfile
