// Package selection has the use cases of the selection service: select a rank, reserve, follow
// a reservation, and project what a selection would see. It combines the catalog, the scopes,
// the ledger and the cost function with the state that spans requests: idempotency, sessions,
// pending selections. It knows no protocol.
//
// To read the steps of a request, start with attempt.serve; for the decision, with
// attempt.choose.
package selection
