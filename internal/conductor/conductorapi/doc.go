// Package conductorapi has the use cases of the Conductor API: register and unregister
// publishers of KV events, query how much of a prompt every instance holds, list the publishers,
// diagnose a prompt. Scopes diagnoses a prompt on the selection service's own workers,
// with an answer of the same form. The package knows no protocol; internal/server/httpapi calls it.
package conductorapi
