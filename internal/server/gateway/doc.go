// Package gateway places the requests that come through a gateway on engines, and follows them to their
// end. Package selection, in the same process, chooses an engine and books the request there. How requests
// come and answers go is a front's business: package extproc is the one for Envoy.
//
//  1. A front opens an Exchange for each request, and gives it the request's head and body.
//  2. picker.pick parses the body (package openai), finds the model, gets the tokens (package
//     tokenizer), chooses and books a rank, and returns its endpoint.
//  3. A booking follows the request until its end: it renews the lease, reports the end of the
//     prefill (at the first event of a stream; else by KV events, the predicted time or the
//     first byte) and the generated blocks, and moves if another endpoint serves the request.
package gateway
