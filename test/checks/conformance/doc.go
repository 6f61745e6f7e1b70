// Package conformance plays scenarios against a running service and compares
// its answers. A scenario is a JSON file under testdata/conformance:
//
//	{name, tags[], note?, decided[]?, env{}, args[]?, files{}?, peers{}?, start_fails?, steps[]}
//
// Most were recorded from dynamo-kv-router: 1.6.1 in the folders that end in 16,
// 1.3.1 in the others. Those with "decided" follow a decision of docs/reference/contract.md
// instead, because the recorded system does it otherwise or not at all.
//
// env and args go to the service, files are written to a folder of their own
// ({file:NAME} is the path), peers are HTTP servers with one answer to GET
// /dump. With start_fails the service has to stop with an error that mentions
// the given words, and there are no steps.
//
// Placeholders stand for what a run gives out, in any string: {pub:NAME} a
// publisher socket, {replay:NAME} a replay socket, {peer:NAME} an HTTP peer,
// {port2} to {port9} free ports, {var:NAME} a value saved from an answer. They
// are put back into answers before these are compared.
//
// Answers are compared as a whole and by value: the order of object keys is
// free, 2 equals 2.0. Expect describes what else can be asked of an answer,
// Step what a scenario can do. KV events take effect a moment after they are
// published, so scenarios poll (wait_until); where nothing may change, they
// publish another block on the same stream and wait for that one.
package conformance
