// Package policies reads the configuration of selection policies and their parameters: the
// section worker_selection of a policy file, as in dynamo-kv-router 1.6.1, with the further
// keys models and shadow. Error texts are Dynamo's where it has one for the fault.
package policies
