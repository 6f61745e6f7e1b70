// Package bus connects the replicas of a fleet over NATS: who is there, what they publish, and
// their snapshots.
//
// All subjects begin with "select-service.FLEET.REPLICA.", where REPLICA is the one that
// publishes: a server whose accounts let each replica publish only there vouches for who speaks.
//
//	….hello          every second: the process and its base URL
//	….sync           batches of the messages of package replicasync
//	….ask.OTHER      a request to the replica OTHER; the answer comes in parts to an inbox
//
// docs/run/fleet.md has the permissions, and what is promised when a server is away.
package bus
