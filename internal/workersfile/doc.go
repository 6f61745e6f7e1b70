// Package workersfile reads the full set of workers from a file and follows its
// changes. The file is YAML or JSON with the shape of the body of PUT /workers:
//
//	model_name: m          # the scope of the set, both optional
//	tenant_id: t           # or routing_group
//	workers:
//	  - worker_id: 1
//	    endpoint: http://worker-1:8000
//	    block_size: 16
//
// It is strict: unknown keys, values of another type, YAML's aliases and files
// without the key workers are faults, and so is every entry that no catalog accepts.
// All are named with their line, so that a typing error removes no worker.
package workersfile
