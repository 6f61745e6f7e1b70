// Package policies reads the configuration of selection policies and their parameters: the
// section worker_selection of a policy file, as in dynamo-kv-router 1.6.1, with the further
// keys models and shadow. Errors about values have Dynamo's texts.
package policies
