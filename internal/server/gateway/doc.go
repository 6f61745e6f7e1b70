// Package gateway is an endpoint picker for Envoy. It serves Envoy's ext_proc filter
// (envoy.service.ext_proc.v3.ExternalProcessor) and chooses the engine of each request, by the
// endpoint picker protocol of the Gateway API Inference Extension. Package selecting, in the
// same process, makes the choice and books it.
//
//  1. A request is one stream of messages, an exchange. exchange.handle has its phases: the
//     request's headers, body and trailers are collected and answered together; then the
//     response's are passed on as they come.
//  2. picker.pick parses the body (package openai), finds the model, gets the tokens (package
//     tokenizer), chooses and books a rank, and returns its endpoint.
//  3. A booking follows the request until its end: it renews the lease, reports the end of the
//     prefill (at the first event of a stream; else by KV events, the predicted time or the
//     first byte) and the generated blocks, and moves if the gateway used another endpoint.
package gateway
